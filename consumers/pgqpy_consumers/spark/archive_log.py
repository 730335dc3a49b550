"""What an archive holds: a log of tick ranges, beside the Parquet files of their events.

::

    PATH/queue=orders/day=2026-11-21/ticks-41-57-0.parquet    what people read
    PATH/_pgqpy/archive.json                                  how it is partitioned
    PATH/_pgqpy/queue=orders/log/00000000000000000007.json    the newest tick range
    PATH/_pgqpy/queue=orders/staging/5b0c.../                 files of a range that is being written

Spark, and most that read Parquet, ignore what begins with an underscore. A range's files are
written into a directory of their own (stage), the range enters the log, which decides that it is
archived (commit), and its files are moved to where they are read (publish). What was interrupted
before its commit never happened; afterwards it is published by whoever comes next.
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
"""Entries of the log that stay, for people; only the newest is needed."""

PARTITIONS: Mapping[str, str] = {
    "day": "date(ev_time)",
    "month": "date_format(ev_time, 'yyyy-MM')",
    "hour": "date_format(ev_time, 'yyyy-MM-dd-HH')",
    "type": "ev_type",
}
"""What an archive can be partitioned by, below the queue, as Spark's SQL over events."""


class ArchiveError(PgqError):
    """An archive is not what it should be, or is not there."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A range of ticks whose events are in the archive."""

    number: int
    """1, 2, 3, ..."""
    start: Offset
    end: Offset
    time: str
    staging: str
    """Where its files were written."""
    files: Mapping[str, str]
    """Where they go, by their paths in the staging directory."""
    events: int
    first_tick: int
    """The tick that the archive of this queue begins behind."""
    total_events: int
    total_files: int

    def to_json(self) -> str:
        """As the log has it."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        stored: dict[str, Any] = json.loads(text)
        start, end = (Offset.from_dict(stored.pop(name)) for name in ("start", "end"))
        return cls(start=start, end=end, **stored)


def create_archive(directory: Directory, partition_by: Sequence[str] | None) -> tuple[str, ...]:
    """Begin an archive unless there is one; what it is partitioned by, None for what it is, or day.

    Raises ArchiveError if it is partitioned by something else.
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
    """What an archive is partitioned by, below the queue. Raises ArchiveError if it is none."""
    if not directory.exists(HEADER):
        raise ArchiveError(
            f"{directory} is no archive", hint="pgqpy spark archive QUEUE PATH makes one."
        )
    header = json.loads(directory.read(HEADER))
    if header["format"] != FORMAT:
        raise ArchiveError(f"{directory} is of a newer pgqpy", hint="Upgrade pgqpy here, too.")
    return tuple(header["partition_by"])


def queues(directory: Directory) -> list[str]:
    """The queues that an archive has something of."""
    found = (name.partition("queue=") for name in directory.names(CONTROL))
    return [unquote(queue) for _, mark, queue in found if mark]


class ArchiveLog:
    """The log of one queue in an archive. One process at a time may change it."""

    def __init__(self, directory: Directory, queue: str) -> None:
        self._directory = directory
        self._home = f"{CONTROL}/queue={quote(queue, safe='')}"

    def __str__(self) -> str:
        """The whole name of the directory it is in."""
        return self._directory.path(self._home)

    def newest(self) -> Commit | None:
        """The tick range that was committed last."""
        names = self._names()
        return Commit.from_json(self._directory.read(self._entry(names[-1]))) if names else None

    def stage(self) -> str:
        """A new name for a staging directory."""
        return f"{self._home}/staging/{uuid4().hex}"

    def path(self, staging: str) -> str:
        """The whole name of a staging directory."""
        return self._directory.path(staging)

    def commit(self, last: Commit | None, start: Offset, end: Offset, staging: str) -> Commit:
        """Add a range, whose files are all there, to the log: from now on it is archived."""
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
        """Move its files to where they are read, also if that was interrupted before."""
        for staged, published in commit.files.items():
            self._directory.move(f"{commit.staging}/{staged}", published)
        self._directory.delete(commit.staging)

    def tidy(self) -> None:
        """Delete what was staged and will not be committed, and the oldest entries."""
        self._directory.delete(f"{self._home}/staging")
        for name in self._names()[:-KEPT]:
            self._directory.delete(self._entry(name))

    def _names(self) -> list[str]:
        names = self._directory.names(f"{self._home}/log")
        return [name for name in names if name.endswith(".json")]

    def _entry(self, name: str) -> str:
        return f"{self._home}/log/{name}"
