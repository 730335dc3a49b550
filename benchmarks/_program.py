"""Starting the programs of `benchmarks.programs`, each call a process of its own."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from benchmarks._result import CHECKOUT

DEBIAN_PYTHON = "/usr/bin/python3"
"""It has PgQ's client."""


@dataclass(frozen=True, slots=True)
class Handled:
    """The items a worker has handled; times by the clock that all processes share."""

    began: float
    sent: list[float]
    handled: list[float]

    @property
    def delays(self) -> list[float]:
        """The delays in seconds, from before an item was sent until its handler was called."""
        return [then - sent for sent, then in zip(self.sent, self.handled, strict=True)]

    @property
    def rate(self) -> float:
        """Items a second, since the worker was started."""
        return len(self.handled) / (max(self.handled) - self.began) if self.handled else 0.0


Work: TypeAlias = Callable[[], Handled]
"""A worker at work: wait until it has handled all items, or its time is over."""


@dataclass(frozen=True, slots=True)
class Program:
    """One of the programs."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> str:
        """Run it to its end; returns what it prints."""
        return _end(self._start(*arguments))

    def install(self, dsn: str) -> None:
        self.run("install", dsn)

    def send(self, dsn: str, count: int, rate: float = 0) -> float:
        """Send items one after the other, or at a rate; returns the seconds it took."""
        return self._seconds("send", dsn, str(count), str(rate))

    def bulk(self, dsn: str, count: int) -> float:
        """Send items at once; returns the seconds it took."""
        return self._seconds("bulk", dsn, str(count))

    @contextmanager
    def work(self, dsn: str, count: int, seconds: float) -> Iterator[Work]:
        """Run a worker: ready when the block begins, and killed at its end if it is not done."""
        process = self._start("work", dsn, str(count), str(seconds))
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == "ready":
                    break
            yield lambda: Handled(**json.loads(_end(process).splitlines()[-1]))
        finally:
            process.kill()
            process.wait()

    def _seconds(self, *arguments: str) -> float:
        return float(json.loads(self.run(*arguments).splitlines()[-1])["seconds"])

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *arguments],
            cwd=CHECKOUT,
            env=os.environ | dict(self.environment),
            stdout=subprocess.PIPE,
            text=True,
        )


def _end(process: subprocess.Popen[str]) -> str:
    """Wait for the end; returns what it has printed."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args!r} has failed")
    return output


def python_program(name: str, python: str = sys.executable) -> Program:
    return Program([python, "-m", f"benchmarks.programs.{name}"])


WANTED = CHECKOUT / "benchmarks" / "programs" / "package.json"
DIRECTORY = CHECKOUT / ".bench" / "node"


def install_node() -> bool:
    """Install the packages; needs the network the first time only. False if npm is missing."""
    npm = shutil.which("npm")
    if npm is None:
        return False
    # Written after the installation is complete.
    installed = DIRECTORY / "installed.json"
    if not installed.exists() or installed.read_text() != WANTED.read_text():
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        shutil.copy(WANTED, DIRECTORY)
        subprocess.run(
            [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
            cwd=DIRECTORY,
            check=True,
        )
        shutil.copy(WANTED, installed)
    return True


def node_architecture() -> str:
    return {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]


def node_program(package: str) -> Program:
    """The program for a package, run by the Node that was installed with its packages."""
    node = DIRECTORY / "node_modules" / f"node-linux-{node_architecture()}" / "bin" / "node"
    script = CHECKOUT / "benchmarks" / "programs" / f"{package.replace('-', '_')}.mjs"
    return Program([str(node), str(script)], {"NODE_PACKAGES": str(DIRECTORY)})


def node_version(package: str) -> str:
    file = DIRECTORY / "node_modules" / package / "package.json"
    return str(json.loads(file.read_text())["version"])
