"""The first steps of docs/cascade.md work as printed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cascade import Node
from tests.fixtures.fix_cli import Cli
from tests.fixtures.pages import all_blocks, section, text_of

STEPS = section(text_of("cascade.md"), "## First steps")


def test_first_steps(dsn: str, target_dsn: str, cli: Cli, tmp_path: Path) -> None:
    dsns = {"shop": dsn, "reports": target_dsn}
    for each in dsns.values():
        cli.ok("migrate", "--node", "--dsn", each)
    nodes = {name: Node(name, each) for name, each in dsns.items()}
    for block in all_blocks(STEPS):
        if block.language != "sql" or block.file is None:
            continue
        text = block.text
        for name, each in dsns.items():
            text = text.replace(f"'dbname={name}'", f"'{each}'")
        nodes[block.file.removeprefix("in ")].conn.execute(text.encode())
    shop, reports = (node.conn for node in nodes.values())
    ops.register(reports, "orders", "c")
    ops.insert_ticked(shop, "orders", "x")
    config = tmp_path / "cascade.toml"
    config.write_text(f"nodes = {json.dumps([*dsns.values()])}\n")
    cli.ok("run", "cascade", str(config), "--until-empty")
    assert "x" in ops.drain(reports, "orders", "c")
    for node in nodes.values():
        node.conn.close()
