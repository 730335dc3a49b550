"""Captured tables: the schema that decodes their changes, and from changes to rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

import pgqpy
from pgqpy.errors import InvalidParameter, translate_errors
from pgqpy_consumers.spark._events import EVENT_SCHEMA
from pgqpy_consumers.spark.payload import CHANGE_SCHEMA, RESERVED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SPARK_TYPES: dict[str, T.DataType] = {
    "bool": T.BooleanType(),
    "int2": T.ShortType(),
    "int4": T.IntegerType(),
    "int8": T.LongType(),
    "float4": T.FloatType(),
    "float8": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampNTZType(),
    "timestamptz": T.TimestampType(),
    "bytea": T.BinaryType(),
}

# Columns in order, down through arrays and domains to the type of the values.
_COLUMNS = """
    with recursive part (number, name, type, modifier, dimensions) as (
        select a.attnum, a.attname, a.atttypid, a.atttypmod, 0
          from pg_catalog.pg_attribute a
         where a.attrelid = %s::oid
           and a.attnum > 0
           and not a.attisdropped
        union all
        select p.number, p.name,
               case t.typtype when 'd' then t.typbasetype else t.typelem end,
               case t.typtype when 'd' then t.typtypmod else p.modifier end,
               case t.typtype when 'd' then p.dimensions else p.dimensions + 1 end
          from part p
          join pg_catalog.pg_type t on t.oid = p.type
         where t.typtype = 'd' or t.typinput = 'pg_catalog.array_in'::pg_catalog.regproc
    )
    select p.name,
           case t.typnamespace when 'pg_catalog'::pg_catalog.regnamespace then t.typname end,
           p.modifier,
           p.dimensions
      from part p
      join pg_catalog.pg_type t on t.oid = p.type
     where t.typtype <> 'd' and t.typinput <> 'pg_catalog.array_in'::pg_catalog.regproc
     order by p.number
"""


def table_schema(
    database: psycopg.Connection[tuple[object, ...]] | str | None, table: str
) -> T.StructType:
    """The schema that decodes the changes of a table: for ``.schema(...)``.

    It has ev_id, ev_time, ev_operation, ev_table and ev_key, then the table's columns. Types that
    Spark lacks are strings, numeric without precision is decimal(38,18), an array has one
    dimension. All columns are nullable.

    ``database`` is a connection, or a DSN as for `pgqpy.dsn.resolve`. ``table`` is its name as in
    SQL: with schema, and with quotes if needed.

    Raises InvalidParameter if there is no such table, or if one of its columns has the name of
    an event's column; and the errors of connecting.
    """
    if not isinstance(database, psycopg.Connection):
        with pgqpy.connect(database, autocommit=True) as conn:
            return table_schema(conn, table)
    with translate_errors():
        [(relation,)] = database.execute("select pg_catalog.to_regclass(%s)::oid", [table])
        found = database.execute(_COLUMNS, [relation]).fetchall()
    if relation is None:
        raise InvalidParameter(
            f"there is no table {table}",
            hint="Give its name with its schema, as in SQL: public.orders.",
        )
    schema = T.StructType([EVENT_SCHEMA["ev_id"], EVENT_SCHEMA["ev_time"], *CHANGE_SCHEMA])
    for name, type_, modifier, dimensions in found:
        if name in RESERVED:
            raise InvalidParameter(
                f"table {table} has a column {name}, which events have, too",
                hint="Write the schema by hand, without it: it cannot be decoded.",
            )
        schema.add(T.StructField(str(name), _spark_type(type_, modifier, dimensions)))
    return schema


def _spark_type(name: object, modifier: object, dimensions: object) -> T.DataType:
    assert isinstance(modifier, int)
    assert isinstance(dimensions, int)
    type_ = _decimal(modifier) if name == "numeric" else _SPARK_TYPES.get(str(name), T.StringType())
    for _ in range(dimensions):
        type_ = T.ArrayType(type_)
    return type_


def _decimal(modifier: int) -> T.DataType:
    """numeric(p,s) packs both into the modifier; the scale has 11 bits and a sign."""
    if modifier == -1:
        return T.DecimalType(38, 18)
    precision = (modifier - 4) >> 16
    scale = ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return T.DecimalType(precision, scale) if precision <= 38 else T.StringType()


def latest_changes(df: DataFrame, keys: Sequence[str] | None = None) -> DataFrame:
    """Fold changes of captured tables into the last one of each row, to be applied to a copy.

    The result has the same columns. For each key it has the event with the highest ev_id.
    If its ev_operation is DELETE, delete the row with this key; otherwise write the row, replacing
    an old one. For each truncated table it has the last TRUNCATE, with null in the columns of the
    table, and only later changes: empty the copy first. A changed key comes as a DELETE of the old
    key and an INSERT of the new one. The range is read a second time, for its TRUNCATEs; use
    ``df.persist()`` if that is much.

    ``df`` has changes with typed columns, ev_id, ev_table and ev_operation; it is no stream (in
    foreachBatch it is none). ``keys`` are the columns that identify a row; None: those named in
    each event's ev_key.

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

    ``df`` has changes with typed columns, and ev_id; ``keys`` is as for `latest_changes`.

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


def _text(schema: T.StructType, name: str) -> Column:
    column, type_ = F.col(_quoted(name)), schema[name].dataType
    if isinstance(type_, T.BinaryType):
        return F.hex(column)
    return (
        F.to_json(column)
        if isinstance(type_, T.ArrayType | T.StructType)
        else column.cast("string")
    )


def _required(condition: Column, message: str) -> Column:
    return F.when(condition, True).otherwise(_failure(message))


def _failure(message: str) -> Column:
    return F.raise_error(F.format_string(message, F.col("ev_id")))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
