"""The file that events are inserted from: open it, decode it, show progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.progress import Advance, progress
from pgqpy.cli._events.event_input import Format, read_events
from pgqpy.event import NewEvent


@dataclass(frozen=True, slots=True)
class EventFile:
    """An open file of events."""

    name: str
    stream: IO[bytes]
    format: Format
    advance: Advance

    @classmethod
    @contextmanager
    def open(cls, path: str, file_format: Format) -> Iterator[EventFile]:
        """Open a file, or standard input for ``-``; a bar shows how much of it was read."""
        standard_input = path == "-"
        size = None if standard_input else Path(path).stat().st_size or None
        with (
            click.open_file(path, "rb") as stream,
            progress("inserting", size) as advance,
        ):
            yield cls("standard input" if standard_input else path, stream, file_format, advance)

    def events(self, *, event_type: str | None, whole_row: bool) -> Iterator[NewEvent]:
        """Yield the events of the file."""
        return read_events(
            self._lines(), self.name, self.format, event_type=event_type, whole_row=whole_row
        )

    def _lines(self) -> Iterator[str]:
        for number, line in enumerate(self.stream, 1):
            self.advance(len(line))
            try:
                # Windows programs start UTF-8 files with a byte order mark.
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise CliError(
                    f"{self.name}, line {number}: it is not UTF-8: {error.reason} "
                    f"at byte {error.start + 1}",
                    f"convert it first: iconv -f latin1 -t utf-8 {self.name}",
                ) from None
