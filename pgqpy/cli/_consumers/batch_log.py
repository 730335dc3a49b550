"""The log and the progress of a running consumer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from time import monotonic

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from pgqpy.cli._base.command import log_to
from pgqpy.cli._base.output import console
from pgqpy.log import logger

#: Seconds between two lines of progress where there is no terminal.
EVERY = 60.0


class _BatchCounter(logging.Handler):
    """Counts the batches in the log; their level is shown to few users."""

    def __init__(self, tell: Callable[[_BatchCounter], None]) -> None:
        super().__init__(logging.DEBUG)
        self.batches = self.events = 0
        self.lag = 0.0
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        events = getattr(record, "events", None)
        if getattr(record, "batch_id", None) is not None and isinstance(events, int):
            self.batches += 1
            self.events += events
            self.lag = getattr(record, "lag", 0.0)
            self._tell(self)


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
    """Log to standard error inside the block, with the progress of ``name``.

    That is a line at the bottom of a terminal, elsewhere a line in the log every minute.
    """
    screen = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    progress = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    line = progress.add_task(f"{name}: no batch yet", total=None)
    due = monotonic() + EVERY

    def tell(done: _BatchCounter) -> None:
        nonlocal due
        progress.update(
            line,
            description=f"{name}: {done.batches:,} batches, {done.events:,} events, "
            f"the last {done.lag:.1f} s after its tick",
        )
        if not screen.is_terminal and monotonic() >= due:
            due = monotonic() + EVERY
            fields = {"batches": done.batches, "all_events": done.events, "lag": done.lag}
            logger.info("so far %s batches", done.batches, extra=fields)

    with progress, log_to(_Above(screen) if screen.is_terminal else None, level, form):
        logger.addHandler(_BatchCounter(tell))
        # Batches are logged at this level.
        logger.setLevel(logging.DEBUG)
        yield
