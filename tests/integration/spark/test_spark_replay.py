"""Replay: what is selected of an archive comes into a queue again, as it was and in its order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIELDS = "ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
EVENTS = [
    ("2026-11-20 23:59:59.999999+00", "paid", '{"a": "\\u0000"}', "public.t", None, None, None),
    ("2026-11-21 00:00:00+00", "paid", "ü🐘\t\n", "", "two", "three", None),
    ("2026-11-21 12:00:00+00", None, None, None, None, None, None),
    ("infinity", "", "", "", "", "", None),
    ("-infinity", "refunded", "x" * 200_000, None, None, None, None),
    ("2026-11-22 00:00:00+00", "refunded", "'quoted'", None, None, None, None),
]
DAYS_AND_TYPES = [
    ("2026-11-20", "paid"),
    ("2026-11-21", "paid"),
    ("2026-11-21", None),
    (None, ""),
    (None, "refunded"),
    ("2026-11-22", "refunded"),
]


@pytest.fixture
def lake(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    dsn: str,
    conn: Connection,
    queue: str,
    tmp_path: Path,
) -> str:
    """An archive of `queue`, which has `EVENTS`; and a queue ``again``."""
    from pgqpy_consumers.spark.archive import Archive

    for event in EVENTS:
        conn.execute(
            "select pgq.insert_event_raw(%s, null, %s, null, null, %s, %s, %s, %s, %s, %s)",
            (queue, *event),
        )
    ops.tick(conn, queue)
    conn.execute("select pgq.create_queue('again')")
    archiver = Archive(dsn, path=str(tmp_path / "lake"), spark=spark, queue=queue)
    archiver.file_format = getattr(request, "param", "parquet")
    archiver.register()
    archiver.run_once()
    return str(tmp_path / "lake")


def sent(conn: Connection) -> list[tuple[Any, ...]]:
    """The events of the queue ``again``, in its order."""
    table = ops.value(conn, "select pgq.current_event_table('again')")
    return conn.execute(f"select {FIELDS} from {table} order by ev_id".encode()).fetchall()


def expected(*numbers: int) -> list[tuple[Any, ...]]:
    return [EVENTS[number][1:] for number in numbers]


@pytest.mark.parametrize("lake", ["parquet", "avro"], indirect=True)
def test_all_of_an_archive_comes_again_as_it_was(
    lake: str, cli: Cli, conn: Connection, queue: str
) -> None:
    said = cli.ok("spark", "replay", lake, "again")
    assert said.splitlines()[-1] == f"sent 6 events of queue {queue} into queue again"
    assert sent(conn) == expected(*range(6))
    # A second time is what was asked for.
    part = ("--from", "2026-11-21T00:00Z", "--where", "ev_type is null or ev_extra2 = 'two'")
    cli.ok("spark", "replay", lake, "again", *part)
    assert sent(conn) == expected(*range(6), 1, 2)


def counted(cli: Cli, lake: str, *options: str) -> dict[tuple[str | None, str | None], int]:
    """The numbers of events by day and type, of which each of `EVENTS` has its own."""
    shown = cli.json("spark", "replay", lake, "again", "--dry-run", *options)
    assert (shown["source"], shown["sent"]) == ("test_queue", False)
    counts = {(each["day"], each["type"]): each["events"] for each in shown["counts"]}
    assert sum(counts.values()) == shown["events"]
    return counts


def test_a_part_is_chosen_by_time_id_type_and_condition(
    lake: str, cli: Cli, conn: Connection
) -> None:
    (first,) = conn.execute("select min(ev_id) from pgq.event_template").fetchall()[0]
    for options, numbers in [
        (["--from", "2026-11-21T00:00Z", "--to", "2026-11-22T00:00Z"], [1, 2]),
        (["--from", "2026-11-21T00:59+02:00"], [0, 1, 2, 5]),
        (["--to", "2026-11-21T00:00Z"], [0]),
        (["--ids", f"{first + 1}..{first + 3}"], [1, 2, 3]),
        (["--ids", f"{first + 4}.."], [4, 5]),
        (["--type", "paid", "--type", ""], [0, 1, 3]),
        (["--where", "ev_type is null or ev_extra2 = 'two'"], [1, 2]),
        (["--type", "paid", "--ids", f"..{first}"], [0]),
    ]:
        assert counted(cli, lake, *options) == {DAYS_AND_TYPES[each]: 1 for each in numbers}


def test_a_dry_run_counts_days_and_types_and_sends_nothing(
    lake: str, cli: Cli, conn: Connection
) -> None:
    assert counted(cli, lake) == dict.fromkeys(DAYS_AND_TYPES, 1)
    assert "6 events" in cli.ok("spark", "replay", lake, "again", "--dry-run")
    assert sent(conn) == []


def test_a_mark_says_where_an_event_came_from(
    lake: str, cli: Cli, conn: Connection, queue: str
) -> None:
    ids = [row[0] for row in conn.execute("select ev_id from pgq.event_template order by 1")]
    cli.ok("spark", "replay", lake, "again", "--mark", "ev_extra4")
    rows = sent(conn)
    assert [row[:-1] for row in rows] == [event[1:-1] for event in EVENTS]
    marks = [json.loads(row[-1]) for row in rows]
    assert [mark["ev_id"] for mark in marks] == ids
    assert marks[0] == {
        "queue": queue,
        "ev_id": ids[0],
        "ev_time": "2026-11-20T23:59:59.999999Z",
    }
    refused = cli.fails("spark", "replay", lake, "again", "--mark", "ev_extra1")
    assert "has a value in ev_extra1" in refused
    assert len(sent(conn)) == 6


def test_what_cannot_be_replayed_is_refused(
    lake: str, cli: Cli, conn: Connection, queue: str, tmp_path: Path
) -> None:
    assert "is no archive" in cli.fails("spark", "replay", str(tmp_path), "again")
    assert "no queue other" in cli.fails("spark", "replay", lake, "again", "--source", "other")
    assert "does not exist" in cli.fails("spark", "replay", lake, "nowhere")
    assert "ev_tipe" in cli.fails("spark", "replay", lake, "again", "--where", "ev_tipe = 1")
    cli.fails("spark", "replay", lake, "again", "--ids", "7", exit_code=2)
    assert sent(conn) == []


def test_help_does_not_import_spark(cli: Cli) -> None:
    import subprocess
    import sys

    program = (
        "import sys; from pgqpy.cli import main\n"
        "try: main(['spark', 'archive', '--help'])\n"
        "finally: assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
