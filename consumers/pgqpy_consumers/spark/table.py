"""Tables of Spark's catalog: ``create table ... using pgq options (...)``.

Spark passes a table's options to the data source when it asks for the schema, which is when the
table is created, and never again: the reader of the table is given the schema and no options. So
the options are stored in the schema, as metadata of its first column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from pgqpy import dsn
from pgqpy_consumers.spark.options import InvalidOption, Options

_GIVEN = "option."
"""Spark's prefix for the options given by the user, among all of a table; in lower case."""
_METADATA = "pgq"


def options_of_table(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of the table being created; None if no table is created."""
    given = {name: text for name, text in options.items() if name.lower().startswith(_GIVEN)}
    return {name[len(_GIVEN) :]: text for name, text in given.items()} or None


def check_no_password(options: Options) -> None:
    """Raises InvalidOption if the options have a password, which a table must not keep."""
    if options.password is not None or "password" in dsn.parse(options.dsn or ""):
        raise InvalidOption(
            "a table's options have a password, which Spark would keep in its catalog and show",
            hint="Name a service in dsn, or keep the password in .pgpass or PGPASSWORD.",
        )


def carrying(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema to be stored for a table, with its options."""
    first, *others = schema
    metadata = {_METADATA: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def carried(schema: StructType) -> tuple[StructType, dict[str, str]]:
    """The schema given to a reader, without its stored options; and those options."""
    columns, options = [], dict[str, str]()
    for column in schema:
        metadata = dict(column.metadata)
        options |= json.loads(metadata.pop(_METADATA, "{}"))
        columns.append(StructField(column.name, column.dataType, column.nullable, metadata))
    return StructType(columns), options
