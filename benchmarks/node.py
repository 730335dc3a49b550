"""Installation of the packages of the programs in JavaScript, in a directory that git ignores."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess

from benchmarks.machine import CHECKOUT
from benchmarks.program import Program

WANTED = CHECKOUT / "benchmarks" / "programs" / "package.json"
DIRECTORY = CHECKOUT / ".bench" / "node"


def install() -> bool:
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


def architecture() -> str:
    return {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]


def node_program(name: str) -> Program:
    """One of the programs, run by the Node that was installed with its packages."""
    node = DIRECTORY / "node_modules" / f"node-linux-{architecture()}" / "bin" / "node"
    script = CHECKOUT / "benchmarks" / "programs" / f"{name}.mjs"
    return Program([str(node), str(script)], {"NODE_PACKAGES": str(DIRECTORY)})


def version(package: str) -> str:
    file = DIRECTORY / "node_modules" / package / "package.json"
    return str(json.loads(file.read_text())["version"])
