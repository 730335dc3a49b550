"""Spark on two cores, its JDBC driver, and a server reached over TCP: JDBC has no other way."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from zipfile import ZipFile

import psutil

from benchmarks.bench import Bench
from pgqpy.embedded import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession

PARTITIONS = 2
"""One for each core of Spark."""

# Debian's libpostgresql-jdbc-java.
JDBC_JAR = Path("/usr/share/java/postgresql.jar")
PORT = 5432


def is_missing(bench: Bench) -> bool:
    """Whether requirements of Spark and its JDBC source are missing; reports them."""
    from pgqpy_consumers.spark import JavaMissingError, require_java

    try:
        require_java()
        if JDBC_JAR.exists():
            return False
        bench.say(f"Left out: {JDBC_JAR} is not here; apt-get install libpostgresql-jdbc-java")
    except JavaMissingError as error:
        bench.say(f"Left out: {error}")
    return True


@contextmanager
def tcp_server(bench: Bench, **settings: str | int | bool) -> Iterator[tuple[Server, str]]:
    """A temporary server, and the address that it listens on."""
    address = free_address()
    with bench.server(listen_addresses=address, **settings) as server:
        del bench.result.settings["listen_addresses"]
        yield server, address


def free_address() -> str:
    """A free address of this machine."""
    for last in range(1, 255):
        with closing(socket.socket()) as probe:
            try:
                probe.bind((address := f"127.0.0.{last}", PORT))
            except OSError:
                continue
            return address
    raise OSError(f"there is a server on port {PORT} already")


def tcp(dsn: str, address: str) -> str:
    """The DSN of the same database over TCP."""
    return f"postgresql://postgres@{address}:{PORT}{urlsplit(dsn).path}"


@contextmanager
def spark_session(
    bench: Bench, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session in ``local[2]``, with the formats ``pgq`` and ``jdbc``."""
    from pgqpy_consumers.spark import PgqDataSource, local_session

    session = local_session(
        f"local[{PARTITIONS}]",
        {"spark.sql.shuffle.partitions": str(PARTITIONS), "spark.jars": str(JDBC_JAR)}
        | dict(settings or {}),
    )
    session.dataSource.register(PgqDataSource)
    for package in ("pyspark", "pyarrow", "adbc-driver-postgresql"):
        bench.uses(package, metadata.version(package))
    bench.uses("Java", java_version(session))
    bench.uses("PostgreSQL JDBC driver", jdbc_version())
    try:
        yield session
    finally:
        session.stop()


def spark_process() -> psutil.Process:
    """The process of Java: driver and executor in one. Python workers are its children."""
    [java] = (each for each in psutil.Process().children(recursive=True) if each.name() == "java")
    return java


def java_version(spark: SparkSession) -> str:
    assert spark._jvm is not None
    return str(spark._jvm.System.getProperty("java.version"))


def jdbc_version() -> str:
    manifest = ZipFile(JDBC_JAR).read("META-INF/MANIFEST.MF").decode()
    found = re.search(r"^(?:Bundle|Implementation)-Version: *(\S+)", manifest, re.MULTILINE)
    return found[1] if found else "unknown"


@dataclass(frozen=True, slots=True)
class Jdbc:
    """Spark's own source and sink, with the settings that its documentation recommends."""

    dsn: str

    def reader(self, spark: SparkSession, table: str, **options: str | int) -> DataFrameReader:
        return spark.read.format("jdbc").options(**self._options(table), **options)

    def writer(self, df: DataFrame, table: str, **options: str | int) -> DataFrameWriter:
        return df.write.format("jdbc").options(**self._options(table), **options)

    def _options(self, table: str) -> dict[str, str]:
        place = urlsplit(self.dsn)
        return {
            "url": f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}",
            "user": str(place.username),
            "driver": "org.postgresql.Driver",
            "dbtable": table,
        }


def timed(work: Callable[[], object]) -> float:
    """The duration in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
