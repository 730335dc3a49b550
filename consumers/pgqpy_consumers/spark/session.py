"""The default Spark session."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pgqpy_consumers.spark.java import require_java

if TYPE_CHECKING:
    from collections.abc import Mapping

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
