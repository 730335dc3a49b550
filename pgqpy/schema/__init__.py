"""The pgq schemas in PostgreSQL: install, upgrade, downgrade, and print them as SQL.

The source is ``sql/``, readable files in install order (`Manifest`). From it
come a database kept current by migrations (`migrate`, `downgrade`,
`current`), a single file for ``psql -f`` (`single_file`), and the files of
``CREATE EXTENSION`` (`extension_files`). All give the same catalog.
"""

from pgqpy.schema._bundle import extension_files, node_sql, schema_sql, single_file
from pgqpy.schema._migration import (
    async_migrate,
    current,
    downgrade,
    downgrade_sql,
    migrate,
    upgrade_sql,
    what_downgrade_loses,
)
from pgqpy.schema._sources import MIGRATIONS_DIR, SQL_DIR, Manifest, Revision, SchemaError, history

__all__ = [
    "MIGRATIONS_DIR",
    "SQL_DIR",
    "Manifest",
    "Revision",
    "SchemaError",
    "async_migrate",
    "current",
    "downgrade",
    "downgrade_sql",
    "extension_files",
    "history",
    "migrate",
    "node_sql",
    "schema_sql",
    "single_file",
    "upgrade_sql",
    "what_downgrade_loses",
]
