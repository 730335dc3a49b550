"""Options of the data source: what is given is checked, and what is wrong is named."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pgqpy_consumers.spark._options import (
    InvalidOption,
    Options,
    ReadOptions,
    StreamOptions,
    StreamWriteOptions,
    WriteOptions,
    check_no_password,
)
from pgqpy_consumers.spark._ranges import Offset


def test_names_are_case_insensitive_and_values_are_typed() -> None:
    options = ReadOptions.parse(
        {
            "QUEUE": "orders",
            "starttick": "17",
            "endTime": "2026-03-29T01:30:00+02:00",
            "numPartitions": "4",
            "columns": "ev_id, ev_type",
            "payload": "JSON",
        }
    )
    assert options == ReadOptions(
        queue="orders",
        start_tick=17,
        end_time=datetime(2026, 3, 28, 23, 30, tzinfo=UTC),
        num_partitions=4,
        columns=("ev_id", "ev_type"),
        payload="json",
    )


def test_a_stream_starts_where_it_is_told() -> None:
    for given, position in (
        ("consumer", "consumer"),
        ("Earliest", "earliest"),
        ("latest", "latest"),
        ("tick:12", 12),
        ("time:2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC)),
    ):
        options = StreamOptions.parse({"queue": "q", "consumer": "c", "startingPosition": given})
        assert options.starting_position == position


@pytest.mark.parametrize(
    ("kind", "given", "error"),
    [
        (ReadOptions, {}, "reading a queue needs option queue"),
        (ReadOptions, {"queue": ""}, "option queue is '': it is empty"),
        (StreamOptions, {"queue": "q"}, "needs option consumer"),
        (StreamWriteOptions, {"queue": "q"}, "needs option writer"),
        (
            ReadOptions,
            {"queue": "q", "startTik": "1"},
            r"no option 'startTik'(?s:.*)Is it startTick\? There are: queue, ",
        ),
        (
            ReadOptions,
            {"queue": "q", "xyz": "1"},
            r"no option 'xyz' for reading a queue\s+HINT: There",
        ),
        (WriteOptions, {"queue": "q", "startTick": "1"}, "no option 'startTick' for writing"),
        (ReadOptions, {"queue": "q", "startTick": "first"}, "startTick is 'first': .* number"),
        (ReadOptions, {"queue": "q", "numPartitions": "0"}, "numPartitions is '0': .* at least 1"),
        (ReadOptions, {"queue": "q", "endTime": "yesterday"}, "endTime is 'yesterday': .* time"),
        (ReadOptions, {"queue": "q", "endTime": "2026-01-01"}, "must have a time zone"),
        (ReadOptions, {"queue": "q", "columns": "ev_id,,"}, "columns is 'ev_id,,'"),
        (ReadOptions, {"queue": "q", "payload": "xml"}, "one of json, urlencoded, row"),
        (ReadOptions, {"queue": "q", "where": ""}, "where is '': it is empty"),
        (
            StreamOptions,
            {"queue": "q", "consumer": "c", "failOnDataLoss": "1"},
            "must be true or false",
        ),
        (
            ReadOptions,
            {"queue": "q", "startTick": "1", "startTime": "2026-01-01T00:00Z"},
            "startTick and startTime exclude each other",
        ),
        (
            ReadOptions,
            {"queue": "q", "consumer": "c", "endTick": "1"},
            "consumer and endTick exclude each other",
        ),
        *(
            (
                StreamOptions,
                {"queue": "q", "consumer": "c", "startingPosition": position},
                f"startingPosition is '{position}'",
            )
            for position in ("tick", "tick:x", "time:noon", "earliest:1", "nowhere")
        ),
    ],
)
def test_what_is_wrong_is_named(kind: type[Options], given: dict[str, str], error: str) -> None:
    with pytest.raises(InvalidOption, match=error):
        kind.parse(given)


def test_options_that_spark_adds_are_no_mistake() -> None:
    given = {"queue": "q", "writer": "w", "checkpointLocation": "checkpoint", "queryName": "name"}
    assert StreamWriteOptions.parse(given).writer == "w"
    # The password is not shown.
    options = WriteOptions.parse({"queue": "q", "dsn": "password=sesame", "password": "sesame"})
    assert "sesame" not in repr(options)


@pytest.mark.parametrize("dsn", ["password=sesame", "sslpassword=sesame"])
def test_a_table_keeps_no_secret(dsn: str) -> None:
    with pytest.raises(InvalidOption, match="have a password") as caught:
        check_no_password(WriteOptions.parse({"queue": "q", "dsn": dsn}))
    assert "sesame" not in str(caught.value)


def test_an_offset_comes_back_from_a_checkpoint() -> None:
    offset = Offset(queue="7/5/3", tick=12, seq=3456, time=1, snapshot="10:20:12,15")
    assert offset.to_dict() == {
        "queue": "7/5/3",
        "tick": 12,
        "seq": 3456,
        "time": 1,
        "snapshot": "10:20:12,15",
    }
    assert Offset.from_dict(offset.to_dict()) == offset
