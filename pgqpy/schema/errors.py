"""Errors of the schema itself."""

from __future__ import annotations

from pgqpy.errors import PgqError


class SchemaError(PgqError):
    """The schema cannot be installed, changed or removed; the hint says what to do."""
