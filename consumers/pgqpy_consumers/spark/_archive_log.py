"""The log of an archive: tick ranges, beside the Parquet files of their events.

::

    PATH/queue=orders/day=2026-11-21/ticks-41-57-0.parquet    the events
    PATH/_pgqpy/archive.json                                  the partitioning
    PATH/_pgqpy/queue=orders/log/00000000000000000007.json    the newest tick range
    PATH/_pgqpy/queue=orders/staging/5b0c.../                 files of a range that is being written

An archive of shards has them one level below the queue, also in the log: ``queue=orders/shard=a``.

Spark, and most other readers of Parquet, ignore names that begin with an underscore. A range's
files are written into a directory of their own (stage). The range enters the log, which makes it
archived (commit). Then its files are moved to where they are read (publish). A range that was
interrupted before its commit is discarded; after it, the next process publishes the range.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias
from urllib.parse import quote, unquote
from uuid import uuid4

from py4j.protocol import Py4JJavaError

from pgqpy.errors import PgqError
from pgqpy_consumers.spark._ranges import Offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTROL = "_pgqpy"
HEADER = f"{CONTROL}/archive.json"
FORMAT = 1

KEPT = 100
"""Entries of the log that are kept for people; only the newest is needed."""

FileFormat: TypeAlias = Literal["parquet", "avro"]

SHARD = "shard"
"""The first column below the queue that partitions an archive of shards."""

PARTITIONS: Mapping[str, str] = {
    "day": "date(ev_time)",
    "month": "date_format(ev_time, 'yyyy-MM')",
    "hour": "date_format(ev_time, 'yyyy-MM-dd-HH')",
    # As a directory's name, in which some characters become three; file systems allow 255 bytes.
    "type": "if(octet_length(ev_type) > 80, left(ev_type, 60), ev_type)",
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


def create_archive(
    directory: Directory, partition_by: Sequence[str] | None, file_format: FileFormat | None = None
) -> tuple[tuple[str, ...], FileFormat]:
    """Create an archive unless there is one; returns its partitioning and the format of its files.

    None means that of the archive; without one, by day and Parquet. Raises ArchiveError if the
    archive is partitioned in another way, or has files of another format.
    """
    if not directory.exists(HEADER):
        header = {
            "format": FORMAT,
            "partition_by": [*(partition_by or ("day",))],
            "files": file_format or "parquet",
        }
        directory.create(HEADER, json.dumps(header))
    actual, files = partitions(directory)
    if file_format not in (None, files):
        raise ArchiveError(
            f"{directory} has files of format {files}, not {file_format}",
            hint="Leave the option out, or archive into another directory.",
        )
    if partition_by is not None and actual != tuple(partition_by):
        raise ArchiveError(
            f"{directory} is partitioned by {','.join(actual)}, not by {','.join(partition_by)}",
            hint="Leave the option out, or archive into another directory.",
        )
    return actual, files


def partitions(directory: Directory) -> tuple[tuple[str, ...], FileFormat]:
    """The partitioning of an archive, below the queue, and the format of its files. Raises
    ArchiveError if there is no archive."""
    if not directory.exists(HEADER):
        raise ArchiveError(
            f"{directory} is no archive", hint="pgqpy spark archive QUEUE PATH makes one."
        )
    header = json.loads(directory.read(HEADER))
    if header["format"] != FORMAT:
        raise ArchiveError(f"{directory} is of a newer pgqpy", hint="Upgrade pgqpy here, too.")
    return tuple(header["partition_by"]), header.get("files", "parquet")


def queues(directory: Directory) -> list[str]:
    """The queues that an archive has events of."""
    found = (name.partition("queue=") for name in directory.names(CONTROL))
    return [unquote(queue) for _, mark, queue in found if mark]


def shards(directory: Directory, queue: str) -> list[str | None]:
    """The shards of a queue that an archive has events of; None if it is not one of shards."""
    found = (name.partition("shard=") for name in directory.names(_home(queue)))
    return [unquote(shard) for _, mark, shard in found if mark] or [None]


def _home(queue: str, shard: str | None = None) -> str:
    home = f"{CONTROL}/queue={quote(queue, safe='')}"
    return home if shard is None else f"{home}/shard={quote(shard, safe='')}"


class ArchiveLog:
    """The log of one queue in an archive, or of one shard. One process at a time may change it."""

    def __init__(self, directory: Directory, queue: str, shard: str | None = None) -> None:
        self.directory = directory
        self._home = _home(queue, shard)

    def __str__(self) -> str:
        """The full name of the log's directory."""
        return self.directory.path(self._home)

    def newest(self) -> Commit | None:
        """The tick range that was committed last."""
        names = self._names()
        return Commit.from_json(self.directory.read(self._entry(names[-1]))) if names else None

    def stage(self) -> str:
        """A new name for a staging directory."""
        return f"{self._home}/staging/{uuid4().hex}"

    def path(self, staging: str) -> str:
        """The full name of a staging directory."""
        return self.directory.path(staging)

    def commit(self, last: Commit | None, start: Offset, end: Offset, staging: str) -> Commit:
        """Add a range, whose files are all written, to the log: from now on it is archived."""
        files = self.directory.data_files(staging)
        events = sum(self.directory.count_rows(f"{staging}/{name}") for name in files)
        commit = Commit(
            number=last.number + 1 if last else 1,
            start=start,
            end=end,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            staging=staging,
            files={
                name: f"{name.rpartition('/')[0]}/ticks-{start.tick}-{end.tick}-{number}"
                f".{name.rpartition('.')[2]}"
                for number, name in enumerate(files)
            },
            events=events,
            first_tick=last.first_tick if last else start.tick,
            total_events=events + (last.total_events if last else 0),
            total_files=len(files) + (last.total_files if last else 0),
        )
        self.directory.create(self._entry(f"{commit.number:020d}.json"), commit.to_json())
        return commit

    def publish(self, commit: Commit) -> None:
        """Move its files to where they are read; also completes an interrupted move."""
        for staged, published in commit.files.items():
            self.directory.move(f"{commit.staging}/{staged}", published)
        self.directory.delete(commit.staging)

    def tidy(self) -> None:
        """Delete staged files that will not be committed, and the oldest entries."""
        self.directory.delete(f"{self._home}/staging")
        for name in self._names()[:-KEPT]:
            self.directory.delete(self._entry(name))

    def _names(self) -> list[str]:
        names = self.directory.names(f"{self._home}/log")
        return [name for name in names if name.endswith(".json")]

    def _entry(self, name: str) -> str:
        return f"{self._home}/log/{name}"


