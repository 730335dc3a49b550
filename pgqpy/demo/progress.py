"""Progress bars of the run."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

APPLICATION = "application"


class Bars:
    """One bar for the application's commits, and one for each consumer."""

    def __init__(self, console: Console, names: list[str], expected: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:>9,.0f} events"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=expected) for name in names
        }

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, name: str, events: int) -> None:
        """Show the number of events committed, or delivered."""
        self._progress.update(self._tasks[name], completed=events)

    def set_total(self, events: int) -> None:
        """Set the total when the application has ended."""
        for task in self._tasks.values():
            self._progress.update(task, total=events)
