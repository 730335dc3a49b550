"""The demo's other processes: the ticker daemon and the consumers."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Self

from pgqpy.demo.errors import DemoError
from pgqpy.dsn import VARIABLE

READY = "ready"
"""The line that a process prints on its standard output when it is ready."""

STOP_TIMEOUT = 20.0


class Process:
    """A Python module that runs as a separate process, until it is stopped.

    The connection string goes through the environment, because other users can read command lines.
    """

    def __init__(self, name: str, module: str, *arguments: str, dsn: str) -> None:
        self.name = name
        self._command: Sequence[str] = (sys.executable, "-m", module, *arguments)
        self._environment = os.environ | {VARIABLE: dsn}
        self._output: IO[bytes]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._output = tempfile.TemporaryFile()
        # In a session of its own: Ctrl-C goes only to the demo, which stops the others in order.
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._output,
            start_new_session=True,
            # The writers' threads do not run yet when processes are started.
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process = self._started
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        self._output.close()

    def wait_until_ready(self, timeout: float) -> None:
        """Wait for the line; raise `DemoError` if the process ends or takes too long."""
        stdout = self._started.stdout
        assert stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while selector.select(max(deadline - time.monotonic(), 0)):
                line = stdout.readline()
                if line.decode(errors="replace").strip() == READY:
                    return
                if not line:
                    raise self._failure(f"{self.name} did not start.")
        raise self._failure(f"{self.name} was not ready within {timeout:.0f} seconds.")

    def check(self) -> None:
        """Raise `DemoError` if the process has ended."""
        if self._started.poll() is not None:
            raise self._failure(f"{self.name} ended with code {self._started.returncode}.")

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _failure(self, message: str) -> DemoError:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return DemoError(message, hint="\n".join(lines[-15:]) or None)


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM if the demo is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
