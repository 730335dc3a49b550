"""``pgqpy run cascade``: one process keeps the nodes of many queues."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import AddNode, Node, join_node
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_client import PATIENCE, wait_until

QUEUES = [f"q{number}" for number in range(6)]


@pytest.fixture
def nodes(add_node: AddNode) -> list[Node]:
    root = add_node("root")
    branch = add_node("branch", root)
    return [root, branch, add_node("below", branch)]


@pytest.fixture
def config(nodes: list[Node], tmp_path: Path) -> Path:
    path = tmp_path / "cascade.toml"
    dsns = json.dumps([node.dsn for node in nodes])
    path.write_text(f"nodes = {dsns}\npoll_interval = 0.05\nwatermark_interval = 0.1\n")
    return path


def add_queue(nodes: list[Node], queue: str) -> None:
    provider = None
    for number, node in enumerate(nodes):
        join_node(node, provider, "branch" if provider else "root", nodes[: number + 1], queue)
        provider = node


def test_a_process_keeps_all_nodes_of_many_queues_also_of_those_that_come_later(
    nodes: list[Node], config: Path, spawn: Spawn
) -> None:
    root, branch, below = nodes
    for queue in QUEUES[:-1]:
        add_queue(nodes, queue)
    process = spawn("run", "cascade", str(config))
    for queue in QUEUES[:-1]:
        below.has(ops.insert_ticked(root.conn, queue, "x"), queue)
    add_queue(nodes, QUEUES[-1])
    for queue in QUEUES:
        below.has(ops.insert_ticked(root.conn, queue, "x"), queue)
    # One connection for each database listens, and few work.
    users = "select count(*), count(*) filter (where application_name = 'pgqpy listen') from"
    for node in (root, branch):
        ((total, listening),) = node.conn.execute(
            f"{users} pg_stat_activity where datname = current_database()"
            " and application_name like 'pgqpy%'".encode()
        ).fetchall()
        assert listening == 1
        assert total < 12
    # An error of one stops no other, and is noted.
    branch.conn.execute(
        "update pgq_node.node_location set node_location = 'dbname=none'"
        " where queue_name = 'q3' and node_name = 'root'"
    )
    ops.insert_ticked(root.conn, "q3", "x")
    wait_until(
        lambda: ops.value(
            branch.conn, "select cur_error from pgq_node.local_state where queue_name = 'q3'"
        )
    )
    below.has(ops.insert_ticked(root.conn, "q4", "x"), "q4")
    # A dropped node is left, and the others go on.
    below.conn.execute("select pgq_node.drop_node('q4', 'below')")
    below.has(ops.insert_ticked(root.conn, "q5", "x"), "q5")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_with_until_empty_it_copies_what_there_is_and_ends(
    nodes: list[Node], config: Path, cli: Cli
) -> None:
    root, _, below = nodes
    ops.insert_ticked(root.conn, "q", "x")
    said = config.read_text()
    config.write_text(said.replace("nodes = [", f'nodes = ["{below.dsn}&sslmode=prefer", '))
    result = cli("run", "cascade", str(config), "--until-empty")
    assert result.exit_code == 0
    assert "two of the nodes are one database" in result.stderr
    assert below.batches() == root.batches()


def test_a_lost_database_is_retried_and_lines_of_the_log_name_queue_and_node(
    nodes: list[Node], config: Path, spawn: Spawn
) -> None:
    root, branch, below = nodes
    process = spawn("run", "cascade", str(config), "--log-format", "json")
    below.has(ops.insert_ticked(root.conn, "q", "x"), "q")
    for node in nodes:
        node.cut()
    below.has(ops.insert_ticked(root.conn, "q", "y"), "q")
    assert branch.batches() == root.batches()
    process.send_signal(signal.SIGTERM)
    lines = [json.loads(line) for line in process.communicate(timeout=PATIENCE)[1].splitlines()]
    # A listener has the queues of a database.
    about_nodes = [
        line for line in lines if "database" not in line and "listen" not in line["message"]
    ]
    named = {(line["queue"], line["node"]) for line in about_nodes}
    # One that did nothing meanwhile has lost nothing.
    assert ("q", below.name) in named <= {("q", node.name) for node in nodes}


def test_a_name_in_place_of_a_dsn_is_refused(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "cascade.toml"
    for nodes, message in (
        ('["shop"]', "the DSN of the node's database, not its name"),
        ("[]", "Name the databases"),
        ('"shop"', 'must be a list: nodes = ["..."]'),
    ):
        config.write_text(f"nodes = {nodes}\n")
        said = cli("run", "cascade", str(config), "--until-empty")
        assert (said.exit_code in (1, 2), message in said.stderr) == (True, True)
