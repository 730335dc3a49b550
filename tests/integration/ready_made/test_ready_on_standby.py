"""Consumers that are ready to run read on a standby, if their file says so."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import psycopg
import pytest

from pgqpy import Admin, Producer
from pgqpy.errors import InvalidConsumer
from pgqpy_consumers.row_counter import RowCounter
from pgqpy_consumers.settings import ConfigError, build
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_standby import HotPair


def settings(path: Path, **values: str) -> str:
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return str(path)


@pytest.mark.slow
def test_a_mover_copies_what_the_standby_has_replayed_and_nothing_of_the_primary(
    hot_pair: HotPair, dsn: str, cli: Cli, tmp_path: Path
) -> None:
    Admin(hot_pair.conn).create_queue("q")
    ops.register(hot_pair.conn, "q", "queue_mover")
    file = settings(
        tmp_path / "mover.toml",
        dsn=hot_pair.primary.dsn,
        read_dsn=hot_pair.standby.dsn,
        queue="q",
        target_dsn=dsn,
        target_queue="moved",
    )
    datas = [f"{number} {'x' * 1000}" for number in range(1000)]
    with psycopg.connect(dsn, autocommit=True) as target:
        Admin(target).create_queue("moved")

        def moved() -> list[str]:
            events = target.execute("select ev_data from pgq.event order by ev_id")
            return [data for (data,) in events]

        hot_pair.pause()
        Producer("q").insert_events(hot_pair.conn, [("t", data) for data in datas])
        ops.tick(hot_pair.conn, "q")
        running = threading.Thread(
            target=cli.ok, args=("run", "queue_mover", file, "--until-empty")
        )
        running.start()
        asked = "select from pg_stat_activity where application_name like 'pgqpy queue_mover %'"
        wait_until(lambda: bool(hot_pair.there.execute(asked).fetchall()))
        assert moved() == []
        hot_pair.resume()
        running.join()
        assert moved() == datas


def test_a_consumer_that_cannot_read_there_says_so(cli: Cli, tmp_path: Path) -> None:
    given = {"queue": "q", "read_dsn": "host=there"}
    with pytest.raises(ConfigError, match=r"'read_dsn' .* counted inside the database"):
        build(RowCounter.Config, given | {"tables": ["t"]})
    with pytest.raises(InvalidConsumer, match="counted inside the database"):
        RowCounter("", queue="q", read_dsn="host=there")
    file = settings(tmp_path / "a.toml", **given, target_dsn="host=elsewhere", target_queue="q")
    shards = str(tmp_path / "shards.toml")
    assert "read_dsn is one server's" in cli.fails(
        "run", "queue_mover", file, "--shards", shards, exit_code=2
    )
