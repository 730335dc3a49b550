"""From changes to rows: the newest version of each row, and deletions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BinaryType, StructType

from pgqpy_consumers.spark.payload import RESERVED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def latest_changes(df: DataFrame, keys: Sequence[str] | None = None) -> DataFrame:
    """Fold changes of captured tables into the last one of each row, to be applied to a copy.

    The result has the same columns. For each key it has the event with the highest ev_id.
    If its ev_operation is DELETE, delete the row with this key; otherwise write the row, replacing
    an old one. For each truncated table it has the last TRUNCATE, with null in the columns of the
    table, and only later changes: empty the copy first. A changed key comes as a DELETE of the old
    key and an INSERT of the new one. The range is read a second time, for its TRUNCATEs; use
    ``df.persist()`` if that is much.

    Args:
        df: changes with typed columns, ev_id, ev_table and ev_operation; no stream (in
            foreachBatch it is none).
        keys: the columns that identify a row. None: the columns named in each event's ev_key.

    Raises ValueError if the DataFrame lacks a needed column. Reading the result fails if
    an event is malformed or is no change, or without ``keys`` if one names no key, or a key that is
    no column.
    """
    _check("latest_changes", df, {"ev_operation", *(keys or ["ev_key"])})
    is_change = F.col("ev_operation").isNotNull()
    return _newest(
        df.where(_required(is_change, "latest_changes: event %s is no change of a table")), keys
    )


def latest_rows(df: DataFrame, keys: Sequence[str] | None = None) -> DataFrame:
    """Fold changes of captured tables into the newest version of each row.

    The result has the same columns: for each row that was not deleted or truncated, the event with
    the highest ev_id. That is the table if the changes are complete; to update a copy, use
    `latest_changes`. Changed keys need no care: they come as a DELETE and an INSERT. Without a
    column ev_operation all events are versions of rows. With one, the range is read a second time,
    for its TRUNCATEs; use ``df.persist()`` if that is much.

    Args:
        df: changes with typed columns, and ev_id; no stream (in foreachBatch it is none).
        keys: the columns that identify a row. None: the columns named in each event's ev_key.

    Raises ValueError if the DataFrame lacks a needed column. Reading the result fails if
    an event is malformed, or without ``keys`` if one names no key, or a key that is no column.
    """
    _check("latest_rows", df, keys or ["ev_key"])
    newest = _newest(df, keys)
    if "ev_operation" not in df.columns:
        return newest
    is_gone = F.coalesce(F.col("ev_operation").isin("DELETE", "TRUNCATE"), F.lit(False))
    return newest.where(~is_gone)


def _newest(df: DataFrame, keys: Sequence[str] | None) -> DataFrame:
    """The last event of each row and the last TRUNCATE of each table, without earlier ones."""
    rows = df
    if "ev_malformed" in df.columns:
        is_good = F.col("ev_malformed").isNull()
        rows = rows.where(_required(is_good, "event %s is malformed; filter such events out first"))

    identity = [F.col(_quoted(name)) for name in keys] if keys else [_key(df)]
    if "ev_table" in df.columns:
        identity.append(F.col("ev_table"))
    if "ev_operation" in df.columns:
        # A TRUNCATE concerns no row, and has no values for a key.
        is_truncate = F.col("ev_operation").eqNullSafe("TRUNCATE")
        if not keys:
            identity[0] = F.when(~is_truncate, identity[0])
        identity.append(is_truncate)
    every = F.struct(*(F.col(_quoted(name)) for name in df.columns))
    newest = (
        rows.groupBy(*(part.alias(f"key_{at}") for at, part in enumerate(identity)))
        .agg(F.max_by(every, "ev_id").alias("row"))
        .select("row.*")
    )
    if "ev_operation" not in df.columns:
        return newest
    last = rows.where(is_truncate).groupBy("ev_table").agg(F.max("ev_id").alias("ev_id"))
    is_gone = (newest["ev_table"] == last["ev_table"]) & (newest["ev_id"] < last["ev_id"])
    return newest.join(F.broadcast(last), is_gone, "left_anti")


def _check(function: str, df: DataFrame, needed: Sequence[str] | set[str]) -> None:
    if df.isStreaming:
        raise ValueError(f"{function} folds what has an end: call it in foreachBatch")
    wanted = {"ev_id", *needed}
    if "ev_operation" in wanted.union(df.columns):
        wanted.add("ev_table")  # a TRUNCATE concerns one table
    missing = sorted(wanted.difference(df.columns))
    if missing:
        raise ValueError(f"{function} needs columns {', '.join(missing)} in the DataFrame")


def _key(df: DataFrame) -> Column:
    """The values, as texts, of the columns named in ev_key."""
    columns = [name for name in df.columns if name not in RESERVED]
    texts = F.create_map(
        *(part for name in columns for part in (F.lit(name), _text(df.schema, name)))
    )
    key = F.col("ev_key")
    is_known = (F.size(key) > 0) & F.forall(
        key, lambda name: F.array_contains(F.map_keys(texts), name)
    )
    return F.when(is_known, F.transform(key, lambda name: F.element_at(texts, name))).otherwise(
        _failure("the key of event %s is no column; say which are: keys=[...]")
    )


def _text(schema: StructType, name: str) -> Column:
    column, type_ = F.col(_quoted(name)), schema[name].dataType
    if isinstance(type_, BinaryType):
        return F.hex(column)
    return F.to_json(column) if isinstance(type_, ArrayType | StructType) else column.cast("string")


def _required(condition: Column, message: str) -> Column:
    return F.when(condition, True).otherwise(_failure(message))


def _failure(message: str) -> Column:
    return F.raise_error(F.format_string(message, F.col("ev_id")))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
