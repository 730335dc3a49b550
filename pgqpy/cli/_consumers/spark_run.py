"""``pgqpy spark run``: run a `SparkConsumer` by the name of its class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgqpy._runtime.log import logger
from pgqpy.cli._base.command import Command, dsn_option
from pgqpy.cli._base.errors import CliError, first_line
from pgqpy.cli._base.load_class import load_class
from pgqpy.cli._base.names import CONSUMER, QUEUE, TEXT
from pgqpy.cli._consumers.spark_session import master_option, spark_session

if TYPE_CHECKING:
    from pgqpy_consumers.spark import SparkConsumer


@click.command(
    "run",
    cls=Command,
    role="pgq_reader",
    examples=(
        "pgqpy spark run delays.py:DelaysByMonth",
        "pgqpy spark run shop.reports:DailyRevenue --master 'local[4]'",
        "pgqpy spark run delays.py:DelaysByMonth --once",
    ),
)
@dsn_option
@click.option("--once", is_flag=True, help="Process what is there now, and end; for schedulers.")
@master_option
@click.option("--consumer", type=CONSUMER, help="The name, instead of the class's.")
@click.option("--queue", type=QUEUE, help="The queue, instead of the class's.")
@click.argument("target", metavar="MODULE_OR_FILE:CLASS", type=TEXT)
def run(
    dsn: str,
    target: str,
    queue: str | None,
    consumer: str | None,
    master: str | None,
    once: bool,
) -> None:
    """Run a SparkConsumer.

    It runs until SIGTERM or Ctrl-C, which end it after the current batch. The class is found in a
    file, or in a module that can be imported from here. The consumer is registered if it is not.

    With --once it processes the ticks that exist when it starts, without waiting for more, and
    ends. Then nothing is retried: the next run does that. Exit codes: 0 when it was stopped or is
    done, 1 when it failed.
    """
    consumer_class = load(target)
    from pgqpy_consumers.spark._program import log_batches

    log_batches()
    made = consumer_class(dsn, spark=spark_session(master), queue=queue, consumer=consumer)
    try:
        made.run(until_empty=once)
    except Exception as error:
        if made.failed_batch is None:
            raise
        batch = made.failed_batch.id
        logger.error("batch %s failed", batch, exc_info=error)
        # Spark's errors have pages; the log has them already.
        raise CliError(
            f"batch {batch} failed: {type(error).__name__}: {first_line(str(error))}",
            "it was rolled back; the next run gets the same batch again",
        ) from error


def load(target: str) -> type[SparkConsumer]:
    """Return the class that ``module:Class`` or ``path/to/file.py:Class`` names.

    Raises CliError if there is none.
    """
    try:
        from pgqpy_consumers.spark import SparkConsumer
    except ImportError as error:
        raise CliError(str(error)) from error
    from pyspark import cloudpickle

    module, found = load_class(
        target,
        lambda each: issubclass(each, SparkConsumer) and each is not SparkConsumer,
        what="SparkConsumer",
        advice="subclass pgqpy_consumers.spark's",
    )
    # Executors get its functions with the tasks: they may not have its file.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return found
