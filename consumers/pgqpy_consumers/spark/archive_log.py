"""The log of an archive: tick ranges, beside the Parquet files of their events.

::

    PATH/queue=orders/day=2026-11-21/ticks-41-57-0.parquet    the events
    PATH/_pgqpy/archive.json                                  the partitioning
    PATH/_pgqpy/queue=orders/log/00000000000000000007.json    the newest tick range
    PATH/_pgqpy/queue=orders/staging/5b0c.../                 files of a range that is being written

Spark, and most other readers of Parquet, ignore names that begin with an underscore. A range's
files are written into a directory of their own (stage). The range enters the log, which makes it
archived (commit). Then its files are moved to where they are read (publish). A range that was
interrupted before its commit is discarded; after it, the next process publishes the range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import quote, unquote
from uuid import uuid4

from pgqpy.errors import PgqError
from pgqpy_consumers.spark.files import Directory
from pgqpy_consumers.spark.offset import Offset

CONTROL = "_pgqpy"
HEADER = f"{CONTROL}/archive.json"
FORMAT = 1

KEPT = 100
"""Entries of the log that are kept for people; only the newest is needed."""

PARTITIONS: Mapping[str, str] = {
    "day": "date(ev_time)",
    "month": "date_format(ev_time, 'yyyy-MM')",
    "hour": "date_format(ev_time, 'yyyy-MM-dd-HH')",
    "type": "ev_type",
}
"""The columns an archive can be partitioned by, below the queue, as Spark SQL over events."""


class ArchiveError(PgqError):
    """An archive is not in order, or is missing."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A range of ticks whose events are in the archive."""

    number: int
    """1, 2, 3, ..."""
    start: Offset
    end: Offset
    time: str
    staging: str
    """The directory where its files were written."""
    files: Mapping[str, str]
    """The destinations of the files, by their paths in the staging directory."""
    events: int
    first_tick: int
    """The tick after which the archive of this queue begins."""
    total_events: int
    total_files: int

    def to_json(self) -> str:
        """The text stored in the log."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the text of `to_json`."""
        stored: dict[str, Any] = json.loads(text)
        start, end = (Offset.from_dict(stored.pop(name)) for name in ("start", "end"))
        return cls(start=start, end=end, **stored)


def create_archive(directory: Directory, partition_by: Sequence[str] | None) -> tuple[str, ...]:
    """Create an archive unless there is one; returns its partitioning.

    None for ``partition_by`` means that of the archive, or by day. Raises ArchiveError if the
    archive is partitioned in another way.
    """
    if not directory.exists(HEADER):
        header = {"format": FORMAT, "partition_by": [*(partition_by or ("day",))]}
        directory.create(HEADER, json.dumps(header))
    actual = partitions(directory)
    if partition_by is not None and actual != tuple(partition_by):
        raise ArchiveError(
            f"{directory} is partitioned by {','.join(actual)}, not by {','.join(partition_by)}",
            hint="Leave the option out, or archive into another directory.",
        )
    return actual


def partitions(directory: Directory) -> tuple[str, ...]:
    """The partitioning of an archive, below the queue. Raises ArchiveError if there is none."""
    if not directory.exists(HEADER):
        raise ArchiveError(
            f"{directory} is no archive", hint="pgqpy spark archive QUEUE PATH makes one."
        )
    header = json.loads(directory.read(HEADER))
    if header["format"] != FORMAT:
        raise ArchiveError(f"{directory} is of a newer pgqpy", hint="Upgrade pgqpy here, too.")
    return tuple(header["partition_by"])


def queues(directory: Directory) -> list[str]:
    """The queues that an archive has events of."""
    found = (name.partition("queue=") for name in directory.names(CONTROL))
    return [unquote(queue) for _, mark, queue in found if mark]


class ArchiveLog:
    """The log of one queue in an archive. One process at a time may change it."""

    def __init__(self, directory: Directory, queue: str) -> None:
        self._directory = directory
        self._home = f"{CONTROL}/queue={quote(queue, safe='')}"

    def __str__(self) -> str:
        """The full name of the log's directory."""
        return self._directory.path(self._home)

    def newest(self) -> Commit | None:
        """The tick range that was committed last."""
        names = self._names()
        return Commit.from_json(self._directory.read(self._entry(names[-1]))) if names else None

    def stage(self) -> str:
        """A new name for a staging directory."""
        return f"{self._home}/staging/{uuid4().hex}"

    def path(self, staging: str) -> str:
        """The full name of a staging directory."""
        return self._directory.path(staging)

    def commit(self, last: Commit | None, start: Offset, end: Offset, staging: str) -> Commit:
        """Add a range, whose files are all written, to the log: from now on it is archived."""
        files = self._directory.parquet_files(staging)
        events = sum(self._directory.count_rows(f"{staging}/{name}") for name in files)
        commit = Commit(
            number=last.number + 1 if last else 1,
            start=start,
            end=end,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            staging=staging,
            files={
                name: f"{name.rpartition('/')[0]}/ticks-{start.tick}-{end.tick}-{number}.parquet"
                for number, name in enumerate(files)
            },
            events=events,
            first_tick=last.first_tick if last else start.tick,
            total_events=events + (last.total_events if last else 0),
            total_files=len(files) + (last.total_files if last else 0),
        )
        self._directory.create(self._entry(f"{commit.number:020d}.json"), commit.to_json())
        return commit

    def publish(self, commit: Commit) -> None:
        """Move its files to where they are read; also completes an interrupted move."""
        for staged, published in commit.files.items():
            self._directory.move(f"{commit.staging}/{staged}", published)
        self._directory.delete(commit.staging)

    def tidy(self) -> None:
        """Delete staged files that will not be committed, and the oldest entries."""
        self._directory.delete(f"{self._home}/staging")
        for name in self._names()[:-KEPT]:
            self._directory.delete(self._entry(name))

    def _names(self) -> list[str]:
        names = self._directory.names(f"{self._home}/log")
        return [name for name in names if name.endswith(".json")]

    def _entry(self, name: str) -> str:
        return f"{self._home}/log/{name}"
