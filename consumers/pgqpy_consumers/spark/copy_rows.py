"""Arrow columns as rows of PostgreSQL's binary COPY, without a Python object for each value.

A row is its number of fields, then each field's length (-1: NULL) and bytes. So rows are built by
joining the columns and their lengths as Arrow joins texts; COPY takes the joined column's buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pgqpy._wire.copy_format import MAX_EVENT_BYTES, NEW_EVENT_COLUMNS
from pgqpy.errors import PayloadTooLarge

_COUNT = struct.pack(">h", len(NEW_EVENT_COLUMNS))
_NULL = struct.pack(">i", -1)


def copy_rows(batch: pa.RecordBatch) -> Iterator[bytes]:
    """The rows with all columns of a new event, in order; missing columns are NULL.

    Without COPY's header and trailer. Texts are not checked: the server refuses those that cannot
    be stored. Raises PayloadTooLarge.
    """
    rows, size = batch.num_rows, batch.nbytes
    if size > MAX_EVENT_BYTES:
        if rows == 1:
            raise PayloadTooLarge(f"an event of about {size:,} bytes is too large")
        # Joined texts have to fit into 2 GB.
        yield from copy_rows(batch.slice(0, rows // 2))
        yield from copy_rows(batch.slice(rows // 2))
    elif rows:
        present = set(batch.schema.names)
        fields: list[pa.Array | pa.Scalar] = [pa.scalar(_COUNT)]
        for name in NEW_EVENT_COLUMNS:
            fields += _field(batch.column(name)) if name in present else [pa.scalar(_NULL)]
        joined = pc.binary_join_element_wise(*fields, pa.scalar(b""))
        yield joined.buffers()[2].to_pybytes()


def _field(texts: pa.Array) -> list[pa.Array]:
    """Lengths, as COPY writes them, and contents."""
    data = texts.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(data), -1).to_numpy().astype(">i4")
    written = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(len(_NULL)), len(data), [None, pa.py_buffer(lengths)]
    )
    return [written.cast(pa.binary()), pc.fill_null(data, b"")]
