"""Captured changes in tables of another database: their latest state, each change, or history."""

from pgqpy_consumers.table_loader.consumer import TableLoader
from pgqpy_consumers.table_loader.errors import BadRow

__all__ = ["BadRow", "TableLoader"]
