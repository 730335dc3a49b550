"""Errors of the demo."""

from __future__ import annotations

from pgqpy.errors import PgqError


class DemoError(PgqError):
    """The demo cannot run, or a part of it failed; the hint names the remedy."""
