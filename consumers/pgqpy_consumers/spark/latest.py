"""From changes to rows: the newest version of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BinaryType, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def latest_rows(df: DataFrame, keys: Sequence[str] | None = None) -> DataFrame:
    """Fold changes of captured tables into the newest version of each row.

    The result has the same columns: of each row the event with the highest ev_id, of rows that
    were not deleted, and not truncated. Changed keys need nothing: they come as a DELETE and an
    INSERT. Without a column ev_operation all events are versions of rows. With one, the range is
    read a second time, for its TRUNCATEs; ``df.persist()`` if that is much.

    Args:
        df: changes with typed columns, and ev_id; no stream (but in foreachBatch it is none).
        keys: the columns that identify a row. None: those that each event names in ev_key.

    Raises ValueError if the DataFrame lacks a column that this takes. Reading the result fails if
    an event is malformed, or without ``keys`` if one names no key, or one that is no column.
    """
    _check(df, keys)
    rows, truncated = df, None
    if "ev_malformed" in df.columns:
        rows = rows.where(
            F.when(F.col("ev_malformed").isNull(), True).otherwise(
                _failure("latest_rows: event %s is malformed; filter such events out first")
            )
        )
    if "ev_operation" in df.columns:
        is_truncate = F.col("ev_operation").eqNullSafe("TRUNCATE")
        truncated = rows.where(is_truncate)
        rows = rows.where(~is_truncate)

    identity = [F.col(_quoted(name)) for name in keys] if keys else [_key(df)]
    if "ev_table" in df.columns:
        identity.append(F.col("ev_table"))
    every = F.struct(*(F.col(_quoted(name)) for name in df.columns))
    newest = (
        rows.groupBy(*(part.alias(f"key_{at}") for at, part in enumerate(identity)))
        .agg(F.max_by(every, "ev_id").alias("row"))
        .select("row.*")
    )
    if truncated is None:
        return newest
    newest = newest.where(~F.col("ev_operation").eqNullSafe("DELETE"))
    last = truncated.groupBy("ev_table").agg(F.max("ev_id").alias("ev_id"))
    is_gone = (newest["ev_table"] == last["ev_table"]) & (newest["ev_id"] < last["ev_id"])
    return newest.join(F.broadcast(last), is_gone, "left_anti")


def _check(df: DataFrame, keys: Sequence[str] | None) -> None:
    if df.isStreaming:
        raise ValueError("latest_rows folds what has an end: call it in foreachBatch")
    needed = {"ev_id", *(keys or ["ev_key"])}
    if "ev_operation" in df.columns:
        needed.add("ev_table")  # a TRUNCATE is of one table
    missing = sorted(needed.difference(df.columns))
    if missing:
        raise ValueError(f"latest_rows needs columns {', '.join(missing)} in the DataFrame")


def _key(df: DataFrame) -> Column:
    """The values, as texts, of the columns that ev_key names."""
    columns = [name for name in df.columns if not name.startswith("ev_")]
    texts = F.create_map(
        *(part for name in columns for part in (F.lit(name), _text(df.schema, name)))
    )
    key = F.col("ev_key")
    is_known = (F.size(key) > 0) & F.forall(
        key, lambda name: F.array_contains(F.map_keys(texts), name)
    )
    return F.when(is_known, F.transform(key, lambda name: F.element_at(texts, name))).otherwise(
        _failure("latest_rows: the key of event %s is no column; say which are: keys=[...]")
    )


def _text(schema: StructType, name: str) -> Column:
    column, type_ = F.col(_quoted(name)), schema[name].dataType
    if isinstance(type_, BinaryType):
        return F.hex(column)
    return F.to_json(column) if isinstance(type_, ArrayType | StructType) else column.cast("string")


def _failure(message: str) -> Column:
    return F.raise_error(F.format_string(message, F.col("ev_id")))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
