"""An event as a row of a DataFrame.

The columns have the names and the order of ``pgq.get_batch_events``, as in SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TYPES: dict[str, DataType] = {
    "ev_id": LongType(),
    "ev_time": TimestampType(),
    "ev_txid": LongType(),
    "ev_retry": IntegerType(),
    "ev_type": StringType(),
    "ev_data": StringType(),
    "ev_extra1": StringType(),
    "ev_extra2": StringType(),
    "ev_extra3": StringType(),
    "ev_extra4": StringType(),
}

EVENT_COLUMNS = tuple(_TYPES)
"""The names of the columns."""

EVENT_SCHEMA = StructType([StructField(name, type_) for name, type_ in _TYPES.items()])
"""The schema of every DataFrame of events."""

# The times that Spark's TIMESTAMP can hold and Python's datetime can show. PostgreSQL has
# more on both sides, and infinity beyond, which would arrive as another time.
_TIME = (
    "case when ev_time >= timestamptz '0001-01-01 00:00:00+00'"
    " and ev_time < timestamptz '10000-01-01 00:00:00+00' then ev_time end as ev_time"
)

SELECT_LIST = ", ".join(_TIME if name == "ev_time" else name for name in _TYPES)
"""The select list over a batch query that gives `EVENT_SCHEMA`."""


@cache
def arrow_schema(columns: Sequence[str] = EVENT_COLUMNS) -> Any:
    """The Arrow schema of `EVENT_SCHEMA`, or of some of its columns, for record batches."""
    import pyarrow as pa

    types = {
        LongType: pa.int64(),
        IntegerType: pa.int32(),
        StringType: pa.string(),
        TimestampType: pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, types[type(_TYPES[name])]) for name in columns])