class FileSystemError(PgqError):
    """A file system refused an operation; the message is its own."""


class Directory:
    """A directory on any file system that Spark can write to: a local one, s3a, hdfs, ...

    Its files are named by their paths from there, with slashes. It works through Hadoop's
    FileSystem in the JVM, because Python's ``open`` and ``os.rename`` know local paths only.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Raises FileSystemError if there is no file system for the path, or no JVM to ask."""
        context = getattr(spark, "sparkContext", None)
        if context is None:
            raise FileSystemError(
                "files cannot be moved and listed through Spark Connect",
                hint="Run it on the driver: spark-submit, or without SPARK_REMOTE.",
            )
        self._jvm: Any = context._jvm
        with _errors():
            root = self._jvm.org.apache.hadoop.fs.Path(path)
            self._conf = spark._jsparkSession.sessionState().newHadoopConf()
            self._fs = root.getFileSystem(self._conf)
            self._root = self._fs.makeQualified(root)

    def __str__(self) -> str:
        """The directory's full name, with the file system."""
        return str(self._root.toString())

    def path(self, name: str) -> str:
        """The full name of a file in it."""
        return str(self._path(name).toString())

    def exists(self, name: str) -> bool:
        """Whether there is a file or a directory of this name."""
        with _errors():
            return bool(self._fs.exists(self._path(name)))

    def names(self, name: str) -> list[str]:
        """The names in one of its directories, sorted; empty if that does not exist."""
        if not self.exists(name):
            return []
        with _errors():
            return sorted(
                each.getPath().getName() for each in self._fs.listStatus(self._path(name))
            )

    def data_files(self, name: str) -> list[str]:
        """The archived files under one of its directories, as paths from there, sorted."""
        if not self.exists(name):
            return []
        prefix = f"{self.path(name)}/"
        files = []
        with _errors():
            found = self._fs.listFiles(self._path(name), True)
            while found.hasNext():
                path = str(found.next().getPath().toString())
                if path.endswith((".parquet", ".avro")):
                    files.append(path.removeprefix(prefix))
        return sorted(files)

    def count_rows(self, name: str) -> int:
        """The number of rows that a Parquet file declares, or the name of an Avro file."""
        if name.endswith(".avro"):
            return int(name.removesuffix(".avro").rpartition("-")[2])
        parquet = self._jvm.org.apache.parquet.hadoop
        with _errors():
            file = parquet.util.HadoopInputFile.fromPath(self._path(name), self._conf)
            reader = parquet.ParquetFileReader.open(file)
            try:
                return int(reader.getRecordCount())
            finally:
                reader.close()

    def read(self, name: str) -> str:
        """The text in a small file."""
        with _errors():
            stream = self._fs.open(self._path(name))
            try:
                return bytes(
                    self._jvm.org.apache.hadoop.io.IOUtils.readFullyToByteArray(stream)
                ).decode()
            finally:
                stream.close()

    def create(self, name: str, text: str) -> None:
        """Write a small file, with all its text or not at all.

        Raises FileSystemError if there is one of this name. Two processes that create the same file
        at the same moment are not kept apart, because not every file system can do that.
        """
        folder, _, last = name.rpartition("/")
        temporary = f"{folder}/.{last}.new"
        self.write(temporary, [text.encode()])
        if self.exists(name):
            raise FileSystemError(f"{self.path(name)} exists already")
        self._rename(temporary, name)

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file of any size; after an error, a part of it may be there."""
        with _errors():
            stream = self._fs.create(self._path(name), True)
            try:
                for piece in pieces:
                    stream.write(bytearray(piece))
            finally:
                stream.close()

    def partition_path(self, values: Iterable[tuple[str, str | None]]) -> str:
        """The directory of a partition as Spark names it: ``queue=orders/day=2026-11-21``."""
        utils = self._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils
        return "/".join(str(utils.getPartitionPathString(*each)) for each in values)

    def move(self, name: str, to: str) -> None:
        """Move a file, creating the directories for it; does nothing if it was moved before."""
        if not self.exists(name):
            return
        if self.exists(to):
            # In object stores a rename is a copy: an earlier one was interrupted before its end.
            self.delete(name)
            return
        with _errors():
            self._fs.mkdirs(self._path(to).getParent())
        self._rename(name, to)

    def delete(self, name: str) -> None:
        """Delete a file, or a directory with its contents; it need not exist."""
        with _errors():
            self._fs.delete(self._path(name), True)

    def _rename(self, name: str, to: str) -> None:
        with _errors():
            if not self._fs.rename(self._path(name), self._path(to)):
                raise FileSystemError(f"cannot rename {self.path(name)} to {self.path(to)}")

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise FileSystemError(str(error.java_exception.toString())) from error
