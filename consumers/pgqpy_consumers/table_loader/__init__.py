"""Captured changes in tables of another database: their latest state, each change, or history."""

from pgqpy_consumers.table_loader._bad_row import BadRow
from pgqpy_consumers.table_loader.consumer import TableLoader

__all__ = ["BadRow", "TableLoader"]
