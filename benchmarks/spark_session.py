"""Spark on two cores, its JDBC driver, and a server reached over TCP: JDBC has no other way."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from zipfile import ZipFile

import psutil
from psycopg.conninfo import conninfo_to_dict

from benchmarks.bench import Bench
from pgqpy.embedded import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
"""One for each core of Spark."""

# Debian's libpostgresql-jdbc-java.
JDBC_JAR = Path("/usr/share/java/postgresql.jar")
ADDRESS = "127.0.0.1"


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
def tcp_server(bench: Bench, **settings: str | int | bool) -> Iterator[Server]:
    """A temporary server that listens on a free port of this machine."""
    with closing(socket.create_server((ADDRESS, 0))) as probe:
        port = probe.getsockname()[1]
    with bench.server(listen_addresses=ADDRESS, port=port, **settings) as server:
        for setting in ("listen_addresses", "port"):
            del bench.result.settings[setting]
        yield server


def tcp(dsn: str) -> str:
    """The DSN of the same database over TCP."""
    place = conninfo_to_dict(dsn)
    return f"postgresql://postgres@{ADDRESS}:{place['port']}/{place['dbname']}"


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
    packages = ("pyspark", "pyarrow", "adbc-driver-postgresql")
    bench.result.versions |= {package: metadata.version(package) for package in packages}
    bench.result.versions |= {
        "Java": java_version(session),
        "PostgreSQL JDBC driver": jdbc_version(),
    }
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


def jdbc_options(dsn: str, table: str) -> dict[str, str]:
    """Options of Spark's own source and sink, as its documentation recommends."""
    place = urlsplit(dsn)
    return {
        "url": f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}",
        "user": str(place.username),
        "driver": "org.postgresql.Driver",
        "dbtable": table,
    }
