"""Spark's filters as conditions in SQL that mean the same."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from psycopg import sql
from pyspark.sql import datasource as spark
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, TimestampType

from pgqpy_consumers.spark.schema import EVENT_SCHEMA

_TYPES = {field.name: field.dataType for field in EVENT_SCHEMA}

_OPERATORS: dict[type[spark.Filter], str] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "is not distinct from",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}


def condition(asked: spark.Filter) -> str | None:
    """The filter as SQL over the columns of events, or None for one that Spark has to apply.

    Both know true, false and null, so that a negation is one.
    """
    if isinstance(asked, spark.Not):
        child = condition(asked.child)
        return child and f"not ({child})"

    path: tuple[str, ...] = getattr(asked, "attribute", ())
    type_ = _TYPES.get(path[0]) if len(path) == 1 else None
    if type_ is None:
        return None
    # Spark compares texts byte by byte, PostgreSQL by the rules of a language.
    column = f'{path[0]} collate "C"' if isinstance(type_, StringType) else path[0]
    match asked:
        case spark.IsNull():
            return f"{column} is null"
        case spark.IsNotNull():
            return f"{column} is not null"
        case spark.In(value=values):
            literals = [_literal(type_, value) for value in values]
            known = [literal for literal in literals if literal is not None]
            complete = known and len(known) == len(literals)
            return f"{column} in ({', '.join(known)})" if complete else None
        case spark.StringStartsWith(value=value):
            literal = _literal(type_, value)
            return literal and f"pg_catalog.starts_with({column}, {literal})"
        case _ if type(asked) in _OPERATORS:
            literal = _literal(type_, getattr(asked, "value", None))
            return literal and f"{column} {_OPERATORS[type(asked)]} {literal}"
    return None


def _literal(type_: DataType, value: Any) -> str | None:
    """The value in SQL; None if it is not one that a column of the type can have."""
    match type_, value:
        case StringType(), str() if "\0" not in value:
            return f"{sql.Literal(value).as_string()}::text"
        case LongType() | IntegerType(), int() if not isinstance(value, bool):
            return f"{value:d}" if abs(value) < 2**63 else None
        case TimestampType(), datetime() if value.tzinfo is not None:
            return sql.Literal(value).as_string()
    return None
