"""The log and the progress of a running consumer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from time import monotonic
from typing import IO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from pgqpy._runtime import log_format
from pgqpy._runtime.log import logger
from pgqpy.cli._base.output import console

#: Seconds between two lines of progress where there is no terminal.
EVERY = 60.0


class BatchCounter(logging.Handler):
    """Counts the batches in the log; their level is shown to few users."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.batches = self.events = 0
        self.lag = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        events = getattr(record, "events", None)
        if getattr(record, "batch_id", None) is None or not isinstance(events, int):
            return
        self.batches += 1
        self.events += events
        self.lag = getattr(record, "lag", 0.0)
        self.tell()

    def tell(self) -> None:
        """Show that more batches are done."""


class _Line(BatchCounter):
    """One line of a terminal, below the log."""

    def __init__(self, progress: Progress, name: str) -> None:
        super().__init__()
        self._progress = progress
        self._name = name
        self._task = progress.add_task(f"{name}: no batch yet", total=None)

    def tell(self) -> None:
        self._progress.update(
            self._task,
            description=f"{self._name}: {self.batches:,} batches, {self.events:,} events, "
            f"the last {self.lag:.1f} s after its tick",
        )


class _Lines(BatchCounter):
    """A line in the log at intervals."""

    def __init__(self) -> None:
        super().__init__()
        self._next = monotonic() + EVERY

    def tell(self) -> None:
        if monotonic() < self._next:
            return
        self._next = monotonic() + EVERY
        logger.info(
            "so far %s batches",
            self.batches,
            extra={"batches": self.batches, "all_events": self.events, "lag": self.lag},
        )


class _Above(StringIO):
    """A stream whose lines appear above the last lines of a console."""

    def __init__(self, screen: Console) -> None:
        super().__init__()
        self._screen = screen

    def write(self, text: str) -> int:
        self._screen.print(Text(text), end="", soft_wrap=True)
        return len(text)

    def isatty(self) -> bool:
        return True


@contextmanager
def batch_log(name: str, level: str, form: str) -> Iterator[None]:
    """Send the library's log to standard error inside the block, with the progress of ``name``.

    On a terminal the progress is a line that stays at the bottom, elsewhere a line in the log every
    minute.
    """
    screen = console(stderr=True)
    if not screen.is_terminal:
        with _logging(level, form, None, _Lines()):
            yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with (
        Progress(*columns, console=screen, transient=True) as progress,
        _logging(level, form, _Above(progress.console), _Line(progress, name)),
    ):
        yield


@contextmanager
def _logging(
    level: str, form: str, stream: IO[str] | None, counter: BatchCounter
) -> Iterator[None]:
    before = logger.handlers[:], logger.level, logger.propagate
    log_format.setup(logger.name, level, form, stream).setLevel(level.upper())
    logger.addHandler(counter)
    # Batches are logged at this level.
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.handlers[:], logger.level, logger.propagate = before
