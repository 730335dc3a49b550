"""PostgreSQL understands JSON Schema as jsonschema-rs does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from tests.fixtures.fix_db import Connection

NAMES = ["a", "b", "n/~1", "é"]
PATTERNS = [
    "^a",
    "b$",
    "^[a-c]{1,3}$",
    r"^\d+(?:\.\d+)?$",
    r"^\w*$",
    "(a|b)c?",
    r"[^\d.]",
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
            return {name: self.value(depth - 1) for name in r.sample(NAMES, r.randrange(4))}
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
            ]
        )

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
            "enum": lambda: [self.value(1) for _ in range(3)],
            "const": lambda: self.value(1),
            "required": lambda: r.sample(NAMES, r.randrange(3)),
            "minimum": lambda: r.choice([0, 1.5]),
            "maximum": lambda: r.choice([1, 2.5]),
            "exclusiveMinimum": lambda: r.choice([0, 1]),
            "exclusiveMaximum": lambda: r.choice([1, 2.5]),
            "multipleOf": lambda: r.choice([1, 2, 0.5, 0.1]),
            "minLength": lambda: r.randrange(3),
            "maxLength": lambda: r.randrange(3),
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
        name = r.choice([*simple, *(list(nested) * 2 if depth else [])])
        found = {name: (simple | nested)[name]()}
        if name == "contains":
            found |= {"minContains": r.randrange(3), "maxContains": 1 + r.randrange(2)}
        return found

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
        "select nr, array(select distinct path from pgq.contract_errors(s::jsonb, v::jsonb)"
        " order by 1) from unnest(%s::text[], %s::text[]) with ordinality u (s, v, nr) order by nr",
        [[json.dumps(s) for s, _, _ in cases], [json.dumps(v) for _, v, _ in cases]],
    ).fetchall()
    wrong = [
        (schema, value, paths, ours)
        for (schema, value, paths), (_, ours) in zip(cases, found, strict=True)
        if paths != ours
    ]
    assert wrong == [], "\n".join(map(str, wrong[:5]))


def pointer(path: list[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
