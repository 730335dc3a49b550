"""PgQ in an application's own migrations; importing this in ``env.py`` is enough.

It adds the operations ``op.create_queue``, ``op.drop_queue``, ``op.restrict_queue``,
``op.grant_queue``, ``op.revoke_queue``, ``op.capture_table``, ``op.release_table``,
``op.add_task_columns`` and ``op.remove_task_columns``, and lets autogenerate compare what the
models declare (``__pgq_queue__``, see `pgqpy.sqlalchemy`) with what the database captures.
Autogenerate leaves the tables of PgQ's own schemas alone.
"""

from pgqpy.alembic import _autogenerate  # noqa: F401
from pgqpy.alembic._operations import PgqOp

__all__ = ["PgqOp"]
