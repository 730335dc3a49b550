"""PgQ in an application's own migrations; importing this in ``env.py`` is enough.

It adds the operations ``op.create_queue``, ``op.drop_queue``, ``op.capture_table``,
``op.release_table``, ``op.add_task_columns`` and ``op.remove_task_columns``, and lets autogenerate
compare what the models declare (``__pgq_queue__``, see `pgqpy.sqlalchemy`) with what the database
captures. Autogenerate leaves the tables of PgQ's own schemas alone.
"""

from pgqpy.alembic import compare, render
from pgqpy.alembic.operations import (
    AddTaskColumnsOp,
    CaptureTableOp,
    CreateQueueOp,
    DropQueueOp,
    ReleaseTableOp,
    RemoveTaskColumnsOp,
)

__all__ = [
    "AddTaskColumnsOp",
    "CaptureTableOp",
    "CreateQueueOp",
    "DropQueueOp",
    "ReleaseTableOp",
    "RemoveTaskColumnsOp",
]

compare.register()
render.register()
