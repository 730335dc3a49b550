"""Spark, for commands that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.names import TEXT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

master_option = click.option(
    "--master",
    type=TEXT,
    metavar="URL",
    help="Where Spark runs; default: as spark-submit says, else local[*].",
)


def spark_session(master: str | None) -> SparkSession:
    """Return the session. Raises CliError if Spark is not installed, JavaMissingError without
    Java."""
    try:
        from pgqpy_consumers.spark.session import program_session
    except ImportError as error:
        raise CliError(str(error)) from error
    return program_session(master)
