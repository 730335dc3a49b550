"""A root's server is killed, another node takes over, and the old server comes back by itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgqpy.cascade import Nodes, create_node, take_over_dead_root
from pgqpy.embedded import Server
from pgqpy.errors import InsertDisabled, translate_errors
from pgqpy.schema import node_sql
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_ticker import StartTicker

pytestmark = pytest.mark.slow

QUEUE = "q"


def test_a_root_that_comes_back_refuses_producers_within_seconds_and_shows_its_rest(
    start_mortal: Callable[[], Server],
    start_ticker: StartTicker,
    spawn: Spawn,
    cli: Cli,
    tmp_path: Path,
) -> None:
    servers = {name: start_mortal() for name in "abc"}
    for name, server in servers.items():
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute(node_sql().encode())
        above = None if name == "a" else servers["a"].dsn
        create_node(QUEUE, name, "branch" if above else "root", server.dsn, provider=above)

    def work(name: str) -> subprocess.Popen[str]:
        config = tmp_path / f"{name}.toml"
        config.write_text(f"nodes = [{json.dumps(servers[name].dsn)}]\n")
        with (tmp_path / f"{name}.log").open("a") as log:
            return spawn("run", "cascade", str(config), stdout=log, stderr=log)

    def insert(name: str, data: str) -> None:
        with psycopg.connect(servers[name].dsn) as conn, translate_errors():
            ops.insert(conn, QUEUE, data)

    start_ticker(*(each.dsn for each in servers.values()))
    workers = {name: work(name) for name in "abc"}
    insert("a", "everywhere")
    for name in "bc":
        wait_until(lambda name=name: "everywhere" in data_of(servers[name]))  # type: ignore[misc]
    for name in "bc":
        workers[name].terminate()
        workers[name].wait()
    insert("a", "rest 1")
    workers["a"].kill()
    servers["a"].kill()
    for name in "bc":
        work(name)
    with Nodes(QUEUE, servers["b"].dsn) as nodes:
        take_over_dead_root(nodes, "b")

    servers["a"].restart()
    insert("a", "rest 2")
    work("a")
    taken = ["rest 1", "rest 2"]

    def refused() -> bool:
        try:
            insert("a", "rest")
        except InsertDisabled:
            return True
        taken.append("rest")
        return False

    wait_until(refused)
    told = "node a is an old root of queue q: b has taken over"
    wait_until(lambda: told in (tmp_path / "a.log").read_text())
    rest = cli.json_lines("node", "rest", QUEUE, "a", "--dsn", servers["b"].dsn)
    assert [each["data"] for each in rest] == taken
    insert("b", "new")
    wait_until(lambda: "new" in data_of(servers["c"]))
    assert data_of(servers["b"]) == data_of(servers["c"]) == ["everywhere", "new"]


def data_of(server: Server) -> list[str]:
    with psycopg.connect(server.dsn) as conn:
        rows = conn.execute(
            "select ev_data from pgq.event_template where ev_type not like 'pgq.%' order by ev_id"
        ).fetchall()
    return [data for (data,) in rows]
