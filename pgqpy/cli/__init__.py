"""The ``pgqpy`` command: one module per command group, ``main`` is the console script."""

from pgqpy.cli.app import main

__all__ = ["main"]
