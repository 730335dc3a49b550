"""Rows that Arrow has made for COPY are stored as they are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgqpy._wire.copy_format import HEADER, NEW_EVENT_COLUMNS, TRAILER
from pgqpy._wire.statements import copy_in
from pgqpy.errors import PayloadTooLarge
from tests.fixtures.fix_db import Connection

pytestmark = pytest.mark.spark

TEXTS = ["", None, "Ørsted", "𝄞", 'a\n\t\\N"', "x" * 70_000, None]


def stored(conn: Connection, batch: pa.RecordBatch) -> list[tuple[str | None, ...]]:
    from pgqpy_consumers.spark._sink import copy_rows

    columns = ", ".join(f"{name} text" for name in NEW_EVENT_COLUMNS)
    conn.execute(f"create temp table rows ({columns}, n serial)".encode())
    with conn.cursor() as cursor:
        with cursor.copy(copy_in("pg_temp.rows")) as copy:
            copy.write(HEADER)
            for some in copy_rows(batch):
                copy.write(some)
            copy.write(TRAILER)
        found = cursor.execute(
            f"select {', '.join(NEW_EVENT_COLUMNS)} from rows order by n".encode()
        )
        return found.fetchall()


@pytest.mark.smoke
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("start", [0, 2, 5])
def test_texts_and_nulls_are_stored_as_they_are(
    conn: Connection, type_: pa.DataType, start: int
) -> None:
    columns = [pa.array(TEXTS[at:] + TEXTS[:at], type_) for at in range(6)]
    batch = pa.record_batch(columns, names=list(NEW_EVENT_COLUMNS)).slice(start)
    assert stored(conn, batch) == list(zip(*(c.to_pylist() for c in batch.columns), strict=True))


def test_columns_come_in_any_order_and_those_that_are_missing_are_null(conn: Connection) -> None:
    batch = pa.record_batch({"ev_data": ["d"], "ev_extra3": ["3"], "ev_type": ["t"]})
    assert stored(conn, batch) == [("t", "d", None, None, "3", None)]


def test_what_is_too_large_to_be_joined_is_joined_in_parts(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqpy_consumers.spark._sink.MAX_EVENT_BYTES", 100)
    texts = [str(n) * 40 for n in range(9)]
    batch = pa.record_batch({"ev_type": ["t"] * 9, "ev_data": texts})
    assert [data for _, data, *_ in stored(conn, batch)] == texts


def test_a_row_that_could_not_be_read_again_is_refused(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqpy_consumers.spark._sink.MAX_EVENT_BYTES", 100)
    with pytest.raises(PayloadTooLarge):
        stored(conn, pa.record_batch({"ev_type": ["t", "t"], "ev_data": ["short", "x" * 101]}))
