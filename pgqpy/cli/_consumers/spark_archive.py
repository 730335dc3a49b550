"""``pgqpy spark archive``: write a queue's history as Parquet, and describe such an archive."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from pgqpy.cli._base.command import Command, dsn_option, json_option
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.names import CONSUMER, QUEUE, TEXT
from pgqpy.cli._base.output import print_json, print_table, say
from pgqpy.cli._consumers.spark_session import master_option, spark_session
from pgqpy.errors import PgqError

if TYPE_CHECKING:
    from pgqpy_consumers.spark.archive import Commit

#: Repeats pgqpy_consumers.spark._archive_log, which imports Spark.
PARTITIONS = ("day", "month", "hour", "type")


class Names(click.ParamType[tuple[str, ...]]):
    """Names of partitions, separated by commas."""

    name = "names"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split them."""
        names = tuple(name.strip() for name in value.split(","))
        for name in names:
            if name not in PARTITIONS or names.count(name) > 1:
                self.fail(
                    f"{value!r} is not some of {', '.join(PARTITIONS)}, each once", param, ctx
                )
        return names


@click.command(
    "archive",
    cls=Command,
    role="pgq_reader",
    examples=(
        "pgqpy spark archive orders /lake/events",
        "pgqpy spark archive orders s3a://lake/events --once",
        "pgqpy spark archive orders hdfs:///events --partition-by month,type",
    ),
)
@dsn_option
@click.argument("queue", type=QUEUE)
@click.argument("path", type=TEXT)
@click.option(
    "--consumer", type=CONSUMER, default="archive", show_default=True, help="Its name in the queue."
)
@click.option(
    "--partition-by",
    type=Names(),
    metavar="NAMES",
    help=f"Below the queue: some of {', '.join(PARTITIONS)}, with commas. A new archive: day.",
)
@click.option(
    "--collect",
    type=click.FloatRange(min=0),
    default=10,
    show_default=True,
    metavar="MINUTES",
    help="Let events gather for so long, so that files are few; or until they are a million.",
)
@click.option("--once", is_flag=True, help="Archive what is there now, and end; for schedulers.")
@click.option("--accept-gap", is_flag=True, help="Go on after events that are gone for good.")
@master_option
def archive(
    dsn: str,
    queue: str,
    path: str,
    consumer: str,
    partition_by: tuple[str, ...] | None,
    collect: float,
    once: bool,
    accept_gap: bool,
    master: str | None,
) -> None:
    """Write a queue's history as Parquet.

    Each event is written once, even if processes are killed, into the directory PATH on any file
    system that Spark knows, partitioned by queue and day. It begins at the oldest events of the
    queue, continues where the archive ends, and runs until SIGTERM or Ctrl-C. The consumer keeps
    events from rotation until they are archived. An archive can hold several queues.
    """
    spark = spark_session(master)
    from pgqpy_consumers.spark.archive import Archive

    class Archiver(Archive):
        collect_for = timedelta(minutes=collect) if collect else None

        def on_commit(self, commit: Commit) -> None:
            say(
                f"archived {commit.events:,} events of queue {queue} up to tick"
                f" {commit.end.tick}; files: {len(commit.files)}"
            )

    Archiver.partition_by = partition_by
    Archiver.accept_gap = accept_gap
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    archiver = Archiver(dsn, path=path, spark=spark, queue=queue, consumer=consumer)
    try:
        archiver.run(until_empty=once)
    except Exception as error:
        if archiver.failed_batch is None or isinstance(error, PgqError):
            raise
        raise CliError(
            f"batch {archiver.failed_batch.id} failed: {type(error).__name__}: {error}",
            "nothing of it is archived; the next run gets the same batch again",
        ) from error


@click.command(
    "archive-info",
    cls=Command,
    examples=("pgqpy spark archive-info s3a://lake/events",),
)
@click.argument("path", type=TEXT)
@json_option
@master_option
def archive_info(path: str, as_json: bool, master: str | None) -> None:
    """Show what is in an archive.

    For each queue: how much was written, of which ticks, and when last. Events that were deleted
    from the archive afterwards still count.
    """
    spark = spark_session(master)
    from pgqpy_consumers.spark._archive_log import ArchiveLog, Directory, partitions, queues

    directory = Directory(spark, path)
    by = partitions(directory)
    newest = [(queue, ArchiveLog(directory, queue).newest()) for queue in queues(directory)]
    rows = [
        (queue, last.total_events, last.total_files, last.first_tick, last.end.tick, last.time)
        for queue, last in newest
        if last is not None
    ]
    if as_json:
        keys = ("queue", "events", "files", "after_tick", "last_tick", "archived")
        archived = [dict(zip(keys, row, strict=True)) for row in rows]
        print_json({"partition_by": ["queue", *by], "queues": archived})
    else:
        say(f"partitioned by queue, {', '.join(by)}")
        print_table(("Queue", "Events", "Files", "After tick", "Last tick", "Archived"), rows)
