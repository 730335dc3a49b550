"""``pgqpy replicate``, as people type it."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import MakeRole
from tests.fixtures.fix_replicate import Pair


@pytest.fixture
def config(pair: Pair, tmp_path: Path) -> str:
    """A configuration, and two tables on both sides."""
    pair.both("create table item (id int primary key, name text); create table sale (id int)")
    pair.both("alter table sale add primary key (id)")
    pair.source.execute("insert into item values (1, 'one'), (2, 'two')")
    path = tmp_path / "replicate.toml"
    path.write_text(
        f'dsn = "{pair.source_dsn}"\ntarget_dsn = "{pair.target_dsn}"\nqueue = "{pair.queue}"\n'
    )
    return str(path)


def follow(cli: Cli, pair: Pair, config: str) -> None:
    ops.tick(pair.source, pair.queue)
    cli.ok("run", "replicate", config, "--until-empty")


def test_from_adding_a_table_to_removing_it(cli: Cli, pair: Pair, config: str) -> None:
    assert "add a table: pgqpy replicate add" in cli.ok("replicate", "list", config)
    said = cli.ok("replicate", "add", "item", "public.sale", config)
    assert "table public.item is added" in said
    follow(cli, pair, config)
    follow(cli, pair, config)
    pair.same("item")
    listed = cli.json("replicate", "list", config)
    assert [(each["source"], each["state"]) for each in listed["tables"]] == [
        ("public.item", "in_step"),
        ("public.sale", "in_step"),
    ]
    shown = cli.ok("replicate", "list", config)
    assert "public.item" in shown
    assert "in_step" in shown

    cli.ok("replicate", "copy", "item", config)
    assert cli.json("replicate", "list", config)["tables"][0]["state"] == "added"
    assert "not replicated any more" in cli.ok("replicate", "remove", "item", "sale", config)
    assert cli.json("replicate", "list", config) == {"tables": [], "sequences": []}


def test_compare_shows_what_differs_and_repair_mends_it(cli: Cli, pair: Pair, config: str) -> None:
    cli.ok("replicate", "add", "item", config)
    follow(cli, pair, config)
    pair.target.execute("update item set name = 'wrong' where id = 2")
    with pair.running():
        result = cli("replicate", "compare", config)
        assert result.exit_code == 1
        assert "public.item (2) different" in result.stdout
        assert "pgqpy replicate repair" in result.stderr
        found = cli.json("replicate", "repair", "item", config)
        assert found[0]["differences"] == [{"key": "(2)", "kind": "different"}]
        assert found[0]["repaired"] == 1
        assert "public.item" in cli.ok("replicate", "compare", config)
    pair.same("item")


def test_what_is_wrong_is_said_with_the_remedy(
    cli: Cli, pair: Pair, config: str, tmp_path: Path
) -> None:
    # Names are shown as they are to be typed.
    pair.both('create table "Odd, one" ("the Key" int primary key)')
    cli.ok("replicate", "add", '"Odd, one"', config)
    [shown] = [each["source"] for each in cli.json("replicate", "list", config)["tables"]]
    assert shown == 'public."Odd, one"'
    pair.target.execute('alter table "Odd, one" drop constraint "Odd, one_pkey"')
    cli.ok("replicate", "remove", shown, config)
    said = cli.fails("replicate", "add", shown, config)
    assert 'ALTER TABLE public."Odd, one" ADD PRIMARY KEY ("the Key")' in said
    pair.source.execute("create sequence invoice")
    assert "has no sequence public.invoice" in cli.fails("replicate", "add", "invoice", config)
    pair.target.execute("create sequence invoice")
    cli.ok("replicate", "add", "invoice", config)
    assert "pgqpy replicate list" in cli.fails("replicate", "remove", "item", config)
    assert "one table at a time" in cli.fails(
        "replicate", "add", "item", "sale", config, "--columns", "id", exit_code=2
    )
    assert "cannot read" in cli.fails("replicate", "list", "nowhere.toml", exit_code=2)
    other = tmp_path / "other.toml"
    other.write_text(Path(config).read_text().replace(f'"{pair.queue}"', '"nosuch"'))
    assert "queue 'nosuch' does not exist" in cli.fails("replicate", "list", str(other))
    cli.ok("replicate", "add", "item", config)
    assert "replicated already" in cli.fails("replicate", "add", "item", config)
    assert "nothing to compare yet" in cli.fails("replicate", "compare", "item", config)


def test_what_is_wrong_with_the_target_names_the_target(
    cli: Cli, pair: Pair, config: str, tmp_path: Path
) -> None:
    away = tmp_path / "away.toml"
    text = Path(config).read_text().replace(pair.target_dsn, "postgresql://ann@127.0.0.1:1/reports")
    away.write_text(text)
    for command in (("run", "replicate"), ("replicate", "list")):
        said = cli.fails(*command, str(away))
        assert '127.0.0.1:1, database "reports", user "ann"' in said
        assert "target_dsn" in said
    pair.target.execute("drop schema pgq_ext cascade")
    for command in (("run", "replicate"), ("replicate", "list")):
        said = cli.fails(*command, config)
        assert f'database "{pair.target.info.dbname}" has no pgq schema' in said
        assert "pgqpy migrate --dsn" in said
        assert pair.target.info.dbname in said.partition("pgqpy migrate --dsn")[2]


def test_a_table_without_rights_is_not_said_to_be_one_of_ours(
    cli: Cli, pair: Pair, config: str, make_role: MakeRole
) -> None:
    name = make_role("copier", "pgq_admin")
    dsn = make_conninfo(pair.target_dsn, user=name)
    Path(config).write_text(Path(config).read_text().replace(pair.target_dsn, dsn))
    said = cli.fails("replicate", "add", "sale", config)
    assert f'permission denied for table sale (for user "{name}", in ' in said
    assert "grant the right on that table" in said


def test_a_table_whose_changes_do_not_come_any_more_is_listed_with_the_reason(
    cli: Cli, pair: Pair, config: str
) -> None:
    cli.ok("replicate", "add", "item", "sale", config)
    pair.source.execute("alter table item rename to article")
    pair.source.execute("select pgq.release_table('sale')")
    item, sale = cli.json("replicate", "list", config)["tables"]
    assert item["error"] == "the source has no table public.item any more"
    assert sale["error"] == f"it is not captured into {pair.queue} any more"
