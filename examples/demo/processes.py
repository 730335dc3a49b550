"""The demo's other processes: the ticker and the consumers."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time

from examples.demo import READY, DemoError
from pgqpy.dsn import VARIABLE

STOP_TIMEOUT = 20.0

_LIBC = ctypes.CDLL(None)


class Process:
    """A Python module that runs as a separate process, until it is stopped.

    The connection string goes through the environment, because other users can read command lines.
    """

    def __init__(self, name: str, module: str, *arguments: str, dsn: str) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._command = [sys.executable, "-m", module, *arguments]
        self._environment = os.environ | {VARIABLE: dsn}
        self.start()

    def start(self) -> None:
        """Start it, at first or after `kill`."""
        self._killed = False
        # In a session of its own: Ctrl-C goes only to the demo, which stops the others in order.
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            # It takes no lock that another thread may hold.
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
        )

    def kill(self) -> None:
        """Kill it on purpose: `check` takes that for good."""
        self._killed = True
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        """Stop it, and wait for its end."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def wait_until_ready(self, timeout: float) -> None:
        """Wait for the line; raise `DemoError` if the process ends or takes too long."""
        stdout = self._process.stdout
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
        if self._process.poll() is not None and not self._killed:
            raise self._failure(f"{self.name} ended with code {self._process.returncode}.")

    def _failure(self, message: str) -> DemoError:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return DemoError(message, hint="\n".join(lines[-15:]) or None)


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM if the demo is killed."""
    pr_set_pdeathsig = 1
    _LIBC.prctl(pr_set_pdeathsig, signal.SIGTERM)
