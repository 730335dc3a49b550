"""The schema for decoding the changes of a captured table, made from the table."""

from __future__ import annotations

import psycopg
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import pgqpy
from pgqpy.errors import InvalidParameter, translate_errors
from pgqpy_consumers.spark.payload import CHANGE_SCHEMA, RESERVED
from pgqpy_consumers.spark.schema import EVENT_SCHEMA

_TYPES: dict[str, DataType] = {
    "bool": BooleanType(),
    "int2": ShortType(),
    "int4": IntegerType(),
    "int8": LongType(),
    "float4": FloatType(),
    "float8": DoubleType(),
    "date": DateType(),
    "timestamp": TimestampNTZType(),
    "timestamptz": TimestampType(),
    "bytea": BinaryType(),
}

# Columns in order, down through arrays and domains to the type of the values.
_COLUMNS = """
    with recursive part (number, name, type, modifier, dimensions) as (
        select a.attnum, a.attname, a.atttypid, a.atttypmod, 0
          from pg_catalog.pg_attribute a
         where a.attrelid = %s
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
) -> StructType:
    """The schema that decodes the changes of a table: for ``.schema(...)``.

    It has ev_id, ev_time, ev_operation, ev_table and ev_key, then the table's columns. Types that
    Spark lacks are strings, numeric without precision is decimal(38,18), an array has one
    dimension. All columns are nullable.

    Args:
        database: a connection, or a DSN as for `pgqpy.dsn.resolve`.
        table: its name as in SQL: with schema, and with quotes if needed.

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
    schema = StructType([EVENT_SCHEMA["ev_id"], EVENT_SCHEMA["ev_time"], *CHANGE_SCHEMA])
    for name, type_, modifier, dimensions in found:
        if name in RESERVED:
            raise InvalidParameter(
                f"table {table} has a column {name}, which events have, too",
                hint="Write the schema by hand, without it: it cannot be decoded.",
            )
        schema.add(StructField(str(name), _spark_type(type_, modifier, dimensions)))
    return schema


def _spark_type(name: object, modifier: object, dimensions: object) -> DataType:
    assert isinstance(modifier, int)
    assert isinstance(dimensions, int)
    type_ = _decimal(modifier) if name == "numeric" else _TYPES.get(str(name), StringType())
    for _ in range(dimensions):
        type_ = ArrayType(type_)
    return type_


def _decimal(modifier: int) -> DataType:
    """numeric(p,s) packs both into the modifier; the scale has 11 bits and a sign."""
    if modifier == -1:
        return DecimalType(38, 18)
    precision = (modifier - 4) >> 16
    scale = ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return DecimalType(precision, scale) if precision <= 38 else StringType()
