"""Contracts as types of Spark and Avro."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

from pgqpy_consumers.spark import _archive_avro
from pgqpy_consumers.spark._archive_avro import Contracts
from pgqpy_consumers.spark._contract import struct_of
from pgqpy_consumers.spark._events import arrow_schema
from pgqpy_consumers.spark._options import InvalidOption, ReadOptions

ORDER = {
    "type": "object",
    "$defs": {
        "money": {"type": ["number", "null"], "format": "decimal(8,2)"},
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}},
    },
    "required": ["no", "at"],
    "properties": {
        "at": {"type": "string", "format": "date-time"},
        "no": {"type": "integer"},
        "price": {"$ref": "#/$defs/money"},
        "state": {"enum": ["new", "paid", None]},
        "size": {"enum": ["1-2"]},
        "mixed": {"enum": ["a", 1]},
        "ratio": {"type": ["integer", "number"]},
        "maybe": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
        "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "a-b": {"type": "integer"}},
            },
        },
        "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}]},
        "tree": {"$ref": "#/$defs/tree"},
        "free": {"type": "object"},
        "huge": {"type": "number", "format": "decimal(50,2)"},
        "mail": {"type": "string", "format": "email"},
        "any": True,
        "nowhere": {"$ref": "https://x/y"},
        "größe": {"type": "string"},
    },
}


def test_a_json_schema_becomes_columns() -> None:
    columns = struct_of(ORDER)
    assert columns is not None
    assert [f"{each.name} {each.dataType.simpleString()}" for each in columns] == [
        *("no bigint", "at timestamp", "price decimal(8,2)", "state string", "size string"),
        *("mixed string", "ratio double", "maybe boolean", "either string"),
        *("lines array<struct<sku:string,a-b:bigint>>", "matrix array<array<bigint>>"),
        *("pair string", "tree struct<left:string>", "free string", "huge string"),
        *("mail string", "any string", "nowhere string", "größe string"),
    ]
    for no_object in (True, {}, {"type": "string"}, {"type": "object"}, {"type": ["array"]}):
        assert struct_of(no_object) is None


FULL = {
    "no": 7, "at": "2026-11-23T15:04:05.000006+01:00", "price": 1.5, "state": "paid",
    "lines": [{"sku": "x", "a-b": 1}, None], "either": 5, "free": {"a": [1.50]}, "größe": "L",
    "matrix": [[1], []],
}  # fmt: skip


def contracts() -> Contracts:
    columns = struct_of(ORDER) or T.StructType()
    # Names that Avro does not allow, and that are equal without the rest.
    kinds = {"order.paid": columns, "order paid": columns, "": T.StructType().add("n", "long")}
    return Contracts("q", dict.fromkeys(kinds, 3) | {"text": 1}, kinds)


def records(*events: tuple[str | None, str | None]) -> list[dict[str, Any]]:
    """The events as they are in a file."""
    rows = [{"ev_id": n, "ev_type": t, "ev_data": d} for n, (t, d) in enumerate(events)]
    made = contracts()
    file = io.BytesIO()
    written = made.records(pa.RecordBatch.from_pylist(rows, arrow_schema()))
    fastavro.writer(file, fastavro.parse_schema(made.schema), written)
    file.seek(0)
    return [*fastavro.reader(file, return_record_name=True)]


def test_payloads_are_typed_by_the_contract_of_their_type() -> None:
    made = records(("order paid", json.dumps(FULL)), ("order.paid", "{}"), ("other", '{"n": 1}'))
    assert [each["payload"][0] for each in made] == [
        *("pgqpy.order_paid_", "pgqpy.order_paid", "pgqpy.payload")
    ]
    payload = {name: value for name, value in made[0]["payload"][1].items() if value is not None}
    assert payload.pop("lines")[0][1] == {"sku": "x"}
    assert {name: str(value) for name, value in payload.items()} == {
        "no": "7", "at": str(datetime(2026, 11, 23, 14, 4, 5, 6, UTC)), "price": "1.50",
        "state": "paid", "either": "5", "free": '{"a": [1.5]}', "matrix": "[[1], []]",
    }  # fmt: skip
    assert not any(made[1]["payload"][1].values())
    assert [each["ev_data"] for each in made] == [json.dumps(FULL), "{}", '{"n": 1}']


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("order.paid", '{"no": "x"}'),
        ("order.paid", '{"state": "lost"}'),
        ("order.paid", '{"no": 9223372036854775808}'),
        ("order.paid", "no JSON"),
        ("order.paid", None),
        ("text", '{"n": 1}'),  # its contract is of no objects
        (None, "[]"),
    ],
)
def test_what_does_not_fit_is_kept_as_text(kind: str | None, data: str | None) -> None:
    bad, good = records((kind, data), ("order.paid", '{"no": 1}'))
    assert (bad["ev_type"], bad["ev_data"], bad["payload"]) == (kind, data, None)
    assert good["payload"][1]["no"] == 1


def test_a_file_for_each_partition_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_archive_avro, "_PIECE", 100)
    at = datetime(2026, 11, 23, tzinfo=UTC)
    rows = [{"ev_id": n, "ev_time": at, "ev_type": "order.paid", "ev_data": "{}"} for n in range(9)]
    days = pa.array([None, *["2026-11-22"] * 5, *["2026-11-23"] * 3])
    events = pa.RecordBatch.from_pylist(rows, arrow_schema())
    events = events.append_column("day", days)
    pieces = [
        row
        for batch in _archive_avro._files(("day",), contracts(), [events[:4], events[4:]])
        for row in batch.to_pylist()
    ]
    files: dict[tuple[str, int], bytes] = {}
    for row in pieces:
        key = (row["partition"][0], row["events"])
        files[key] = files.get(key, b"") + row["content"]
    assert [*files] == [(None, 1), ("2026-11-22", 5), ("2026-11-23", 3)]
    assert len({row["file"] for row in pieces}) == 3 < len(pieces)
    contents = pa.record_batch({"content": pa.array(files.values(), pa.binary())})
    read = pa.Table.from_batches(_archive_avro._events([contents]))
    assert read == pa.Table.from_batches([events.drop_columns(["day"])])


def test_a_contract_decides_which_events_are_read() -> None:
    options = ReadOptions.parse({"queue": "q", "contract": "it's", "where": "ev_id > 1 or true"})
    assert options.payload == "json"
    assert options.where is not None
    assert options.where.startswith("(ev_id > 1 or true) and (ev_type = 'it''s' or ev_extra1 =")
    with pytest.raises(InvalidOption, match="contractVersion needs option contract"):
        ReadOptions.parse({"queue": "q", "contractVersion": "1"})
