"""The examples of docs/shards.md do what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgqpy import Admin
from pgqpy.shards import shard_hash
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_shards import Shards
from tests.fixtures.pages import blocks, run, section, text_of

PAGE = text_of("shards.md")


def test_it(shards: Shards, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    monkeypatch.chdir(tmp_path)

    def want(title: str) -> str:
        [text] = blocks(section(PAGE, title), "toml")
        for name, dsn in shards.dsns.items():
            for database in ("shop", "all"):
                text = text.replace(f'"postgresql://{name}.example/{database}"', f'"{dsn}"')
        return text.replace("postgresql://shop:${SHOP_PASSWORD}@b.example/shop", shards.dsns["b"])

    shards.wanted.write_text(want("## The shard map"))
    assert shards.try_apply().exit_code == 0
    [tables] = blocks(section(PAGE, "## Producers"), "sql")
    for name in shards.dsns:
        with shards.connect(name) as conn:
            conn.execute(tables.encode())
            hashed = conn.execute(
                "select ('x' || left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 4))"
                "::bit(16)::int from (values ('acme')) k (key)"
            )
            assert hashed.fetchall() == [(shard_hash("acme"),)]
    names: dict[str, Any] = {"__name__": __name__}
    [produce] = blocks(section(PAGE, "## Producers"))
    run(produce, names)
    shards.tick()
    [consume] = blocks(section(PAGE, "## Consumers"))
    run(consume, names)
    assert mails(shards) == {("acme", "pen"), ("ann", "book")}

    # a is split
    first, _, second = shards.wanted.read_text().partition("[shards.b]")
    assert "[shards.a]" in first
    split = want("## Adding, splitting and removing shards")
    shards.wanted.write_text(f'queue = "orders"\n{split}\n[shards.b]{second}')
    result = shards.try_apply()
    assert result.exit_code == 0, result.output
    assert set(shards.map.shards["c"].after) == {"a"}
    run(consume, names)

    # all are merged into one queue, which is split again
    Path("merge.toml").write_text(want(merging := "## Merging into one queue, splitting one"))
    cli.ok("run", "queue_mover", "merge.toml", "--shards", "shards.toml", "--until-empty")
    with shards.connect("c") as conn:
        assert Admin(conn).get_queue_info("all_orders")
    [to_shards] = blocks(section(PAGE, merging))
    run(to_shards, names := {"__name__": __name__})
    assert names["to"](names["shards"].shards["a"]).consumer == "split@a"


def mails(shards: Shards) -> set[tuple[Any, ...]]:
    found: set[tuple[Any, ...]] = set()
    for name in shards.dsns:
        with shards.connect(name) as conn:
            found |= {*conn.execute("select customer, item from mail")}
    return found
