"""Numbers and nesting at the edges: the value that is written, or a malformed payload."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructType,
)

from pgqpy_consumers.spark._options import EventOptions
from pgqpy_consumers.spark.payload import Decoder, MalformedPayload

MALFORMED = "malformed"

# Payloads are read one by one, or in bulk if there are more.
NEIGHBOURS = pytest.mark.parametrize("neighbours", [0, 300], ids=["one by one", "in bulk"])


def value(type_: DataType, written: str, neighbours: int) -> Any:
    """The value of the JSON ``written`` in a column of a type, among other payloads."""
    schema = StructType().add("a", type_).add("ev_malformed", StringType())
    options = EventOptions(queue="q", payload="json", malformed="column")
    decoder = Decoder.for_options(options, schema)
    payloads = ["{}"] * neighbours + [f'{{"a":{written},"uuid":"3e123456-0e12-4e56"}}']
    events = pa.record_batch(
        [
            pa.array(range(len(payloads)), pa.int64()),
            pa.array(["measured"] * len(payloads)),
            pa.array(payloads),
        ],
        list(decoder.columns),
    )
    row = decoder.decode(events).to_pylist()[-1]
    return MALFORMED if row["ev_malformed"] is not None else row["a"]


@NEIGHBOURS
@pytest.mark.parametrize("quote", ["", '"'], ids=["number", "string"])
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("99999999999999999999.999999999999999999", "99999999999999999999.999999999999999999"),
        ("-12345678901234567890.5", "-12345678901234567890.5"),
        ("0.1234567890123456789012345678901234567890", "0.123456789012345679"),
        ("2.5e3", "2500"),
        ("25e-1", "2.5"),
        ("123456789012345678901234567890", MALFORMED),
        (str(2**110), MALFORMED),
        (str(2**256 - 1), MALFORMED),
        ("1e30", MALFORMED),
        ("-1.5e+25", MALFORMED),
        ("1e400", MALFORMED),
        ("1e999999999", MALFORMED),
        ("11111111111111111111.99999999999999999999", "11111111111111111112"),
    ],
)
def test_a_decimal_is_the_number_that_is_written(
    written: str, expected: str, quote: str, neighbours: int
) -> None:
    found = value(DecimalType(38, 18), quote + written + quote, neighbours)
    assert found == (expected if expected == MALFORMED else Decimal(expected))


@NEIGHBOURS
def test_decimals_of_other_scales_and_inside_of_others_are_those_written(neighbours: int) -> None:
    long = "1" * 39
    assert value(DecimalType(38, 0), long[1:], neighbours) == Decimal(long[1:])
    assert value(DecimalType(38, 0), long, neighbours) == MALFORMED
    assert value(DecimalType(10, 2), str(2**127 // 50), neighbours) == MALFORMED
    listed = ArrayType(DecimalType(38, 18))
    assert value(listed, f"[1.5,{2**110}]", neighbours) == MALFORMED
    assert value(listed, "[1.5,2]", neighbours) == [Decimal("1.5"), Decimal(2)]
    struct = StructType().add("x", DecimalType(38, 18))
    assert value(struct, f'{{"x":{2**110}}}', neighbours) == MALFORMED


@NEIGHBOURS
def test_numbers_that_a_type_cannot_hold(neighbours: int) -> None:
    assert value(LongType(), str(2**63 - 1), neighbours) == 2**63 - 1
    assert value(LongType(), str(2**63), neighbours) == MALFORMED
    assert value(LongType(), "1e400", neighbours) == MALFORMED
    assert value(DoubleType(), "1e400", neighbours) == float("inf")
    assert value(DoubleType(), "-1e400", neighbours) == float("-inf")
    assert value(DoubleType(), "1e-400", neighbours) == 0.0
    assert value(StringType(), "1e400", neighbours) == "1e400"


@NEIGHBOURS
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"x":', "}")])
def test_nesting_is_kept_or_refused(opening: str, closing: str, neighbours: int) -> None:
    def nested(depth: int) -> str:
        return opening * depth + "1" + closing * depth

    assert value(StringType(), nested(500), neighbours) == nested(500)
    assert value(StringType(), nested(5_000), neighbours) == MALFORMED
    assert value(StringType(), nested(1_000_000), neighbours) == MALFORMED


def test_the_error_names_the_event() -> None:
    schema = StructType().add("a", StringType())
    decoder = Decoder.for_options(EventOptions(queue="q", payload="json"), schema)
    deep = '{"a":' + "[" * 5_000 + "]" * 5_000 + "}"
    events = pa.record_batch(
        [pa.array([7]), pa.array(["deep"]), pa.array([deep])], list(decoder.columns)
    )
    with pytest.raises(MalformedPayload, match="event 7 is malformed: JSON nested too deeply"):
        decoder.decode(events)
