"""Archiving: what lies in Parquet is what was committed, each event once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import pgqpy
from pgqpy.errors import ConsumerInUse
from pgqpy_consumers.spark import EVENT_SCHEMA
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connect, Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pgqpy_consumers.spark.archive import Archive

pytestmark = pytest.mark.spark

INSERT = "select pgq.insert_event_raw(%s, null, %s, null, null, %s, %s, %s, %s, %s, %s)"


@dataclass(frozen=True)
class Lake:
    """A queue, and the directory that it is archived into."""

    spark: SparkSession
    conn: Connection
    dsn: str
    queue: str
    path: Path

    def archiver(self, path: Path | None = None, **attributes: Any) -> Archive:
        """One that is registered."""
        from pgqpy_consumers.spark.archive import Archive

        names = {name: attributes.pop(name, None) for name in ("queue", "consumer")}
        archiver_class: type[Archive] = type("Archiver", (Archive,), attributes)
        names["queue"] = names["queue"] or self.queue
        made = archiver_class(self.dsn, path=str(path or self.path), spark=self.spark, **names)
        made.register()
        return made

    def insert(self, *events: tuple[str | None, ...]) -> None:
        """Events by time, type, data and extras, and a tick behind them."""
        for event in events:
            self.conn.execute(INSERT, (self.queue, *event, *[None] * (7 - len(event))))
        ops.tick(self.conn, self.queue)

    def fill(self, count: int = 10) -> list[int]:
        """Some events and a tick; returns their ids."""
        ids = [ops.insert(self.conn, self.queue, f"event {n}") for n in range(count)]
        ops.tick(self.conn, self.queue)
        return ids

    def df(self) -> DataFrame:
        """The events, as Spark reads them."""
        return self.spark.read.parquet(str(self.path))

    def column(self, name: str) -> list[Any]:
        """A column of the events, as others read it, sorted."""
        found = pyarrow.dataset.dataset(self.path, partitioning="hive").to_table(columns=[name])
        return sorted(found[name].to_pylist())

    def ids(self) -> list[int]:
        """The events."""
        return self.column("ev_id")

    def files(self) -> list[str]:
        """The files that readers of Parquet see."""
        names = (str(file.relative_to(self.path)) for file in self.path.rglob("*.parquet"))
        return sorted(name for name in names if not name.startswith("_"))


@pytest.fixture
def lake(spark: SparkSession, conn: Connection, dsn: str, queue: str, tmp_path: Path) -> Lake:
    return Lake(spark, conn, dsn, queue, tmp_path / "lake")


def test_all_columns_are_as_they_were(lake: Lake) -> None:
    lake.insert(
        ("2026-11-21 08:30:00.123457+00", "paid", '{"a": "\\u0000"}', "public.t", "", None, "ü🐘"),
        ("1900-01-01 00:00:00+00", None),
        ("0001-01-01 00:00:00+00", *[""] * 6),
        ("9999-12-31 23:59:59.999999+00", "\t\n", "x" * 100_000),
    )
    assert lake.archiver().run_once()

    # As texts: Python has no such times in all zones.
    session = lake.spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    stored = session.read.parquet(str(lake.path))
    spark_time = "date_format(ev_time, 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
    server_time = "to_char(ev_time at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
    names = EVENT_SCHEMA.names
    spark_columns = [spark_time if name == "ev_time" else name for name in names]
    columns = ", ".join(server_time if name == "ev_time" else name for name in names)
    seen = stored.selectExpr(*spark_columns, "queue").orderBy("ev_id").collect()
    query = f"select {columns}, %s from pgq.event_template order by ev_id"
    assert list(map(tuple, seen)) == lake.conn.execute(query.encode(), [lake.queue]).fetchall()


def test_times_that_spark_does_not_have_are_null_and_in_a_partition_of_their_own(
    lake: Lake,
) -> None:
    times = ("infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "10000-01-01 00:00:00+00")
    lake.insert(*((time, "type", "data") for time in times))
    lake.archiver().run_once()
    rows = lake.df().select("ev_time", "ev_data").collect()
    assert [tuple(row) for row in rows] == [(None, "data")] * 4
    assert [Path(name).parts[1] for name in lake.files()] == ["day=__HIVE_DEFAULT_PARTITION__"]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_days_are_those_of_utc(lake: Lake, zone: str) -> None:
    times = ("2026-03-28 23:59:59.999999+00", "2026-03-29 00:00:00+00", "2026-03-30 00:00+02")
    lake.insert(*((time, "type", time) for time in times))
    # The defaults of a new session.
    jvm_conf = lake.spark.sparkContext._jsc.sc().conf()
    before = jvm_conf.get("spark.sql.session.timeZone")
    jvm_conf.set("spark.sql.session.timeZone", zone)
    try:
        lake.archiver().run_once()
    finally:
        jvm_conf.set("spark.sql.session.timeZone", before)
    rows = {row.ev_data: row.day for row in lake.df().select("ev_data", "day").collect()}
    assert rows == {
        "2026-03-28 23:59:59.999999+00": date(2026, 3, 28),
        "2026-03-29 00:00:00+00": date(2026, 3, 29),
        "2026-03-30 00:00+02": date(2026, 3, 29),
    }


def test_what_others_read_are_times_in_microseconds(lake: Lake) -> None:
    lake.insert(("1883-11-18 12:03:57.000001+00", "t", "d"))
    lake.archiver().run_once()
    assert lake.column("ev_time") == [datetime(1883, 11, 18, 12, 3, 57, 1, tzinfo=UTC)]


def test_a_batch_is_few_files_in_order(lake: Lake) -> None:
    archiver = lake.archiver(events_per_file=60, partition_by=("type",))
    for period in ("ticker_max_lag", "ticker_idle_period"):
        lake.conn.execute("select pgq.set_queue_config(%s, %s, '0')", (lake.queue, period))
    lake.conn.execute(
        "select pgq.insert_event(%s, 'type ' || n %% 3, n::text) from generate_series(1, 120) n",
        (lake.queue,),
    )
    lake.conn.execute("select pgq.ticker(%s)", (lake.queue,))
    archiver.run_once()
    assert len(lake.files()) == 6
    for name in lake.files():
        stored = pq.read_table(lake.path / name, partitioning=None)["ev_id"].to_pylist()
        assert stored == sorted(stored)
        assert len(stored) in (20, 21)
    types = {Path(name).parts[1] for name in lake.files()}
    assert types == {"type=type 0", "type=type 1", "type=type 2"}
    assert "ev_type" in pq.read_schema(lake.path / lake.files()[0]).names


def test_whatever_types_are_like_they_are_archived_within_the_archive(lake: Lake) -> None:
    types = ["../../x", "/x", ".", "", "%2e", "a:b*?", "\n\t\x01", "x" * 300, "/" * 80, "ü☃" * 100]
    for type_ in types:
        lake.conn.execute("select pgq.insert_event(%s, %s, 'd')", (lake.queue, type_))
    ops.tick(lake.conn, lake.queue)
    lake.archiver(partition_by=("type",)).run_once()
    assert sorted(row.ev_type for row in lake.df().select("ev_type").collect()) == sorted(types)
    assert [each.name for each in lake.path.parent.iterdir()] == ["lake"]


def test_batch_after_batch_each_event_once(lake: Lake, connect: Connect) -> None:
    archiver = lake.archiver()
    late = connect(autocommit=False)
    committed = [ops.insert(late, lake.queue, "late")]
    for _ in range(3):
        committed += lake.fill()
        assert archiver.run_once()
    late.commit()
    committed += lake.fill()
    assert archiver.run_once()
    assert not archiver.run_once()
    assert lake.ids() == sorted(committed)
    assert not list(lake.path.rglob("staging/*"))


def test_of_some_types_only(lake: Lake) -> None:
    for kind in ("o'clock", "other", None):
        lake.conn.execute("select pgq.insert_event(%s, %s, 'data')", (lake.queue, kind))
    ops.tick(lake.conn, lake.queue)
    lake.archiver(event_types=["o'clock", "late"]).run_once()
    assert lake.column("ev_type") == ["o'clock"]


def test_a_new_archive_begins_at_the_oldest_events_there_are(lake: Lake) -> None:
    committed = lake.fill()
    lake.archiver().run_once()
    assert lake.ids() == committed


def test_a_consumer_moved_back_archives_nothing_twice(lake: Lake) -> None:
    archiver = lake.archiver(batch_size=1)
    committed = lake.fill()
    archiver.run_once()
    committed += lake.fill()
    archiver.run_once()
    first = ops.value(lake.conn, "select min(tick_id) from pgq.tick")
    lake.conn.execute("select pgq.register_consumer_at(%s, 'archive', %s)", (lake.queue, first))
    committed += lake.fill()
    while archiver.run_once():
        pass
    # In one batch, which overlaps what is archived.
    lake.conn.execute("select pgq.register_consumer_at(%s, 'archive', %s)", (lake.queue, first))
    committed += lake.fill()
    lake.archiver().run_once()
    assert lake.ids() == committed


def test_a_consumer_moved_ahead_leaves_nothing_out(lake: Lake) -> None:
    archiver = lake.archiver()
    committed = lake.fill()
    archiver.run_once()
    committed += lake.fill()
    lake.conn.execute("select pgq.register_consumer(%s, 'other')", (lake.queue,))
    lake.conn.execute("select pgq.unregister_consumer(%s, 'archive')", (lake.queue,))
    lake.conn.execute("select pgq.register_consumer(%s, 'archive')", (lake.queue,))
    committed += lake.fill()
    archiver.run_once()
    assert lake.ids() == committed


def test_an_idle_queue_is_no_gap(lake: Lake) -> None:
    ops.rotate_whenever_asked(lake.conn, lake.queue)
    for period in ("ticker_max_lag", "ticker_idle_period"):
        lake.conn.execute("select pgq.set_queue_config(%s, %s, '0')", (lake.queue, period))
    archiver = lake.archiver()
    committed = lake.fill()
    archiver.run_once()
    # The tick that the archive ends with was an early one, which the log forgets.
    lake.conn.execute("update pgq.tick_0 set tick_early = true")
    for _ in range(8):
        lake.conn.execute("select pgq.ticker(%s)", (lake.queue,))
        assert not archiver.run_once()
        ops.rotate_logs(lake.conn)
        assert ops.rotate(lake.conn, lake.queue)
    committed += lake.fill()
    assert archiver.run_once()
    assert lake.ids() == committed


def test_events_that_are_gone_are_an_error_until_that_is_accepted(lake: Lake) -> None:
    from pgqpy_consumers.spark.archive import ArchiveGap

    ops.rotate_whenever_asked(lake.conn, lake.queue)
    archiver = lake.archiver()
    committed = lake.fill()
    archiver.run_once()
    lake.conn.execute("select pgq.unregister_consumer(%s, 'archive')", (lake.queue,))
    lake.fill()
    for _ in range(8):
        ops.tick(lake.conn, lake.queue)
        ops.rotate(lake.conn, lake.queue)
    lake.conn.execute("select pgq.register_consumer(%s, 'archive')", (lake.queue,))
    committed += lake.fill()
    with pytest.raises(ArchiveGap, match="are gone"):
        archiver.run_once()
    with pytest.raises(ArchiveGap):
        archiver.run()
    assert lake.archiver(accept_gap=True).run_once()
    assert lake.ids() == committed


def test_another_queue_of_the_same_name_is_refused(lake: Lake) -> None:
    from pgqpy_consumers.spark._ranges import ForeignOffset

    archiver = lake.archiver()
    committed = lake.fill()
    archiver.run_once()
    lake.conn.execute("select pgq.drop_queue(%s, true)", (lake.queue,))
    lake.conn.execute("select pgq.create_queue(%s)", (lake.queue,))
    with pytest.raises(ForeignOffset, match=str(lake.path)) as refused:
        archiver.run()
    assert "another directory" in str(refused.value.hint)
    ops.register(lake.conn, lake.queue, "archive")
    lake.fill()
    with pytest.raises(ForeignOffset):
        archiver.run_once()
    assert lake.ids() == committed


def test_the_sessions_name_says_what_is_archived_and_where(lake: Lake) -> None:
    from pgqpy_consumers.spark.archive import Archive

    told = "select application_name from pg_stat_activity where pid = %s"
    names: list[str] = []

    def on_commit(archiver: Archive, _: object) -> None:
        pid = archiver.conn.info.backend_pid
        names.extend(name for (name,) in lake.conn.execute(told, [pid]).fetchall())

    lake.fill()
    lake.archiver(on_commit=on_commit).run_once()
    name = f"pgqpy archive {pgqpy.__version__}: {lake.queue} to {lake.path}"
    assert names == [name[:63]]
    secret = Archive(lake.dsn, queue="q", path="s3a://key:se/cret@bucket/lake")
    assert secret._work() == ": q to s3a://key@bucket/lake"


def test_archivers_of_one_directory_take_turns(
    lake: Lake, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pgqpy_consumers.spark.archive as module

    one, two = lake.archiver(), lake.archiver(consumer="second")
    committed = lake.fill()
    one.run_once()
    committed += lake.fill()
    two.run_once()
    one.run_once()
    assert lake.ids() == committed

    lake.fill()
    monkeypatch.setattr(module, "_WAIT", "set local lock_timeout = '1ms'")
    holder = connect(autocommit=False)
    log = f"file:{lake.path}/_pgqpy/queue={lake.queue}"
    holder.execute("select pg_advisory_xact_lock(%s, hashtext(%s))", (module.LOCK, log))
    with pytest.raises(ConsumerInUse, match="another process is archiving"):
        one.run_once()
    # Another directory is another matter.
    assert lake.archiver(lake.path.with_name("other"), consumer="third").run_once()


def test_deleted_files_stay_deleted(lake: Lake) -> None:
    archiver = lake.archiver()
    lake.fill()
    archiver.run_once()
    for path in lake.files():
        (lake.path / path).unlink()
    committed = lake.fill()
    archiver.run_once()
    assert lake.ids() == committed


def test_queues_with_odd_names_share_a_directory(lake: Lake) -> None:
    from pgqpy_consumers.spark._archive_log import Directory, queues

    names = [lake.queue, "..", "a/b=c%", "Schlüssel 🐘", "007"]
    for name in names[1:]:
        lake.conn.execute("select pgq.create_queue(%s)", (name,))
    for name in names:
        ops.insert_ticked(lake.conn, name, "event")
        assert lake.archiver(queue=name).run_once()
    assert sorted(queues(Directory(lake.spark, str(lake.path)))) == sorted(names)
    found = [row.queue for row in lake.df().select("queue").collect()]
    assert sorted(found) == sorted(names)


def test_an_archive_keeps_its_partitions(lake: Lake) -> None:
    from pgqpy_consumers.spark._archive_log import ArchiveError

    lake.archiver(partition_by=["month", "type"])
    with pytest.raises(ArchiveError, match="is partitioned by month,type, not by day"):
        lake.archiver(partition_by=["day"])
    lake.archiver()


def test_the_log_keeps_its_newest_entries(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    import pgqpy_consumers.spark._archive_log as module

    monkeypatch.setattr(module, "KEPT", 2)
    archiver = lake.archiver()
    for _ in range(4):
        lake.fill(1)
        archiver.run_once()
    log = lake.path / "_pgqpy" / f"queue={lake.queue}" / "log"
    assert sorted(path.name for path in log.glob("*.json")) == [
        f"{number:020d}.json" for number in (2, 3, 4)
    ]


def test_the_command_archives_what_is_there(lake: Lake, cli: Cli) -> None:
    command = ("spark", "archive", lake.queue, str(lake.path), "--once")
    committed = lake.fill()
    said = cli.ok(*command).splitlines()[-1]
    assert said.startswith(f"archived 10 events of queue {lake.queue} up to tick ")
    assert lake.ids() == committed
    assert "archived" not in cli.ok(*command)
    info = cli.json("spark", "archive-info", str(lake.path))
    assert info["partition_by"] == ["queue", "day"]
    [found] = info["queues"]
    assert (found["queue"], found["events"], found["files"]) == (lake.queue, 10, 1)
    assert lake.queue in cli.ok("spark", "archive-info", str(lake.path))


def test_the_command_says_what_is_wrong(lake: Lake, cli: Cli) -> None:
    def fails(queue: str, path: object, *options: str, exit_code: int = 1) -> str:
        command = ("spark", "archive", queue, str(path), "--once", *options)
        return cli.fails(*command, exit_code=exit_code)

    assert "does not exist" in fails("nowhere", lake.path)
    assert not lake.path.exists()
    assert "is no archive" in cli.fails("spark", "archive-info", str(lake.path))
    assert "nofs" in fails(lake.queue, "nofs://x/y")
    file = lake.path.with_name("file")
    file.touch()
    assert "error: " in fails(lake.queue, file)
    fails(lake.queue, lake.path, "--partition-by", "week", exit_code=2)
