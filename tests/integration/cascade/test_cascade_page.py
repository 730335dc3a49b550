"""The first steps of docs/cascade.md work as printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import psycopg

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.pages import all_blocks, section, text_of

STEPS = section(text_of("cascade.md"), "## First steps")


def test_first_steps(dsn: str, target_dsn: str, cli: Cli, tmp_path: Path) -> None:
    """The ticker and the cascade, which do not end, are one tick and one round here."""
    text = STEPS.replace("postgresql:///shop", dsn).replace("postgresql:///reports", target_dsn)
    *setup, insert, peek, status = [
        line
        for block in all_blocks(text)
        if block.language == "sh"
        for line in block.text.splitlines()
    ]
    config = tmp_path / "cascade.toml"
    [file] = [block for block in all_blocks(text) if block.file == config.name]
    config.write_text(file.text)
    assert [line.split()[1] for line in setup[4:]] == ["ticker", "run"]
    for line in [*setup[:4], insert]:
        cli.ok(*shlex.split(line)[1:])
    with psycopg.connect(dsn, autocommit=True) as conn:
        ops.tick(conn, "orders")
    cli.ok("run", "cascade", str(config), "--until-empty")
    assert "pen" in cli.ok(*shlex.split(peek)[1:])
    assert "reports   branch" in cli.ok(*shlex.split(status)[1:])
