"""A shard map gives each key exactly one shard, and says what is wrong if it cannot."""

from __future__ import annotations

import pickle
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqpy.errors import InvalidShardMap
from pgqpy.shards import HASHES, CurrentMap, ShardMap, shard_hash
from pgqpy.shards._apply import moves

A = {"dsn": "dbname=a", "hashes": [0, 32768]}
B = {"dsn": "dbname=b", "hashes": [32768, 65536]}


@st.composite
def maps(draw: st.DrawFn) -> ShardMap:
    """Maps of ranges in any number, in any order, among any shards, with explicit keys."""
    cuts = draw(st.lists(st.integers(1, HASHES - 1), unique=True, max_size=12))
    edges = [0, *sorted(cuts), HASHES]
    names = draw(st.lists(st.text(min_size=1), unique=True, min_size=1, max_size=5))
    shards: dict[str, Any] = {name: {"dsn": "", "hashes": [], "keys": []} for name in names}
    for pair in draw(st.permutations([*pairwise(edges)])):
        shards[draw(st.sampled_from(names))]["hashes"].append(pair)
    for key in draw(st.lists(st.text(), unique=True, max_size=5)):
        shards[draw(st.sampled_from(names))]["keys"].append(key)
    return ShardMap.parse({"shards": shards})


@given(maps(), st.lists(st.text(), min_size=1))
def test_every_key_has_exactly_one_shard(shard_map: ShardMap, keys: list[str]) -> None:
    named = [key for shard in shard_map.shards.values() for key in shard.keys]
    for key in [*keys, *named]:
        number = shard_hash(key)
        owners = [shard for shard in shard_map.shards.values() if key in shard.keys] or [
            shard
            for shard in shard_map.shards.values()
            if any(start <= number < stop for start, stop in shard.hashes)
        ]
        assert [shard_map.shard_for(key)] == owners


@given(maps(), maps(), st.lists(st.text()))
def test_a_change_of_maps_names_the_shards_between_which_keys_move(
    old: ShardMap, new: ShardMap, keys: list[str]
) -> None:
    found = set(moves(old, new))
    for key in keys:
        before, after = old.shard_for(key).name, new.shard_for(key).name
        assert before == after or (before, after) in found
    assert not set(moves(old, old))


def test_the_hash_is_the_one_that_is_documented() -> None:
    assert shard_hash("acme") == int(sha256(b"acme").hexdigest()[:4], 16)


def test_a_file_with_variables_is_read_and_its_secrets_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hidden")
    file = tmp_path / "shards.toml"
    file.write_text("""
queue = "orders"
[shards.a]
dsn = "postgresql://shop:${SHOP_PASSWORD}@a.example/shop"
hashes = [[0, 100], [200, 65536]]
[shards.b]
dsn = "host=b.example"
hashes = [100, 200]
keys = ["acme"]
version = 3
after = { a = 4711 }
""")
    found = ShardMap.load(file)
    assert found.queue == "orders"
    assert found.shards["a"].dsn == "postgresql://shop:hidden@a.example/shop"
    assert found.shards["a"].hashes == ((0, 100), (200, 65536))
    assert found.shard_for("acme").name == "b"
    assert (found.shards["b"].version, found.shards["b"].after) == (3, {"a": 4711})
    assert "hidden" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
    monkeypatch.delenv("SHOP_PASSWORD")
    with pytest.raises(InvalidShardMap, match=r"toml: shard 'a' needs .* SHOP_PASSWORD") as raised:
        ShardMap.load(file)
    assert raised.value.hint == "Set it for this process, as in: export SHOP_PASSWORD=..."


def test_rows_are_read_as_a_map() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "keys": None} | A,
        {"name": "b", "after": {"a": 7}} | B,
    ]
    assert ShardMap.from_rows(rows, queue="orders").shards["b"].after == {"a": 7}
    with pytest.raises(InvalidShardMap, match="a text of its own, not 'a'"):
        ShardMap.from_rows([rows[0], rows[0]])


