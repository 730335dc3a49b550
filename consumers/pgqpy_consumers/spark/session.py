"""The default Spark session, the Java that it needs, and a class as a program."""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pgqpy.errors import PgqError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

logger = logging.getLogger("pgqpy")

# For one machine, where the defaults are for many: no web server, no 200 tasks a
# shuffle, nothing over the network, not even between Java and Python. Times are UTC like those of
# the events. Of an option dsn, plans and event logs show nothing: Spark does not see that a URL has
# a password.
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.redaction.options.regex": "(?i)url|dsn",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}


def get_session(master: str | None = None) -> SparkSession:
    """The session of this process: the active one, that of spark-submit, or a local one.

    ``master`` is the place for a new one: ``local[4]``, ``spark://host:7077``, ``yarn``, or
    ``sc://host`` for Spark Connect.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if master is not None and not master.startswith("local"):
        builder = SparkSession.builder.appName("pgqpy")
        place = builder.remote if master.startswith("sc://") else builder.master
        return place(master).getOrCreate()
    # Set by spark-submit and for Spark Connect: then the settings are the user's.
    if "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ:
        return SparkSession.builder.getOrCreate()
    return local_session(master or "local[*]")


def program_session(master: str | None = None) -> SparkSession:
    """Return `get_session`'s for a program that prints the errors it gets: Spark logs none."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    return get_session(master)


def run_program(cls: type[Any]) -> int:
    """Run a class of consumers with the options of the command line; return the exit code."""
    about = (cls.__doc__ or f"Run {cls.__name__}.").partition("\n\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--dsn", help="the database; default: PGQPY_DSN, then libpq's environment")
    parser.add_argument("--read-dsn", metavar="DSN", help="a standby, on which events are read")
    parser.add_argument("--queue", help="the queue, instead of the class's")
    parser.add_argument("--consumer", help="the name, instead of the class's")
    parser.add_argument("--master", metavar="URL", help="where Spark runs; default: local[*]")
    parser.add_argument("--once", action="store_true", help="process what is there now, and end")
    given = vars(parser.parse_args())
    dsn, master, once = map(given.pop, ("dsn", "master", "once"))
    log_batches()
    try:
        # Constructors of subclasses need not take what is not given.
        names = {name: value for name, value in given.items() if value is not None}
        cls(dsn, spark=program_session(master), **names).run(until_empty=once)
    except KeyboardInterrupt:
        return 130
    except PgqError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        logger.error("failed", exc_info=error)
        return 1
    return 0


def log_batches() -> None:
    """Write a line for each batch to standard error."""
    # Logs of other libraries, such as py4j, are of little use.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)


def local_session(
    master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on this machine, which keeps quiet: Java's output goes to a log file.

    Raises `JavaMissingError` if there is no Java that Spark runs on, and
    `RuntimeError`, naming the log, if it does not start.
    """
    require_java()
    # Workers must use the interpreter that has pgqpy, not any "python3".
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Java looks the machine's own name up, which fails without a network.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf().setMaster(master).setAppName("pgqpy")
    for name, value in (_LOCAL | dict(settings or {})).items():
        conf.set(name, value)

    descriptor, log = tempfile.mkstemp(prefix="pgqpy-spark-", suffix=".log")
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": descriptor})  # type: ignore[no-untyped-call]
        SparkContext(gateway=gateway, conf=conf)
    except Exception as error:
        raise RuntimeError(f"Spark did not start; what Java said is in {log}") from error
    finally:
        os.close(descriptor)
    atexit.register(Path(log).unlink, missing_ok=True)
    return SparkSession.builder.getOrCreate()


def pinned(df: DataFrame) -> DataFrame:
    """The DataFrame with a fixed range of ticks for all actions; for Spark Connect.

    There, each action sends the plan again, and the server computes the range again once its cache
    of plans has dropped it. A temporary view keeps the plan, and with it the range, until the
    session ends. In classic Spark every DataFrame is like that.
    """
    view = f"pgq_{uuid4().hex}"
    df.createTempView(view)
    return df.sparkSession.table(view)


# --- Java: says what to install before Spark fails unclearly

MINIMUM = 17


class JavaMissingError(PgqError):
    """Java is missing or too old; the hint says what to install."""

    default_hint = (
        f"Spark needs Java {MINIMUM} or newer. Debian and Ubuntu:"
        " apt-get install openjdk-17-jre-headless. Elsewhere any JDK that JAVA_HOME or"
        " PATH leads to."
    )


def require_java() -> str:
    """The path of the Java that Spark will run. Raises `JavaMissingError` if there is none."""
    java = _find_java()
    if java is None:
        raise JavaMissingError("no Java found")
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissingError(f"{java} does not run: {error}") from error
    version = java_version(output)
    if version is None or version < MINIMUM:
        raise JavaMissingError(f"{java} is Java {version or 'of unknown version'}")
    return java


def java_version(output: str) -> int | None:
    """The major version in the output of ``java -version``; Java 8 called itself 1.8."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None


def _find_java() -> str | None:
    # Spark's own rule: JAVA_HOME wins, whatever PATH says.
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        return str(java) if java.exists() else None
    return shutil.which("java")
