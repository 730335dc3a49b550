"""The JSON of tasks, for programs that push them by SQL."""

from pgqpy.tasks._statements import changes_json, jsonb

__all__ = ["changes_json", "jsonb"]