def test_rows_read_no_environment_variables_and_values_of_files_are_not_filled_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows may be written by roles that must not know what is in the environment of readers."""
    monkeypatch.setenv("SECRET", "hid${DEN}")
    row = {"name": "a", "dsn": "host=evil.example user=${SECRET}", "hashes": [0, HASHES]}
    with pytest.raises(InvalidShardMap, match=r"'a': environment variables, as \${SECRET}, are"):
        ShardMap.from_rows([row])
    file = tmp_path / "shards.toml"
    file.write_text(f"[shards.a]\ndsn = '{row['dsn']}'\nhashes = [0, {HASHES}]")
    assert ShardMap.load(file).shards["a"].dsn.endswith("user=hid${DEN}")


@pytest.mark.parametrize(
    ("shards", "wrong"),
    [
        ({}, "needs a shard"),
        ({"a": 1}, "shard 'a' must be a table"),
        ({"a": {"hashes": [0, 65536]}}, "shard 'a' has no dsn"),
        ({"a": A | {"dsn": "x y z"}, "b": B}, "shard 'a': the connection string cannot be read"),
        ({"a": A | {"hash": 1}, "b": B}, "'a' has an unknown key 'hash': did you mean hashes?"),
        ({"a": A}, "no shard has the hashes 32768 to 65536"),
        ({"b": B}, "no shard has the hashes 0 to 32768"),
        ({"a": A, "b": B | {"hashes": [32000, 65536]}}, "hashes 32000 to 32768 are in .*'a'.*'b'"),
        ({"a": A | {"hashes": [0, 70000]}}, "shard 'a': hashes must be a range within 0 to 65536"),
        ({"a": A | {"hashes": [5, 5]}}, "shard 'a': hashes must be"),
        ({"a": A | {"keys": "acme"}, "b": B}, "shard 'a': keys must be an array of texts"),
        (
            {"a": A | {"keys": ["k"]}, "b": B | {"keys": ["k"]}},
            "key 'k' is in shard 'a' and in 'b'",
        ),
        ({"a": A | {"version": 0}, "b": B}, "shard 'a': version must be a number from 1"),
        ({"a": A | {"after": {"c": 1}}, "b": B}, "shard 'a' is after 'c', which is no shard"),
        ({"a": A | {"after": {"b": "x"}}, "b": B}, "shard 'a': after must be names"),
        (
            {"a": A | {"after": {"b": 1}}, "b": B | {"after": {"a": 2}}},
            "wait for each other: (a after b after a|b after a after b)",
        ),
    ],
)
def test_a_map_that_makes_no_sense_is_refused(shards: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidShardMap, match=wrong) as raised:
        ShardMap.parse({"queue": "orders", "shards": shards})
    assert "docs/" not in str(raised.value.hint)


def test_ticks_need_a_queue_and_a_map_is_of_one_queue() -> None:
    shards = {"a": A, "b": B | {"after": {"a": 7}}}
    with pytest.raises(InvalidShardMap, match="shard 'b' has after, but the map has no queue"):
        ShardMap.parse({"shards": shards})
    with pytest.raises(InvalidShardMap, match="of queue 'orders', not of 'mails'"):
        ShardMap.parse({"queue": "orders", "shards": shards}).check_queue("mails")


def test_a_file_that_becomes_wrong_is_logged_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "shards.toml"
    right = f'[shards.a]\ndsn = "dbname=a"\nhashes = [0, {HASHES}]\n'
    file.write_text(right)
    current = CurrentMap(file)
    file.write_text("[shards")
    assert [current.renew(), current.renew()] == [False, False]
    file.unlink()
    assert [current.renew(), current.renew()] == [False, False]
    assert list(current.map.shards) == ["a"]
    assert ["not valid TOML" in each for each in caplog.messages] == [True, False]
    file.write_text(right.replace("dbname=a", "dbname=b"))
    assert current.renew()


@pytest.mark.parametrize("more", ["hostaddr=::1", "passfile=/root/.pgpass", "service=b"])
def test_a_row_leads_no_passwords_astray(more: str) -> None:
    """A role that may write the table chooses files and hosts of no program that reads it."""
    shard = {"dsn": f"host=good {more}", "hashes": [0, HASHES]}
    with pytest.raises(InvalidShardMap, match="may not set"):
        ShardMap.from_rows([{"name": "a"} | shard])
    assert more in ShardMap.parse({"shards": {"a": shard}}).shards["a"].dsn
