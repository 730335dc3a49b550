"""Errors of an embedded server."""

from __future__ import annotations

from pgqpy.errors import PgqError


class EmbeddedError(PgqError):
    """The server could not be found, started or stopped; the message says what to do."""
