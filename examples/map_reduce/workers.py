"""Worker processes that are killed, and replaced."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from pgqpy.dsn import VARIABLE


class Workers:
    """Keep a number of processes of a Python module running."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        number: int,
        dsn: str,
        log: IO[bytes] | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._environment = os.environ | {VARIABLE: dsn}
        self._log = log
        self._processes = [self._start() for _ in range(number)]
        self._replacing = threading.Lock()
        self.killed = 0

    def kill_one(self) -> None:
        """SIGKILL: it gets no chance to put anything in order."""
        number = random.randrange(len(self._processes))
        with self._replacing:
            self._processes[number].kill()
            self._processes[number].wait()
            self._processes[number] = self._start()
            self.killed += 1

    def replace(self) -> int:
        """Replace those that have ended by themselves; returns how many."""
        with self._replacing:
            ended = [n for n, process in enumerate(self._processes) if process.poll() is not None]
            for number in ended:
                self._processes[number] = self._start()
            return len(ended)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env=self._environment, stderr=self._log)
