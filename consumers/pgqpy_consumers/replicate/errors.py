"""Errors about the copy of a table."""

from __future__ import annotations

from pgqpy.errors import PgqError


class ReplicaError(PgqError):
    """A table cannot be replicated, or is not replicated."""


class NotComparable(PgqError):
    """There is no point in time at which both sides can be compared."""
