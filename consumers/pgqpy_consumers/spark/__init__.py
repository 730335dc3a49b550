"""Queues in Spark: `PgqDataSource` is the format ``pgq``, `SparkConsumer` a class to subclass."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if _missing := [
    name for name in ("pyspark", "pyarrow", "adbc_driver_postgresql") if find_spec(name) is None
]:
    raise ImportError(
        f'pgqpy_consumers.spark needs {_missing[0]}: pip install "pgqpy[spark]"', name=_missing[0]
    )

from pgqpy_consumers.spark._events import EVENT_SCHEMA, EventsGoneError
from pgqpy_consumers.spark.consumer import SparkConsumer
from pgqpy_consumers.spark.session import (
    JavaMissingError,
    get_session,
    local_session,
    pinned,
    require_java,
)
from pgqpy_consumers.spark.source import PgqDataSource

if TYPE_CHECKING:
    from pgqpy_consumers.spark._contract import contract_schema
    from pgqpy_consumers.spark._tables import latest_changes, latest_rows, table_schema
    from pgqpy_consumers.spark.archive import Archive
    from pgqpy_consumers.spark.payload import MalformedPayload, decode_payload
    from pgqpy_consumers.spark.replay import Replay, Selection
    from pgqpy_consumers.spark.tasks import PgqTaskDataSource

__all__ = [
    "EVENT_SCHEMA",
    "Archive",
    "EventsGoneError",
    "JavaMissingError",
    "MalformedPayload",
    "PgqDataSource",
    "PgqTaskDataSource",
    "Replay",
    "Selection",
    "SparkConsumer",
    "contract_schema",
    "decode_payload",
    "get_session",
    "latest_changes",
    "latest_rows",
    "local_session",
    "pinned",
    "require_java",
    "table_schema",
]

# Imported on demand: Spark starts Python anew for tasks, and most tasks need none of it.
_LATER = {
    "Archive": "archive",
    "MalformedPayload": "payload",
    "PgqTaskDataSource": "tasks",
    "Replay": "replay",
    "Selection": "replay",
    "contract_schema": "_contract",
    "decode_payload": "payload",
    "latest_changes": "_tables",
    "latest_rows": "_tables",
    "table_schema": "_tables",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
