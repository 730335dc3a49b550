"""Contracts as types: JSON Schema to Spark's types, and these to Avro's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
from pyspark.sql import types as T  # noqa: N812

import pgqpy
from pgqpy.errors import translate_errors
from pgqpy_consumers.spark._events import EVENT_SCHEMA
from pgqpy_consumers.spark._options import InvalidOption
from pgqpy_consumers.spark.payload import CHANGE_SCHEMA, RESERVED

ENUM = "enum"
"""The key in a column's metadata for the texts that it may have."""

_FORMATS: dict[str, T.DataType] = {
    "date": T.DateType(),
    "date-time": T.TimestampType(),
    "date-time-local": T.TimestampNTZType(),
    "decimal": T.DecimalType(38, 18),
    "double": T.DoubleType(),
}
_TYPES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "integer": T.LongType(),
    "number": T.DoubleType(),
    "string": T.StringType(),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")

_CONTRACT = "select schema from pgq.get_contract(%s, %s, %s)"


def contract_schema(
    database: psycopg.Connection[tuple[object, ...]] | str | None,
    queue: str,
    ev_type: str,
    version: int | None = None,
) -> T.StructType:
    """The schema that decodes the events of a type by their contract: for ``.schema(...)``.

    It has ev_id, ev_time, ev_operation, ev_table and ev_key, then the members of the payload, all
    nullable: those that the contract requires in its order, then others. What Spark has no type for
    is a string of JSON. ``ev_type`` is ``schema.table`` for a captured table; without ``version``
    the newest is taken.

    ``database`` is a connection, or a DSN as for `pgqpy.dsn.resolve`. Raises InvalidOption if there
    is no contract, or it gives no columns; ContractNotFound for a version that does not exist;
    QueueNotFound, and the errors of connecting.
    """
    if not isinstance(database, psycopg.Connection):
        with pgqpy.connect(database, autocommit=True) as conn:
            return contract_schema(conn, queue, ev_type, version)
    with translate_errors():
        found: Any = database.execute(_CONTRACT, [queue, ev_type, version]).fetchone()
    columns = struct_of(found[0]) if found else None
    if not columns:
        what = "has no members" if found else "does not exist"
        raise InvalidOption(
            f"the contract of queue {queue!r} for events of type {ev_type!r} {what}",
            hint="pgq.get_contract_info(queue) lists the contracts. That of a captured table has"
            " the type schema.table.",
        )
    if taken := set(columns.names) & set(RESERVED):
        raise InvalidOption(
            f"the payload has a member {min(taken)}, which events have, too",
            hint="Write the schema by hand, without it: it cannot be decoded.",
        )
    return T.StructType([EVENT_SCHEMA["ev_id"], EVENT_SCHEMA["ev_time"], *CHANGE_SCHEMA, *columns])


def struct_of(schema: Any) -> T.StructType | None:
    """The columns of the objects that a JSON Schema describes; None if it describes none."""
    type_ = _type(schema, schema, ())
    return type_ if isinstance(type_, T.StructType) else None


def _type(schema: Any, root: Any, above: tuple[str, ...]) -> T.DataType:
    """The type of a value; ``above`` are the references that it is in."""
    schema = schema if isinstance(schema, dict) else {}
    reference = schema.get("$ref")
    if reference is not None:
        # A type that contains itself has no end.
        known = None if reference in above else _at(root, reference)
        return _type(known, root, (*above, reference))
    given = schema.get("anyOf") or schema.get("oneOf") or ()
    options = [each for each in given if each != {"type": "null"}]
    if len(options) == 1:
        return _type(options[0], root, above)
    given = schema.get("type", ())
    kinds = ({given} if isinstance(given, str) else {*given}) - {"null"}
    if "number" in kinds:
        kinds -= {"integer"}
    if len(kinds) != 1:
        return T.StringType()
    (kind,) = kinds
    if kind == "object":
        columns = [_column(name, each, root, above) for name, each in _members(schema)]
        return T.StructType(columns) if columns else T.StringType()
    if kind == "array":
        items = schema.get("items")
        plain = isinstance(items, dict) and "prefixItems" not in schema
        return T.ArrayType(_type(items, root, above)) if plain else T.StringType()
    form = str(schema.get("format"))
    if (decimal := _DECIMAL.fullmatch(form)) and kind != "integer":
        precision, scale = map(int, decimal.groups())
        return T.DecimalType(precision, scale) if scale <= precision <= 38 else T.StringType()
    if kind in ("string", "number") and form in _FORMATS:
        return _FORMATS[form]
    return _TYPES[kind]


def _column(name: str, schema: Any, root: Any, above: tuple[str, ...]) -> T.StructField:
    symbols = schema.get("enum", ()) if isinstance(schema, dict) else ()
    texts = [each for each in symbols if isinstance(each, str)]
    plain = texts and len(texts) + (None in symbols) == len(symbols)
    type_ = T.StringType() if plain else _type(schema, root, above)
    return T.StructField(name, type_, metadata={ENUM: texts} if plain else None)


def _members(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    # jsonb has changed the order of the properties, not that of arrays.
    members = schema.get("properties", {})
    order = dict.fromkeys(name for name in schema.get("required", ()) if name in members)
    return ((name, members[name]) for name in order | dict.fromkeys(members))


def _at(root: Any, reference: str) -> Any:
    """What a reference within the schema (``#/$defs/money``) points to."""
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found if reference.startswith("#") else None


# --- Avro

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_AVRO: dict[type[T.DataType], Any] = {
    T.BooleanType: "boolean",
    T.LongType: "long",
    T.DoubleType: "double",
    T.StringType: "string",
    T.DateType: {"type": "int", "logicalType": "date"},
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def avro_record(columns: T.StructType, name: str) -> dict[str, Any]:
    """The record of the columns whose names Avro allows; ``name`` has a namespace, which nested
    types extend."""
    fields = []
    for each in columns:
        if _NAME.fullmatch(each.name):
            symbols, type_name = each.metadata.get(ENUM, ()), f"{name}.{each.name}"
            type_: Any = _avro_type(each.dataType, type_name)
            if symbols and all(map(_NAME.fullmatch, symbols)):
                type_ = {"type": "enum", "name": type_name, "symbols": symbols}
            fields.append({"name": each.name, "type": ["null", type_], "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _avro_type(type_: T.DataType, name: str) -> Any:
    if isinstance(type_, T.StructType):
        return avro_record(type_, name)
    if isinstance(type_, T.ArrayType):
        return {"type": "array", "items": ["null", _avro_type(type_.elementType, name)]}
    if isinstance(type_, T.DecimalType):
        size = {"precision": type_.precision, "scale": type_.scale}
        return {"type": "bytes", "logicalType": "decimal", **size}
    return _AVRO[type(type_)]
