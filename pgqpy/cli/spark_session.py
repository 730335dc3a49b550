"""Spark, for commands that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgqpy.cli.errors import CliError
from pgqpy.cli.names import TEXT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

master_option = click.option(
    "--master",
    type=TEXT,
    metavar="URL",
    help="Where Spark runs; default: as spark-submit says, else local[*].",
)


def spark_session(master: str | None) -> SparkSession:
    """The session. Raises CliError if Spark is not installed, JavaMissingError if Java is not."""
    try:
        from pgqpy_consumers.spark import get_session
    except ImportError as error:
        raise CliError(str(error)) from error
    from pyspark.logger import PySparkLogger

    # What Spark logs when it refuses a query is raised as well.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    return get_session(master)
