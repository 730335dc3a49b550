"""Progress of a long command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from pgqpy.cli._base.output import console

#: Reports how much more has been done.
Advance = Callable[[int], None]


@contextmanager
def progress(description: str, total_bytes: int | None) -> Iterator[Advance]:
    """Show a progress bar on standard error, if that is a terminal."""
    screen = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=screen,
        disable=not screen.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task(description, total=total_bytes)
        yield lambda count: bar.advance(task, count)
