"""Archiving: what lies in Parquet is what was committed, each event once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import pgqpy
from pgqpy.errors import ConsumerInUse
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connect, Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgqpy_consumers.spark.archive import Archive

pytestmark = pytest.mark.spark

MakeArchive: TypeAlias = "Callable[..., Archive]"

COLUMNS = [
    "ev_id",
    "ev_time",
    "ev_txid",
    "ev_retry",
    "ev_type",
    "ev_data",
    "ev_extra1",
    "ev_extra2",
    "ev_extra3",
    "ev_extra4",
]
INSERT = "select pgq.insert_event_raw(%s, null, %s, null, null, %s, %s, %s, %s, %s, %s)"


@pytest.fixture
def archive(spark: SparkSession, dsn: str, queue: str, tmp_path: Path) -> MakeArchive:
    """``archive()``: registered, archives `queue` into a directory of the test."""
    from pgqpy_consumers.spark.archive import Archive

    def make(**attributes: Any) -> Archive:
        name = attributes.pop("consumer", None)
        path = attributes.pop("path", str(tmp_path / "lake"))
        archiver_class: type[Archive] = type("Archiver", (Archive,), attributes)
        archiver = archiver_class(dsn, path=path, spark=spark, queue=queue, consumer=name)
        archiver.register()
        return archiver

    return make


def fill(conn: Connection, queue: str, count: int = 10) -> list[int]:
    ids = [ops.insert(conn, queue, f"event {n}") for n in range(count)]
    ops.tick(conn, queue)
    return ids


def ids(spark: SparkSession, lake: Path) -> list[int]:
    return sorted(row.ev_id for row in spark.read.parquet(str(lake)).select("ev_id").collect())


def files(lake: Path) -> list[str]:
    """The rows that plain Spark reads."""
    return sorted(
        str(path.relative_to(lake))
        for path in lake.rglob("*.parquet")
        if not str(path.relative_to(lake)).startswith("_")
    )


def test_all_columns_are_as_they_were(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    for values in [
        ("2026-11-21 08:30:00.123457+00", "paid", '{"a": "\\u0000"}', "public.t", "", None, "ü🐘"),
        ("1900-01-01 00:00:00+00", None, None, None, None, None, None),
        ("0001-01-01 00:00:00+00", "", "", "", "", "", ""),
        ("9999-12-31 23:59:59.999999+00", "\t\n", "x" * 100_000, None, None, None, None),
    ]:
        conn.execute(INSERT, (queue, *values))
    ops.tick(conn, queue)
    assert archive().run_once()

    # As texts: Python has no such times in all zones.
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    stored = session.read.parquet(str(tmp_path / "lake"))
    times = {
        "spark": "date_format(ev_time, 'yyyy-MM-dd HH:mm:ss.SSSSSS')",
        "server": "to_char(ev_time at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
    }
    spark_columns = [times["spark"] if name == "ev_time" else name for name in COLUMNS]
    columns = [times["server"] if name == "ev_time" else name for name in COLUMNS]
    seen = stored.selectExpr(*spark_columns).orderBy("ev_id").collect()
    query = f"select {', '.join(columns)} from pgq.event_template order by ev_id"
    assert [tuple(row) for row in seen] == conn.execute(query.encode()).fetchall()
    assert [row.queue for row in stored.select("queue").distinct().collect()] == [queue]


def test_times_that_spark_does_not_have_are_null_and_in_a_partition_of_their_own(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    for time in ("infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "10000-01-01 00:00:00+00"):
        conn.execute(INSERT, (queue, time, "type", "data", None, None, None, None))
    ops.tick(conn, queue)
    archive().run_once()
    rows = spark.read.parquet(str(tmp_path / "lake")).select("ev_time", "ev_data").collect()
    assert [tuple(row) for row in rows] == [(None, "data")] * 4
    assert [Path(name).parts[1] for name in files(tmp_path / "lake")] == [
        "day=__HIVE_DEFAULT_PARTITION__"
    ]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_days_are_those_of_utc(
    spark: SparkSession,
    conn: Connection,
    queue: str,
    archive: MakeArchive,
    tmp_path: Path,
    zone: str,
) -> None:
    for time in ("2026-03-28 23:59:59.999999+00", "2026-03-29 00:00:00+00", "2026-03-30 00:00+02"):
        conn.execute(INSERT, (queue, time, "type", time, None, None, None, None))
    ops.tick(conn, queue)
    # The defaults of a new session.
    jvm_conf = spark.sparkContext._jsc.sc().conf()
    before = jvm_conf.get("spark.sql.session.timeZone")
    jvm_conf.set("spark.sql.session.timeZone", zone)
    try:
        archive().run_once()
    finally:
        jvm_conf.set("spark.sql.session.timeZone", before)
    stored = spark.read.parquet(str(tmp_path / "lake"))
    rows = {row.ev_data: row.day for row in stored.select("ev_data", "day").collect()}
    assert rows == {
        "2026-03-28 23:59:59.999999+00": date(2026, 3, 28),
        "2026-03-29 00:00:00+00": date(2026, 3, 29),
        "2026-03-30 00:00+02": date(2026, 3, 29),
    }


def test_what_others_read_are_times_in_microseconds(
    conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    import pyarrow.dataset as ds

    conn.execute(INSERT, (queue, "1883-11-18 12:03:57.000001+00", "t", "d", *[None] * 4))
    ops.tick(conn, queue)
    archive().run_once()
    table = ds.dataset(tmp_path / "lake", partitioning="hive").to_table()
    assert table["ev_time"].to_pylist() == [datetime(1883, 11, 18, 12, 3, 57, 1, tzinfo=UTC)]


def test_a_batch_is_few_files_in_order(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    archiver = archive(events_per_file=60, partition_by=("type",))
    for period in ("ticker_max_lag", "ticker_idle_period"):
        conn.execute("select pgq.set_queue_config(%s, %s, '0')", (queue, period))
    conn.execute(
        "select pgq.insert_event(%s, 'type ' || n %% 3, n::text) from generate_series(1, 120) n",
        (queue,),
    )
    conn.execute("select pgq.ticker(%s)", (queue,))
    archiver.run_once()
    lake = tmp_path / "lake"
    assert len(files(lake)) == 6
    for name in files(lake):
        stored = pq.read_table(lake / name, partitioning=None)["ev_id"].to_pylist()
        assert stored == sorted(stored)
        assert len(stored) in (20, 21)
    assert sorted({Path(name).parts[1] for name in files(lake)}) == [
        "type=type 0",
        "type=type 1",
        "type=type 2",
    ]
    assert "ev_type" in pq.read_schema(lake / files(lake)[0]).names


def test_whatever_types_are_like_they_are_archived_within_the_archive(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    types = ["../../x", "/x", ".", "", "%2e", "a:b*?", "\n\t\x01", "x" * 300, "/" * 80, "ü☃" * 100]
    for type_ in types:
        conn.execute("select pgq.insert_event(%s, %s, 'd')", (queue, type_))
    ops.tick(conn, queue)
    archiver = archive(partition_by=("type",))
    archiver.run_once()
    stored = spark.read.parquet(str(tmp_path / "lake"))
    assert sorted(row.ev_type for row in stored.select("ev_type").collect()) == sorted(types)
    assert [each.name for each in tmp_path.iterdir()] == ["lake"]


def test_batch_after_batch_each_event_once(
    spark: SparkSession,
    conn: Connection,
    connect: Connect,
    queue: str,
    archive: MakeArchive,
    tmp_path: Path,
) -> None:
    archiver = archive()
    late = connect(autocommit=False)
    committed = [ops.insert(late, queue, "late")]
    for _ in range(3):
        committed += fill(conn, queue)
        assert archiver.run_once()
    late.commit()
    committed += fill(conn, queue)
    assert archiver.run_once()
    assert not archiver.run_once()
    assert ids(spark, tmp_path / "lake") == sorted(committed)
    assert not list(tmp_path.rglob("staging/*"))


def test_of_some_types_only(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    for kind in ("o'clock", "other", None):
        conn.execute("select pgq.insert_event(%s, %s, 'data')", (queue, kind))
    ops.tick(conn, queue)
    archive(event_types=["o'clock", "late"]).run_once()
    stored = spark.read.parquet(str(tmp_path / "lake"))
    assert [row.ev_type for row in stored.select("ev_type").collect()] == ["o'clock"]


def test_a_new_archive_begins_at_the_oldest_events_there_are(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    committed = fill(conn, queue)
    archive().run_once()
    assert ids(spark, tmp_path / "lake") == committed


def test_a_consumer_moved_back_archives_nothing_twice(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    archiver = archive(batch_size=1)
    committed = fill(conn, queue)
    archiver.run_once()
    committed += fill(conn, queue)
    archiver.run_once()
    first = ops.value(conn, "select min(tick_id) from pgq.tick")
    conn.execute("select pgq.register_consumer_at(%s, 'archive', %s)", (queue, first))
    committed += fill(conn, queue)
    while archiver.run_once():
        pass
    # In one batch, which overlaps what is archived.
    conn.execute("select pgq.register_consumer_at(%s, 'archive', %s)", (queue, first))
    committed += fill(conn, queue)
    archive().run_once()
    assert ids(spark, tmp_path / "lake") == committed


def test_a_consumer_moved_ahead_leaves_nothing_out(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    archiver = archive()
    committed = fill(conn, queue)
    archiver.run_once()
    committed += fill(conn, queue)
    conn.execute("select pgq.register_consumer(%s, 'other')", (queue,))
    conn.execute("select pgq.unregister_consumer(%s, 'archive')", (queue,))
    conn.execute("select pgq.register_consumer(%s, 'archive')", (queue,))
    committed += fill(conn, queue)
    archiver.run_once()
    assert ids(spark, tmp_path / "lake") == committed


def test_an_idle_queue_is_no_gap(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    ops.rotate_whenever_asked(conn, queue)
    for period in ("ticker_max_lag", "ticker_idle_period"):
        conn.execute("select pgq.set_queue_config(%s, %s, '0')", (queue, period))
    archiver = archive()
    committed = fill(conn, queue)
    archiver.run_once()
    # The tick that the archive ends with was an early one, which the log forgets.
    conn.execute("update pgq.tick_0 set tick_early = true")
    for _ in range(8):
        conn.execute("select pgq.ticker(%s)", (queue,))
        assert not archiver.run_once()
        ops.rotate_logs(conn)
        assert ops.rotate(conn, queue)
    committed += fill(conn, queue)
    assert archiver.run_once()
    assert ids(spark, tmp_path / "lake") == committed


def test_events_that_are_gone_are_an_error_until_that_is_accepted(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    from pgqpy_consumers.spark.archive import ArchiveGap

    ops.rotate_whenever_asked(conn, queue)
    archiver = archive()
    committed = fill(conn, queue)
    archiver.run_once()
    conn.execute("select pgq.unregister_consumer(%s, 'archive')", (queue,))
    fill(conn, queue)
    for _ in range(8):
        ops.tick(conn, queue)
        ops.rotate(conn, queue)
    conn.execute("select pgq.register_consumer(%s, 'archive')", (queue,))
    committed += fill(conn, queue)
    with pytest.raises(ArchiveGap, match="are gone"):
        archiver.run_once()
    with pytest.raises(ArchiveGap):
        archiver.run()
    assert archive(accept_gap=True).run_once()
    assert ids(spark, tmp_path / "lake") == committed


def test_another_queue_of_the_same_name_is_refused(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    from pgqpy_consumers.spark._ranges import ForeignOffset

    archiver = archive()
    committed = fill(conn, queue)
    archiver.run_once()
    conn.execute("select pgq.drop_queue(%s, true)", (queue,))
    conn.execute("select pgq.create_queue(%s)", (queue,))
    with pytest.raises(ForeignOffset, match=str(tmp_path)) as refused:
        archiver.run()
    assert "another directory" in str(refused.value.hint)
    ops.register(conn, queue, "archive")
    fill(conn, queue)
    with pytest.raises(ForeignOffset):
        archiver.run_once()
    assert ids(spark, tmp_path / "lake") == committed


def test_the_sessions_name_says_what_is_archived_and_where(
    dsn: str, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    from pgqpy_consumers.spark.archive import Archive

    told = "select application_name from pg_stat_activity where pid = %s"
    names: list[str] = []

    def on_commit(archiver: Archive, _: object) -> None:
        pid = archiver.conn.info.backend_pid
        names.extend(name for (name,) in conn.execute(told, [pid]).fetchall())

    fill(conn, queue)
    archive(on_commit=on_commit).run_once()
    assert names == [f"pgqpy archive {pgqpy.__version__}: {queue} to {tmp_path}/lake"[:63]]
    secret = Archive(dsn, queue="q", path="s3a://key:se/cret@bucket/lake")
    assert secret._work() == ": q to s3a://key@bucket/lake"


def test_archivers_of_one_directory_take_turns(
    spark: SparkSession,
    conn: Connection,
    connect: Connect,
    queue: str,
    archive: MakeArchive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pgqpy_consumers.spark.archive as module

    one, two = archive(), archive(consumer="second")
    committed = fill(conn, queue)
    one.run_once()
    committed += fill(conn, queue)
    two.run_once()
    one.run_once()
    assert ids(spark, tmp_path / "lake") == committed

    fill(conn, queue)
    monkeypatch.setattr(module, "_WAIT", "set local lock_timeout = '1ms'")
    holder = connect(autocommit=False)
    log = f"file:{tmp_path}/lake/_pgqpy/queue={queue}"
    holder.execute("select pg_advisory_xact_lock(%s, hashtext(%s))", (module.LOCK, log))
    with pytest.raises(ConsumerInUse, match="another process is archiving"):
        one.run_once()
    # Another directory is another matter.
    assert archive(path=str(tmp_path / "other"), consumer="third").run_once()


def test_deleted_files_stay_deleted(
    spark: SparkSession, conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    archiver = archive()
    fill(conn, queue)
    archiver.run_once()
    for path in files(tmp_path / "lake"):
        (tmp_path / "lake" / path).unlink()
    committed = fill(conn, queue)
    archiver.run_once()
    assert ids(spark, tmp_path / "lake") == committed


def test_queues_with_odd_names_share_a_directory(
    spark: SparkSession,
    conn: Connection,
    queue: str,
    archive: MakeArchive,
    dsn: str,
    tmp_path: Path,
) -> None:
    from pgqpy_consumers.spark._archive_log import Directory, queues
    from pgqpy_consumers.spark.archive import Archive

    names = [queue, "..", "a/b=c%", "Schlüssel 🐘", "007"]
    for name in names[1:]:
        conn.execute("select pgq.create_queue(%s)", (name,))
    for name in names:
        fill(conn, name, 1)
        archiver = Archive(dsn, path=str(tmp_path / "lake"), spark=spark, queue=name)
        archiver.register()
        assert archiver.run_once()
    assert sorted(queues(Directory(spark, str(tmp_path / "lake")))) == sorted(names)
    stored = spark.read.parquet(str(tmp_path / "lake"))
    assert sorted(row.queue for row in stored.select("queue").collect()) == sorted(names)


def test_an_archive_keeps_its_partitions(
    conn: Connection, queue: str, archive: MakeArchive, tmp_path: Path
) -> None:
    from pgqpy_consumers.spark._archive_log import ArchiveError

    archive(partition_by=["month", "type"])
    with pytest.raises(ArchiveError, match="is partitioned by month,type, not by day"):
        archive(partition_by=["day"])
    archive()


def test_the_log_keeps_its_newest_entries(
    spark: SparkSession,
    conn: Connection,
    queue: str,
    archive: MakeArchive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pgqpy_consumers.spark._archive_log as module

    monkeypatch.setattr(module, "KEPT", 2)
    archiver = archive()
    for _ in range(4):
        fill(conn, queue, 1)
        archiver.run_once()
    log = tmp_path / "lake" / "_pgqpy" / f"queue={queue}" / "log"
    assert sorted(path.name for path in log.glob("*.json")) == [
        f"{number:020d}.json" for number in (2, 3, 4)
    ]


def test_the_command_archives_what_is_there(
    spark: SparkSession, cli: Cli, conn: Connection, queue: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    committed = fill(conn, queue)
    said = cli.ok("spark", "archive", queue, str(lake), "--once")
    assert said.splitlines()[-1].startswith(f"archived 10 events of queue {queue} up to tick ")
    assert ids(spark, lake) == committed
    assert "archived" not in cli.ok("spark", "archive", queue, str(lake), "--once")
    info = cli.json("spark", "archive-info", str(lake))
    assert info["partition_by"] == ["queue", "day"]
    assert [(each["queue"], each["events"], each["files"]) for each in info["queues"]] == [
        (queue, 10, 1)
    ]
    assert queue in cli.ok("spark", "archive-info", str(lake))


def test_the_command_says_what_is_wrong(
    spark: SparkSession, cli: Cli, conn: Connection, queue: str, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    assert "does not exist" in cli.fails("spark", "archive", "nowhere", lake, "--once")
    assert not Path(lake).exists()
    assert "is no archive" in cli.fails("spark", "archive-info", str(tmp_path))
    assert "nofs" in cli.fails("spark", "archive", queue, "nofs://x/y", "--once")
    (tmp_path / "file").touch()
    assert "error: " in cli.fails("spark", "archive", queue, str(tmp_path / "file"), "--once")
    cli.fails("spark", "archive", queue, lake, "--partition-by", "week", exit_code=2)
