"""``pgqpy spark``: programs that compute in Spark.

Spark is imported only when a command runs: the import is slow, and Spark is optional.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from pgqpy.cli._base.arguments import CONSUMER, MOMENT, QUEUE, TEXT, Parsed, queue_argument
from pgqpy.cli._base.command import Exclusive, Group
from pgqpy.cli._base.database import connect, one_queue
from pgqpy.cli._base.errors import CliError, first_line
from pgqpy.cli._base.load_class import load_class
from pgqpy.cli._base.output import json_option, print_json, print_table, say, wants_json
from pgqpy.errors import PgqError
from pgqpy.log import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgqpy_consumers.spark import SparkConsumer
    from pgqpy_consumers.spark._archive_log import Commit, FileFormat

#: Repeats pgqpy_consumers.spark._archive_log, which imports Spark.
PARTITIONS = ("day", "month", "hour", "type")

master_option = click.option(
    "--master",
    type=TEXT,
    metavar="URL",
    help="Where Spark runs; default: as spark-submit says, else local[*].",
)
read_dsn_option = click.option(
    "--read-dsn",
    cls=Exclusive,
    type=TEXT,
    metavar="DSN",
    help="A standby of the database's server, on which executors read.",
)
shards_option = click.option(
    "--shards",
    cls=Exclusive,
    type=TEXT,
    metavar="FILE",
    help="All shards of this map, instead of --dsn.",
)


def _partitions(value: str) -> tuple[str, ...]:
    """Return names of partitions, separated by commas."""
    names = tuple(name.strip() for name in value.split(","))
    if not set(names) <= set(PARTITIONS) or len(set(names)) < len(names):
        raise ValueError(f"{value!r} is not some of {', '.join(PARTITIONS)}, each once")
    return names


def _ids(value: str) -> tuple[int | None, int | None]:
    """Return the ends of a range of event ids: ``17..40``, ``17..`` or ``..40``."""
    first, dots, last = value.partition("..")
    try:
        ends = (int(first) if first else None, int(last) if last else None)
    except ValueError:
        dots = ""
    if not dots:
        raise ValueError(f"{value!r} is no range of ids such as 17..40, 17.. or ..40")
    return ends


@click.group(cls=Group)
def spark() -> None:
    """Compute in Spark (needs pgqpy[spark] and Java 17 or newer)."""


def spark_session(master: str | None) -> SparkSession:
    """Return the session. Raises CliError without Spark, JavaMissingError without Java."""
    try:
        from pgqpy_consumers.spark.session import program_session
    except ImportError as error:
        raise CliError(str(error)) from error
    return program_session(master)


@spark.command("run", role="pgq_reader")
@click.option("--once", is_flag=True, help="Process what is there now, and end; for schedulers.")
@master_option
@shards_option
@read_dsn_option
@click.option("--consumer", type=CONSUMER, help="The name, instead of the class's.")
@click.option("--queue", type=QUEUE, help="The queue, instead of the class's.")
@click.argument("target", metavar="MODULE_OR_FILE:CLASS", type=TEXT)
def run(
    dsn: str,
    target: str,
    queue: str | None,
    consumer: str | None,
    master: str | None,
    shards: str | None,
    read_dsn: str | None,
    once: bool,
) -> None:
    """Run a SparkConsumer.

    It runs until SIGTERM or Ctrl-C, which end it after the current batch. The class is found in a
    file, or in a module that can be imported from here. The consumer is registered if it is not.

    With --once it processes the ticks that exist when it starts, without waiting for more, and
    ends. Then nothing is retried: the next run does that. Exit codes: 0 when it was stopped or is
    done, 1 when it failed.

    Examples:
      pgqpy spark run delays.py:DelaysByMonth
      pgqpy spark run shop.reports:DailyRevenue --master 'local[4]'
      pgqpy spark run delays.py:DelaysByMonth --once
    """
    consumer_class = load(target)
    from pgqpy_consumers.spark.session import log_batches

    log_batches()
    where: Any = {"dsn": dsn} if shards is None else {"shards": shards}
    if read_dsn is not None:
        where["read_dsn"] = read_dsn
    made = consumer_class(**where, spark=spark_session(master), queue=queue, consumer=consumer)
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
    """Return the class that ``module:Class`` or ``path/to/file.py:Class`` names."""
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


@spark.command("archive", role="pgq_reader")
@queue_argument
@click.argument("path", type=TEXT)
@click.option(
    "--consumer", type=CONSUMER, default="archive", show_default=True, help="Its name in the queue."
)
@click.option(
    "--partition-by",
    type=Parsed("names", _partitions),
    metavar="NAMES",
    help=f"Below the queue: some of {', '.join(PARTITIONS)}, with commas. A new archive: day.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "avro"]),
    help="Of the files; Avro has payloads typed by their contracts. A new archive: parquet.",
)
@click.option(
    "--collect",
    type=click.FloatRange(min=0),
    default=10,
    show_default=True,
    metavar="MINUTES",
    help="Let events gather for this time, or until they are a million, so that files are few.",
)
@click.option("--once", is_flag=True, help="Archive what is there now, and end; for schedulers.")
@click.option("--accept-gap", is_flag=True, help="Go on after events that are gone for good.")
@master_option
@shards_option
@read_dsn_option
def archive(
    dsn: str,
    queue: str,
    path: str,
    consumer: str,
    partition_by: tuple[str, ...] | None,
    file_format: FileFormat | None,
    collect: float,
    once: bool,
    accept_gap: bool,
    master: str | None,
    shards: str | None,
    read_dsn: str | None,
) -> None:
    """Write a queue's history as Parquet, or as Avro.

    Each event is written once, even if processes are killed, into the directory PATH on any file
    system that Spark knows, partitioned by queue and day. It begins at the oldest events of the
    queue, continues where the archive ends, and runs until SIGTERM or Ctrl-C. The consumer keeps
    events from rotation until they are archived. An archive can hold several queues.

    With --shards it archives all databases of a shard map, with a column shard.

    Examples:
      pgqpy spark archive orders /lake/events
      pgqpy spark archive orders s3a://lake/events --once
      pgqpy spark archive orders hdfs:///events --partition-by month,type
      pgqpy spark archive orders /lake/events --shards shards.toml
    """
    spark = spark_session(master)
    from pgqpy_consumers.spark.archive import Archive

    class Archiver(Archive):
        collect_for = timedelta(minutes=collect) if collect else None

        def on_commit(self, commit: Commit) -> None:
            of = queue if self.shard is None else f"{queue} in shard {self.shard}"
            say(
                f"archived {commit.events:,} events of queue {of} up to tick"
                f" {commit.end.tick}; files: {len(commit.files)}"
            )

    Archiver.partition_by = partition_by
    Archiver.file_format = file_format
    Archiver.accept_gap = accept_gap
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    if shards is not None:
        Archiver.show_progress = False
        Archiver.run_shards(
            shards, path=path, spark=spark, queue=queue, consumer=consumer, until_empty=once
        )
        return
    archiver = Archiver(
        dsn, path=path, spark=spark, queue=queue, consumer=consumer, read_dsn=read_dsn
    )
    try:
        archiver.run(until_empty=once)
    except Exception as error:
        if archiver.failed_batch is None or isinstance(error, PgqError):
            raise
        raise CliError(
            f"batch {archiver.failed_batch.id} failed: {type(error).__name__}: {error}",
            "nothing of it is archived; the next run gets the same batch again",
        ) from error


@spark.command("archive-info")
@click.argument("path", type=TEXT)
@json_option
@master_option
def archive_info(path: str, master: str | None) -> None:
    """Show what is in an archive.

    For each queue: how much was written, of which ticks, and when last. Events that were deleted
    from the archive afterwards still count.

    Examples:
      pgqpy spark archive-info s3a://lake/events
    """
    spark = spark_session(master)
    from pgqpy_consumers.spark._archive_log import ArchiveLog, Directory, partitions, queues, shards

    directory = Directory(spark, path)
    by, files = partitions(directory)
    newest = [
        ({"queue": queue} | ({} if shard is None else {"shard": shard}), log.newest())
        for queue in queues(directory)
        for shard in shards(directory, queue)
        for log in [ArchiveLog(directory, queue, shard)]
    ]
    found: list[dict[str, Any]] = [
        {
            **place,
            "events": last.total_events,
            "files": last.total_files,
            "after_tick": last.first_tick,
            "last_tick": last.end.tick,
            "archived": last.time,
        }
        for place, last in newest
        if last is not None
    ]
    if wants_json():
        print_json({"partition_by": ["queue", *by], "files": files, "queues": found})
        return
    say(f"{files}, partitioned by queue, {', '.join(by)}")
    if found:
        print_table(found, {key.replace("_", " ").capitalize(): key for key in found[0]})


@spark.command("replay", role="pgq_writer")
@click.argument("path", type=TEXT)
@queue_argument
@click.option("--source", type=TEXT, metavar="QUEUE", help="The queue they were in, if several.")
@click.option("--shard", type=TEXT, metavar="NAME", help="Of this shard, if it has shards.")
@click.option("--from", "from_time", type=MOMENT, help="Of this time or later.")
@click.option("--to", "to_time", type=MOMENT, help="Of before this time.")
@click.option("--ids", type=Parsed("ids", _ids), metavar="A..B", help="From A up to B.")
@click.option("--type", "types", type=TEXT, multiple=True, help="Of this type; can be repeated.")
@click.option("--where", type=TEXT, metavar="SQL", help="A condition in Spark's SQL.")
@click.option(
    "--mark",
    type=click.Choice([f"ev_extra{number}" for number in range(1, 5)]),
    help="Put queue, id and time of the original into this column.",
)
@click.option("--dry-run", is_flag=True, help="Only show how many there are, by day and type.")
@json_option
@master_option
def replay(
    dsn: str,
    path: str,
    queue: str,
    source: str | None,
    ids: tuple[int | None, int | None] | None,
    mark: str | None,
    dry_run: bool,
    master: str | None,
    **which: Any,
) -> None:
    """Insert events from an archive into a queue again.

    They keep their order and extra fields, and get new ids and times. All are inserted at once,
    or none if it is interrupted. A second run inserts them a second time.

    Examples:
      pgqpy spark replay s3a://lake/events orders_again --from 2026-11-01 --to 2026-11-08
      pgqpy spark replay /lake/events orders --type paid --type refunded --dry-run
      pgqpy spark replay /lake/events orders --ids 1200..1300 --mark ev_extra4
    """
    with connect(dsn) as conn:
        one_queue(conn, queue)
    spark = spark_session(master)
    from pgqpy_consumers.spark.replay import Replay, Selection

    first, last = ids or (None, None)
    again = Replay(spark, path, Selection(queue=source, first_id=first, last_id=last, **which))
    counts = again.counts()
    events = sum(each.events for each in counts)
    if not dry_run and events:
        again.send(dsn, queue, mark=mark)
    if wants_json():
        print_json({"source": again.queue, "sent": not dry_run, "events": events, "counts": counts})
    elif dry_run:
        print_table(counts, {"Day": "day", "Type": "type", "Events": "events"})
        say(f"{events:,} events of queue {again.queue} would be sent into queue {queue}")
    else:
        say(f"sent {events:,} events of queue {again.queue} into queue {queue}")
