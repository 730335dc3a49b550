"""The ``pgqpy`` command: ``main`` is the console script, all else is internal."""

from pgqpy.cli._app import main

__all__ = ["main"]
