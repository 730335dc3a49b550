"""A directory on any file system that Spark can write to: a local one, s3a, hdfs, ...

Through Hadoop's FileSystem in the JVM, because Python's ``open`` and ``os.rename`` know local
paths only. Spark Connect has no JVM to ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from pgqpy.errors import PgqError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FileSystemError(PgqError):
    """A file system refused an operation; the message is its own."""


class Directory:
    """A directory; its files are named by their paths from there, with slashes."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Name a directory, which need not exist.

        Raises FileSystemError if there is no file system for the path, or with Spark Connect.
        """
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

    def parquet_files(self, name: str) -> list[str]:
        """The Parquet files under one of its directories, as paths from there, sorted."""
        if not self.exists(name):
            return []
        prefix = f"{self.path(name)}/"
        files = []
        with _errors():
            found = self._fs.listFiles(self._path(name), True)
            while found.hasNext():
                path = str(found.next().getPath().toString())
                if path.endswith(".parquet"):
                    files.append(path.removeprefix(prefix))
        return sorted(files)

    def count_rows(self, name: str) -> int:
        """The number of rows that a Parquet file declares."""
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
        with _errors():
            stream = self._fs.create(self._path(temporary), True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()
        if self.exists(name):
            raise FileSystemError(f"{self.path(name)} exists already")
        self._rename(temporary, name)

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
