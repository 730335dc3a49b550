"""PostgreSQL understands JSON Schema as jsonschema-rs does."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, LiteralString

import jsonschema_rs
import pytest
from psycopg.types.json import Jsonb

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connection

NAMES = ["a", "b", "n/~1", 'é"\\\n$\x01']
PATTERNS = [
    "^a",
    "b$",
    "^[a-c]{1,3}$",
    r"^\d+(?:\.\d+)?$",
    r"^\w*$",
    "(a|b)c?",
    r"[^\d.]",
    r"^[\w.\\-]+$",
    "^.+$",
    "",
]


class Generator:
    """Random schemas, and values that have a chance to fit them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 2) -> Any:
        r = self.random
        kind = r.randrange(9 if depth else 7)
        if kind >= 7:
            if kind == 7:
                return [self.value(depth - 1) for _ in range(r.randrange(4))]
            return self.members(depth)
        return r.choice(
            [
                None,
                True,
                False,
                0,
                1,
                2,
                -1,
                1.0,
                2.5,
                0.1,
                1e30,
                12,
                "",
                "a",
                "ab",
                "abc",
                "b",
                "1.5",
                "\n",
                "é\t😀",
                "😀" * 160,
                "😀" * 161,
            ]
        )

    def members(self, depth: int) -> dict[str, Any]:
        names = self.random.sample(NAMES, self.random.randrange(4))
        return {name: self.value(depth - 1) for name in names}

    def schema(self, depth: int = 2) -> Any:
        r = self.random
        if r.random() < 0.06:
            return r.random() < 0.7
        found: dict[str, Any] = {}
        for _ in range(r.choice([1, 1, 2, 3])):
            found |= self.keyword(depth)
        return found

    def keyword(self, depth: int) -> dict[str, Any]:
        r = self.random

        def inner() -> Any:
            return self.schema(depth - 1)

        simple: dict[str, Callable[[], Any]] = {
            "type": lambda: r.choice(
                [
                    "string",
                    "number",
                    "integer",
                    "object",
                    "array",
                    "null",
                    "boolean",
                    ["integer", "string"],
                    ["null", "object"],
                ]
            ),
            "enum": lambda: [self.value(r.randrange(2)) for _ in range(3)],
            "const": lambda: self.value(r.randrange(2)),
            "required": lambda: r.sample(NAMES, r.randrange(3)),
            "minimum": lambda: r.choice([0, 1.5]),
            "maximum": lambda: r.choice([1, 2.5]),
            "exclusiveMinimum": lambda: r.choice([0, 1]),
            "exclusiveMaximum": lambda: r.choice([1, 2.5]),
            "multipleOf": lambda: r.choice([1, 2, 0.5, 0.1]),
            "minLength": lambda: r.choice([0, 1, 2, 160]),
            "maxLength": lambda: r.choice([0, 1, 2, 160]),
            "pattern": lambda: r.choice(PATTERNS),
            "minItems": lambda: r.randrange(3),
            "maxItems": lambda: r.randrange(3),
            "uniqueItems": lambda: r.random() < 0.8,
            "minProperties": lambda: r.randrange(3),
            "maxProperties": lambda: r.randrange(3),
            "dependentRequired": lambda: {r.choice(NAMES): r.sample(NAMES, 2)},
        }
        nested: dict[str, Callable[[], Any]] = {
            "properties": lambda: {name: inner() for name in r.sample(NAMES, 2)},
            "additionalProperties": inner,
            "patternProperties": lambda: {r.choice(PATTERNS): inner()},
            "propertyNames": inner,
            "items": inner,
            "prefixItems": lambda: [inner(), inner()],
            "contains": inner,
            "allOf": lambda: [inner(), inner()],
            "anyOf": lambda: [inner(), inner()],
            "oneOf": lambda: [inner(), inner()],
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "$ref": lambda: r.choice(["#/$defs/tree", "#/$defs/text"]),
        }
        name = r.choice([*simple, "type", "type", *(list(nested) * 2 if depth else [])])
        found = {name: (simple | nested)[name]()}
        if name == "contains":
            found |= {"minContains": r.randrange(3), "maxContains": 1 + r.randrange(2)}
        elif name == "properties" and r.random() < 0.5:
            found |= {
                "required": r.sample(NAMES, 1),
                "additionalProperties": r.choice([False, inner()]),
            }
        return found

    def changed(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema without one of its keywords, or with another, at some depth."""
        new = copy.deepcopy(schema)
        node: Any = new
        while isinstance(node, dict):
            inner = [v for k, v in node.items() if isinstance(v, dict) and k != "$defs"]
            if not inner or self.random.random() < 0.4:
                break
            node = self.random.choice(inner)
        names = [name for name in node if name != "$defs"]
        if names and self.random.random() < 0.6:
            del node[self.random.choice(names)]
        else:
            node.update(self.keyword(1))
        try:
            jsonschema_rs.Draft202012Validator(new)
        except ValueError:
            return schema
        return new

    def root(self) -> dict[str, Any]:
        schema = self.schema()
        return (schema if isinstance(schema, dict) else {"not": schema}) | {
            "$defs": {
                "tree": {
                    "type": ["object", "null"],
                    "additionalProperties": {"$ref": "#/$defs/tree"},
                },
                "text": {"type": "string", "maxLength": 2},
            }
        }


@pytest.mark.one_database
def test_the_server_agrees_with_jsonschema_rs(conn: Connection) -> None:
    generator = Generator(1)
    cases = []
    for _ in range(400):
        schema = generator.root()
        validator = jsonschema_rs.Draft202012Validator(schema)
        for _ in range(3):
            value = generator.value()
            cases.append(
                (
                    schema,
                    value,
                    sorted({pointer(e.instance_path) for e in validator.iter_errors(value)}),
                )
            )
    assert 300 < sum(bool(paths) for _, _, paths in cases) < 900
    found = conn.execute(
        "select array(select distinct path from pgq.contract_errors(s::jsonb, v::jsonb) order by 1)"
        " from unnest(%s::text[], %s::text[]) with ordinality u (s, v, nr) order by nr",
        [[json.dumps(s) for s, _, _ in cases], [json.dumps(v) for _, v, _ in cases]],
    ).fetchall()
    wrong = [
        (schema, value, paths, ours)
        for (schema, value, paths), (ours,) in zip(cases, found, strict=True)
        if paths != ours
    ]
    assert wrong == [], "\n".join(map(str, wrong[:5]))


@pytest.mark.one_database
def test_the_fast_check_has_no_answer_or_that_of_the_slow_one(conn: Connection) -> None:
    generator = Generator(conn.info.server_version // 10000)
    schemas = [json.dumps(generator.root()) for _ in range(2000)]
    values = [
        json.dumps([generator.value(), generator.members(2), [generator.members(1)]])
        for _ in schemas
    ]
    found = conn.execute(
        "select s, v, is_true,"
        " not exists (select from pgq._schema_errors(s::jsonb, v, '', s::jsonb))"
        " from unnest(%s::text[], %s::text[]) u (s, vs)"
        " cross join lateral (select pgq._schema_path(s::jsonb) offset 0) p (path)"
        " cross join jsonb_array_elements(vs::jsonb) v"
        " cross join jsonb_path_match(v, path, silent => true) is_true"
        " where path is not null",
        [schemas, values],
    ).fetchall()
    assert [row for row in found if row[2] is not row[3]][:5] == []
    assert sum(fits for *_, fits in found) > 1000


def pointer(path: list[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


BREAK_THE_SLOW_CHECK = """
create or replace function pgq._schema_errors(
    i_schema jsonb, i_data jsonb, i_path text, i_root jsonb, out path text, out error text)
returns setof record language sql as $$ select '', 'the slow check is called' $$
"""


def test_ordinary_payloads_are_checked_fast(conn: Connection, queue: str) -> None:
    """The slow check is not even called."""
    example = re.search(
        r"'placed', '(.*?)', enforced", Path("docs/contracts.md").read_text(), re.DOTALL
    )
    assert example
    line = {
        "type": "object",
        "properties": {
            "sku": {"type": "string", "pattern": r"^\w+-\d{1,5}$", "maxLength": 20},
            "price": {"type": "number", "minimum": 0, "multipleOf": 0.01},
            "tags": {"type": "array", "items": {"enum": ["new", "gift"]}, "maxItems": 3},
        },
        "required": ["sku", "price"],
        "additionalProperties": False,
    }
    order = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "note": {"type": ["string", "null"]},
            "paid": {"oneOf": [{"const": "cash"}, {"type": "object", "required": ["card"]}]},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1},
        },
        "required": ["id", "lines"],
        "$defs": {"line": line},
    }
    lines = [{"sku": "a-1", "price": 9.5}, {"sku": "b-2", "price": 1, "tags": ["new"]}]
    fits: list[tuple[Any, Any]] = [
        (json.loads(example[1]), {"id": 1, "lines": [{"price": 9}]}),
        (order, {"id": 17, "note": None, "paid": {"card": 4}, "lines": lines}),
        (order | {"required": []}, {"paid": "cash"}),
        (
            {"type": ["object", "array"], "items": {"properties": {"at": {"minLength": 1}}}},
            [{"at": "!"}],
        ),
    ]
    set_it: LiteralString = "select pgq.set_contract(%s, null, %s, 'none', true)"
    insert: LiteralString = "select pgq.insert_event(%s, 'x', %s)"
    for schema, value in fits:
        with conn.transaction(force_rollback=True):
            # The last version has no say.
            conn.execute(set_it, [queue, Jsonb({"type": "null"})])
            conn.execute(insert, [queue, "null"])
            conn.execute(set_it, [queue, Jsonb(schema)])
            with ops.refused("PQ054"), conn.transaction():
                conn.execute(insert, [queue, "null"])
            conn.execute(BREAK_THE_SLOW_CHECK)
            conn.execute(insert, [queue, json.dumps(value)])


SHOP = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "kind": {"enum": ["web", "app"]},
        "note": {"type": "string", "maxLength": 20},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1},
    },
    "required": ["id", "kind"],
    "additionalProperties": False,
    "$defs": {
        "line": {
            "type": "object",
            "properties": {
                "price": {"type": "number", "multipleOf": 0.01},
                "parts": {"type": "array", "items": {"$ref": "#/$defs/line"}},
            },
        }
    },
}
CHANGES: dict[str, tuple[str, Any, str | None]] = {
    # where in the schema, the new value; the path of the problem, None: compatible
    "text that decides nothing": ("description", "An order", None),
    "one more property": ("properties/new", {"type": "string"}, None),
    "another type": ("properties/note/type", "integer", "/properties/note/type"),
    "one more type": ("properties/note/type", ["string", "null"], None),
    "any number for integers": ("properties/id/type", "number", None),
    "lower minimum": ("properties/id/minimum", 0, None),
    "higher minimum": ("properties/id/minimum", 2, "/properties/id/minimum"),
    "open minimum": ("properties/id/exclusiveMinimum", 0, None),
    "maximum": ("properties/id/exclusiveMaximum", 9, "/properties/id/exclusiveMaximum"),
    "steps of integers": ("properties/id/multipleOf", 1, None),
    "one more value": ("properties/kind/enum", ["web", "app", "fax"], None),
    "one value less": ("properties/kind/enum", ["web"], "/properties/kind"),
    "longer text": ("properties/note/maxLength", 21, None),
    "shorter text": ("properties/note/maxLength", 19, "/properties/note/maxLength"),
    "a pattern": ("properties/note/pattern", "a", "/properties/note/pattern"),
    "less required": ("required", ["id"], None),
    "more required": ("required", ["id", "kind", "note"], "/required"),
    "more properties": ("additionalProperties", True, None),
    "a property of those allowed": ("properties/note", None, "/properties/note"),
    "referenced": ("$defs/line/properties/price/multipleOf", 0.001, None),
    "referenced, finer": (
        "$defs/line/properties/price/multipleOf",
        1,
        "/properties/lines/items/properties/price/multipleOf",
    ),
    "fewer items": ("properties/lines/minItems", 0, None),
    "items that differ": ("properties/lines/uniqueItems", True, "/properties/lines/uniqueItems"),
    "an alternative": ("properties/note", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
    "not": ("properties/note/not", {"const": ""}, "/properties/note/not"),
    "not understood": (
        "properties/note/unevaluatedProperties",
        False,
        "/properties/note/unevaluatedProperties",
    ),
}


@pytest.mark.one_database
@pytest.mark.parametrize("change", CHANGES)
def test_a_new_version_accepts_what_the_last_one_accepts(conn: Connection, change: str) -> None:
    place, value, path = CHANGES[change]
    new = copy.deepcopy(SHOP)
    *steps, last = place.split("/")
    inside: Any = new
    for step in steps:
        inside = inside[step]
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    conn.execute("select pgq.create_queue('q')")
    set_it: LiteralString = "select pgq.set_contract('q', %s, %s, 'backward')"
    conn.execute(set_it, [change, Jsonb(SHOP)])
    if path is None:
        assert ops.value(conn, set_it, change, Jsonb(new)) == 2
    else:
        with ops.refused("PQ057", f"at {re.escape(path)}: "):
            conn.execute(set_it, [change, Jsonb(new)])


@pytest.mark.one_database
def test_what_counts_as_compatible_is(conn: Connection) -> None:
    """Random changes of random schemas, and values that the old one accepts."""
    generator = Generator(conn.info.server_version // 10000)
    pairs = [(old, generator.changed(old)) for old in (generator.root() for _ in range(150))]
    found = conn.execute(
        "select not exists (select from pgq._schema_narrowed("
        "           jsonb_build_array(o::jsonb), n::jsonb, '', o::jsonb, n::jsonb, '{}'))"
        " from unnest(%s::text[], %s::text[]) with ordinality u (o, n, nr) order by nr",
        [[json.dumps(old) for old, _ in pairs], [json.dumps(new) for _, new in pairs]],
    ).fetchall()
    compatible = [pair for pair, (is_wider,) in zip(pairs, found, strict=True) if is_wider]
    assert 50 < len(compatible) < 125
    for old, new in compatible:
        before, after = map(jsonschema_rs.Draft202012Validator, (old, new))
        for _ in range(100):
            value = generator.value()
            assert after.is_valid(value) or not before.is_valid(value), (old, new, value)
