"""Payloads become typed columns: what is decoded, what is malformed, and that ways agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pgqpy_consumers.spark._options import EventOptions, InvalidOption
from pgqpy_consumers.spark._payload_json import check_members, read_objects
from pgqpy_consumers.spark.payload import Decoder, MalformedPayload

Rows = list[dict[str, Any]]

# More than are read one by one.
MANY = 300

# Another column, with digits that look like a number's.
BESIDE = ',"uuid":"3e123456-0e12-4e56"'


TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "smallint": ShortType(),
    "double": DoubleType(),
    "float": FloatType(),
    "boolean": BooleanType(),
    "decimal(38,18)": DecimalType(38, 18),
    "decimal(8,2)": DecimalType(8, 2),
    "decimal(38,0)": DecimalType(38, 0),
    "array<decimal(38,18)>": ArrayType(DecimalType(38, 18)),
    "struct<x:decimal(38,18)>": StructType().add("x", DecimalType(38, 18)),
    "string": StringType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "binary": BinaryType(),
    "array<int>": ArrayType(IntegerType()),
    "array<string>": ArrayType(StringType()),
    "array<date>": ArrayType(DateType()),
    "array<timestamp>": ArrayType(TimestampType()),
    "struct<x:int,y:string>": StructType().add("x", "integer").add("y", "string"),
    "struct<x:int,y:array<binary>>": (
        StructType().add("x", "integer").add("y", ArrayType(BinaryType()))
    ),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "array<interval>": ArrayType(DayTimeIntervalType()),
    "struct<int!>": StructType([StructField("x", IntegerType(), nullable=False)]),
}


REFUSED = {"map<string,int>", "array<interval>", "struct<int!>"}


def struct(schema: str) -> StructType:
    """``a int, b string`` without the Java that parses it in Spark."""
    columns = [column.rpartition(" ") for column in schema.split(", ")]
    return StructType([StructField(name, TYPES[type_]) for name, _, type_ in columns])


def decoder(
    schema: str, payload: str = "json", malformed: str = "fail", optional: str | None = None
) -> Decoder:
    given = {"queue": "q", "payload": payload, "malformed": malformed}
    options = EventOptions.parse(given if optional is None else given | {"optional": optional})
    return Decoder.for_options(options, struct(schema))


def events(payloads: list[str | None], columns: tuple[str, ...], type_: str = "I:id") -> Any:
    size = len(payloads)
    every = {
        "ev_id": pa.array(range(100, 100 + size), pa.int64()),
        "ev_time": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * size, pa.timestamp("us", "UTC")),
        "ev_type": pa.array([type_] * size, pa.string()),
        "ev_data": pa.array(payloads, pa.string()),
        "ev_extra1": pa.array(["public.t"] * size, pa.string()),
    }
    return pa.record_batch({name: every[name] for name in columns})


def decode(schema: str, *payloads: str | None, payload: str = "json", **kinds: str) -> Rows:
    type_ = kinds.pop("type_", "I:id")
    with_it = decoder(schema, payload, **kinds)
    rows = with_it.decode(events(list(payloads), with_it.columns, type_))
    assert rows.schema.equals(with_it.schema)
    found: Rows = rows.to_pylist()
    return found


def value(type_: str, text: str, payload: str = "json") -> Any:
    """One value, which many payloads that are read at once must have, too."""
    data = f'{{"a":{text}{BESIDE}}}' if payload == "json" else f"a={text}"
    [row] = decode(f"a {type_}", data, payload=payload)
    many = decode(f"a {type_}", *[data] * MANY, payload=payload)
    assert repr(many) == repr([row] * MANY)
    return row["a"]


def refused(type_: str, text: str, why: str = "column a: ") -> None:
    for count in (1, MANY):
        with pytest.raises(MalformedPayload, match=f"event 100 is malformed: {why}"):
            decode(f"a {type_}", *[f'{{"a":{text}{BESIDE}}}'] * count)


NESTED: list[Callable[[int], str]] = [
    lambda depth: "[" * depth + "1" + "]" * depth,
    lambda depth: '{"x":' * depth + "1" + "}" * depth,
]


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("bigint", "-9223372036854775808", -(2**63)),
        ("int", '"5"', 5),
        ("smallint", "32767", 32767),
        ("double", "1.5", 1.5),
        ("double", '"1.5"', 1.5),
        ("double", '"-Infinity"', float("-inf")),
        ("float", "1e3", 1000.0),
        ("boolean", "true", True),
        ("boolean", '"f"', False),
        ("decimal(38,18)", "12345678901234567890.123456789012345678",
         Decimal("12345678901234567890.123456789012345678")),
        ("decimal(8,2)", '"1.50"', Decimal("1.50")),
        ("decimal(8,2)", "2.345", Decimal("2.35")),
        ("decimal(8,2)", "-2.345", Decimal("-2.35")),
        ("decimal(8,2)", '"NaN"', None),
        ("string", '"a\\u0000b"', "a\0b"),
        ("string", '"\\ud83d\\udeeb \\" \\n"', '🛫 " \n'),
        ("string", "1.50", "1.50"),
        ("string", "true", "true"),
        ("string", '{"b": [1.0, null], "b": 2}', '{"b": [1.0, null], "b": 2}'),
        ("date", '"2024-02-29"', date(2024, 2, 29)),
        ("date", '"infinity"', None),
        ("date", '"0044-03-15 BC"', None),
        ("timestamp", '"2024-06-01T12:00:00.123456+02:00"',
         datetime(2024, 6, 1, 10, 0, 0, 123456, UTC)),
        ("timestamp", '"2024-06-01 12:00:00"', datetime(2024, 6, 1, 12, tzinfo=UTC)),
        ("timestamp", '"1800-01-01T00:53:28+00:53:28"', datetime(1800, 1, 1, tzinfo=UTC)),
        ("timestamp", '"-infinity"', None),
        ("timestamp", '"10000-01-01T00:00:00+00:00"', None),
        ("timestamp", '"0044-03-15T12:00:00.5+00:53:28 BC"', None),
        ("timestamp", '"9999-12-31T23:00:00-05:00"', None),
        ("timestamp_ntz", '"2024-06-01T12:00:00"', datetime(2024, 6, 1, 12)),  # noqa: DTZ001
        ("binary", '"\\\\xdead00"', b"\xde\xad\x00"),
        ("binary", '"a\\\\001\\\\\\\\"', b"a\x01\\"),
        ("array<int>", "[1, null]", [1, None]),
        ("array<int>", '"{1,NULL}"', [1, None]),
        ("array<string>", r'"{\"a b\",\"NULL\",\"q\\\"\\\\\",NULL}"',
         ["a b", "NULL", 'q"\\', None]),
        ("array<int>", '"[0:1]={1,2}"', [1, 2]),
        ("array<int>", '"{}"', []),
        ("array<timestamp>", '["2024-06-01T12:00:00Z", "infinity"]',
         [datetime(2024, 6, 1, 12, tzinfo=UTC), None]),
        ("struct<x:int,y:array<binary>>", '{"y": ["\\\\x00"], "z": {}}',
         {"x": None, "y": [b"\0"]}),
        ("int", "null", None),
        ("bigint", str(2**63 - 1), 2**63 - 1),
        ("double", "1e400", float("inf")),
        ("double", "-1e400", float("-inf")),
        ("double", "1e-400", 0.0),
        ("string", "1e400", "1e400"),
        ("decimal(38,0)", "1" * 38, Decimal("1" * 38)),
        ("array<decimal(38,18)>", "[1.5,2]", [Decimal("1.5"), Decimal(2)]),
        ("string", NESTED[0](500), NESTED[0](500)),
        ("string", NESTED[1](500), NESTED[1](500)),
    ],
)  # fmt: skip
def test_a_value_is_its_text_as_a_value_of_the_columns_type(
    type_: str, text: str, expected: Any
) -> None:
    assert value(type_, text) == expected


REFUSED_VALUES = {
    "int": ["2147483648", "1.0", '""'],
    "double": ['"many"'],
    "boolean": ['"yes"'],
    "bigint": [str(2**63), "1e400"],
    "decimal(8,2)": ["1234567", '"x"', str(2**127 // 50)],
    "decimal(38,0)": ["1" * 39],
    "array<decimal(38,18)>": [f"[1.5,{2**110}]"],
    "struct<x:decimal(38,18)>": [f'{{"x":{2**110}}}'],
    "date": ['"15.03.2024"', '"some day BC"'],
    "timestamp": ["1700000000"],
    "timestamp_ntz": ['"2024-06-01T12:00:00Z"'],
    "binary": ['"\\\\xabc"'],
    "array<int>": ["[[1]]", "1"],
    "struct<x:int,y:string>": ["[]"],
    "string": ['"\\ud800"'],
}


@pytest.mark.parametrize("type_", REFUSED_VALUES)
def test_what_is_no_value_of_the_type_is_malformed(type_: str) -> None:
    for text in REFUSED_VALUES[type_]:
        refused(type_, text)


@pytest.mark.parametrize("nested", NESTED, ids=["arrays", "objects"])
def test_what_is_nested_too_deeply_is_malformed(nested: Callable[[int], str]) -> None:
    refused("string", nested(5_000), "JSON nested too deeply")
    with pytest.raises(MalformedPayload, match="JSON nested too deeply"):
        decode("a string", f'{{"a":{nested(1_000_000)}}}')


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("99999999999999999999.999999999999999999", "99999999999999999999.999999999999999999"),
        ("-12345678901234567890.5", "-12345678901234567890.5"),
        ("0.1234567890123456789012345678901234567890", "0.123456789012345679"),
        ("2.5e3", "2500"),
        ("25e-1", "2.5"),
        ("11111111111111111111.99999999999999999999", "11111111111111111112"),
        ("123456789012345678901234567890", None),
        (str(2**110), None),
        (str(2**256 - 1), None),
        ("1e30", None),
        ("-1.5e+25", None),
        ("1e400", None),
        ("1e999999999", None),
    ],
)
def test_a_decimal_is_the_number_that_is_written_or_malformed(
    written: str, expected: str | None
) -> None:
    for quote in ("", '"'):
        if expected is None:
            refused("decimal(38,18)", quote + written + quote)
        else:
            assert value("decimal(38,18)", quote + written + quote) == Decimal(expected)


NO_OBJECTS = [
    *("", " ", "x", "1", "[1]", "null", '{"a":1', '{"a":1}}', '{"a":1}{"a":2}', '{"a":1,}'),
    *("{a:1}", "{'a':1}", '{"a":01}', '{"a" 1}', '{"a":1 "b":2}', '{"a":"\n"}', '{"a":1}/**/'),
]


@pytest.mark.parametrize("others", [0, MANY])
def test_what_is_no_json_object_is_malformed_and_harms_no_other(others: int) -> None:
    good = [f'{{"a":{number}}}' for number in range(others)]
    numbers = list(range(others))
    for payload in NO_OBJECTS:
        payloads = [*good, payload, *good]
        rows = decode("a int, ev_malformed string", *payloads, malformed="column")
        assert [row["a"] for row in rows] == [*numbers, None, *numbers]
        malformed = [row["ev_malformed"] for row in rows]
        assert malformed == [*[None] * others, payload, *[None] * others]
        dropped = decode("ev_id bigint, a int", *payloads, malformed="drop")
        assert [row["a"] for row in dropped] == [*numbers, *numbers]
        assert 100 + others not in [row["ev_id"] for row in dropped]
        with pytest.raises(MalformedPayload, match=f"payload of event {100 + others} is malformed"):
            decode("a int", *payloads)


def test_what_is_read_alone_is_not_refused_beside_others() -> None:
    # The first only by Python, the second, which becomes null, only by Arrow.
    payloads = ['{"a":"2020-W01-1"}', '{"a":"0000-01-01"}', '{"a":"x"}']
    rows = decode("a date, ev_malformed string", *payloads, malformed="column")
    assert [row["a"] for row in rows] == [date(2019, 12, 30), None, None]
    assert [row["ev_malformed"] for row in rows] == [None, None, payloads[2]]


def test_payloads_that_only_together_are_json_are_malformed() -> None:
    halves = ['{"a":[{}', '{}],"b":1}'] * MANY
    rows = decode("a string, b int, ev_malformed string", *halves, malformed="column")
    assert [row["ev_malformed"] for row in rows] == halves


def test_what_an_applications_json_lacks_is_null_and_what_the_schema_lacks_is_ignored() -> None:
    payloads = [None, "{}", ' {"b":\n"x" , "c":{"d":[{}]}}\n', '{"a":1,"a":2}']
    expected = [(None, None), (None, None), (None, "x"), (2, None)]
    for times in (1, MANY):
        rows = decode("a int, b string", *payloads * times, type_="order-paid")
        assert [(row["a"], row["b"]) for row in rows] == expected * times


@pytest.mark.parametrize(
    ("type_", "payload", "data", "lacks"),
    [
        ("I:id", "json", '{"a":1}', True),
        ('{"op":"UPDATE","pkey":["a"]}', "row", '{"a":1,"B":2}', True),
        ("U:a", "row", "a=1", True),
        ("own type of a trigger", "row", "a=1", True),
        ("own type of a trigger", "urlencoded", "a=1&B=2", True),
        # Not of the row itself, but of what is in it, or looks like it.
        ("I:id", "json", '{"a":1,"c":{"b":null}}', True),
        ("I:id", "json", '{"a":1,"c":[{"b":null}]}', True),
        ("I:id", "json", '{"a":1,"c":"{\\"b\\":null}","x\\"b":null}', True),
        ("I:id", "json", '{"a":1,"b":null}', False),
        ("I:id", "json", '{ "a" : 1 ,\n"b" : null }', False),
        ("I:id", "json", '{"a":1,"\\u0062":null}', False),
        ("I:id", "json", '{"a":1,"c":{"d":1},"b":null}', False),
        ("U:a", "row", "a=1&b", False),
        ("U:a", "row", "b&a=1", False),
        ("R", "json", "{}", False),
        ("R", "row", "", False),
        ('{"op":"TRUNCATE","pkey":[]}', "row", "{}", False),
        ("order-paid", "json", '{"a":1}', False),
        ("order-paid", "row", '{"a":1}', False),
        ("I:id", "json", None, False),
    ],
)
def test_a_column_that_a_tables_row_lacks_is_malformed_and_not_null(
    type_: str, payload: str, data: str | None, lacks: bool
) -> None:
    other = '{"a":5,"b":"x"}' if data is None or data.startswith("{") else "a=5&b=x"
    for others in (0, MANY):
        few = [other] * (others // 2)
        payloads = [*few, data, *few]
        if not lacks:
            found = decode("a int, b string", *payloads, payload=payload, type_=type_)[len(few)]
            assert found["b"] is None
            continue
        with pytest.raises(MalformedPayload, match=f"event {100 + len(few)} .* has no column b"):
            decode("a int, b string", *payloads, payload=payload, type_=type_)
        kept = decode(
            "a int, b string, ev_malformed string", *payloads,
            payload=payload, type_=type_, malformed="column",
        )  # fmt: skip
        assert [row["ev_malformed"] for row in kept] == [
            *[None] * len(few),
            data,
            *[None] * len(few),
        ]
        for optional in ("b", "b, a", "*"):
            rows = decode(
                "a int, b string", *payloads, payload=payload, type_=type_, optional=optional
            )
            assert rows[len(few)] == {"a": 1, "b": None}


def test_what_is_not_optional_is_asked_of_applications_too_if_there_is_the_option() -> None:
    for optional in ("", "a"):
        with pytest.raises(MalformedPayload, match=r"event 101 .* has no column b"):
            decode("a int, b int", '{"a":1,"b":2}', '{"a":1}', type_="paid", optional=optional)
    assert decode("a int, b int", '{"b":1}', type_="paid", optional="a") == [{"a": None, "b": 1}]
    with pytest.raises(InvalidOption, match="optional names 'c', which is no column"):
        decoder("a int, b int", optional="b, c")


@given(
    name=st.text(min_size=1).filter(lambda name: "\x00" not in name),
    others=st.dictionaries(st.text(), st.none() | st.text() | st.lists(st.none())),
    ascii_only=st.booleans(),
)
def test_whatever_a_column_is_called_it_is_absent_or_null(
    name: str, others: dict[str, Any], ascii_only: bool
) -> None:
    present = json.dumps(others | {name: None}, ensure_ascii=ascii_only)
    others.pop(name, None)
    absent = json.dumps(others, ensure_ascii=ascii_only)
    with suppress(UnicodeEncodeError):
        check_members(pa.array([present]), name)
        with pytest.raises(ValueError, match="it has no column"):
            check_members(pa.array([present, absent]), name)


def test_a_slice_of_a_batch_is_decoded_as_such() -> None:
    with_it = decoder("a int")
    whole = events([f'{{"a":{n}}}' for n in range(3 * MANY)], with_it.columns)
    rows = with_it.decode(whole.slice(MANY, MANY)).to_pylist()
    assert [row["a"] for row in rows] == list(range(MANY, 2 * MANY))


def test_no_events_are_no_rows() -> None:
    assert decode("a int, b array<date>, ev_key array<string>") == []


@pytest.mark.slow
def test_a_payload_of_50_megabytes_and_its_neighbours_are_decoded() -> None:
    large = "x" * 50_000_000
    for others in (1, MANY):
        rows = decode("a string", f'{{"a":"{large}"}}', *['{"a":"y"}'] * others)
        assert rows[0]["a"] == large
        assert [row["a"] for row in rows[1:]] == ["y"] * others


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from(["5", "1.5", "true", "2024-01-01", "2024-01-01T00:00:00Z", "\\x00", "{1}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=4,
)  # fmt: skip


@given(contents=JSON, type_=st.sampled_from(sorted(TYPES.keys() - REFUSED)))
def test_reading_many_at_once_gives_what_reading_each_gives(contents: Any, type_: str) -> None:
    schema = decoder(f"a {type_}").schema
    text = json.dumps({"a": contents})
    try:
        quick = read_objects(pa.array([text]), schema)
    except ValueError:
        return
    [row] = decode(f"a {type_}", text)
    assert repr(quick[0].to_pylist()) == repr([row["a"]])


def test_urlencoded_rows_are_decoded() -> None:
    schema = "id bigint, a b string, note string, t timestamp, ok boolean, n array<int>"
    payload = (
        "id=7&a+b=J%c3%b5e+%26+%2b&note&ok=t&t=2024-06-01+12%3a00%3a00%2b02&n=%7b1%2cNULL%7d"
        "&other=1"
    )
    expected = {
        "id": 7, "a b": "Jõe & +", "note": None, "ok": True, "n": [1, None],
        "t": datetime(2024, 6, 1, 10, tzinfo=UTC),
    }  # fmt: skip
    for payload_option in ("urlencoded", "row"):
        assert decode(schema, payload, payload=payload_option) == [expected]
        rows = decode(schema, *[payload, "id=8"] * MANY, payload=payload_option, optional="*")
        assert rows[0] == expected
        assert rows[1] == dict.fromkeys(expected) | {"id": 8}
    assert decode("id int", "", payload="urlencoded") == [{"id": None}]


@pytest.mark.parametrize("sql", ["(id,a) values ('1','x')", "a='x' where id='1'", "id='1'"])
@pytest.mark.parametrize("payload", ["urlencoded", "row"])
def test_the_sql_of_sqltriga_is_malformed(sql: str, payload: str) -> None:
    with pytest.raises(MalformedPayload, match="not urlencoded"):
        decode("id string", sql, payload=payload)


def test_rows_of_both_formats_may_be_mixed() -> None:
    rows = decode("id int", *['{"id":1}', "id=2"] * MANY, payload="row")
    assert [row["id"] for row in rows] == [1, 2] * MANY


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("I:id,part", ("INSERT", ["id", "part"])),
        ("U:", ("UPDATE", [])),
        ("R", ("TRUNCATE", [])),
        ('{"op":"DELETE","table":["s","t"],"pkey":["id"]}', ("DELETE", ["id"])),
        ("order-paid", (None, None)),
        ('{"op":"refund","pkey":5}', (None, None)),
        ('{"op":"INSERT","pkey":[{}]}', (None, None)),
        (r'{"op":"INSERT","pkey":["\ud800"]}', (None, None)),
        ('{"op":' + "[" * 100_000 + "]" * 100_000 + "}", (None, None)),
        ("{", (None, None)),
    ],
)
def test_the_change_is_told_by_the_events_type(type_: str, expected: tuple[Any, Any]) -> None:
    schema = "ev_operation string, ev_key array<string>, id int, ev_table string, ev_id bigint"
    [row] = decode(schema, '{"id":1}', type_=type_)
    assert (row["ev_operation"], row["ev_key"]) == expected
    assert row["ev_table"] == (expected[0] and "public.t")
    assert (row["id"], row["ev_id"]) == (1, 100)
    assert list(row) == ["ev_operation", "ev_key", "id", "ev_table", "ev_id"]


def test_only_the_columns_that_are_needed_are_asked_for() -> None:
    schema = "a int, ev_time timestamp"
    assert decoder(schema).columns == ("ev_id", "ev_time", "ev_type", "ev_data")
    assert decoder(schema, optional="*").columns == ("ev_id", "ev_time", "ev_data")


@pytest.mark.parametrize(
    ("schema", "malformed", "message"),
    [
        ("ev_id bigint, ev_data string", "fail", "needs columns"),
        ("a map<string,int>", "fail", "a cannot be decoded as map<string,int>"),
        ("a array<interval>", "fail", "cannot be decoded as interval"),
        ("a struct<int!>", "fail", "a is not nullable"),
        ("a int, ev_table int", "fail", "ev_table is of type int\nHINT: It must be of type string"),
        ("a int, ev_id int", "fail", "ev_id is of type int\nHINT: It must be of type bigint"),
        ("a int", "column", "no column ev_malformed"),
    ],
)
def test_a_schema_that_no_payload_can_give_is_refused(
    schema: str, malformed: str, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        decoder(schema, malformed=malformed)
