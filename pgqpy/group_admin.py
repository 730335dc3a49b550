# WARNING: generated from pgqpy/group_admin_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Administration of consumer groups: one method for each SQL function."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from psycopg.rows import dict_row

from pgqpy._wire.statements import call, checked
from pgqpy.connection import Connection
from pgqpy.errors import GroupNotFound, translate_errors
from pgqpy.models import GroupInfo, GroupPartition, ParkedKey


class GroupAdmin:
    """Consumer groups, on the caller's connection and in its transaction.

    Raises a `pgqpy.errors.PgqError` for what the SQL functions refuse, for instance GroupNotFound.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    def create_group(
        self,
        queue: str,
        group_name: str,
        *,
        key: str,
        partitions: int = 8,
        lease: timedelta = timedelta(seconds=15),
        park_limit: int = 10_000,
        at_tick: int | None = None,
    ) -> bool:
        """Create a group behind the newest tick, or ``at_tick``; False if it exists already.

        ``key`` is described at `GroupConsumer`. Raises InvalidParameter if it cannot be a key, and
        GroupConflict if the group has another.
        """
        return bool(
            self._value(
                "create_group",
                queue,
                group_name,
                partitions,
                key,
                lease,
                park_limit,
                at_tick,
            )
        )

    def drop_group(self, queue: str, group_name: str, *, force: bool = False) -> None:
        """Drop a group with its positions; with ``force`` its parked events too.

        Raises KeysParked if it has parked events and ``force`` is not set.
        """
        self._value("drop_group", queue, group_name, force)

    def set_group_config(self, queue: str, group_name: str, param: str, value: object) -> None:
        """Change ``lease`` or ``park_limit`` of a group."""
        self._value("set_group_config", queue, group_name, param, str(value))

    def resize_group(self, queue: str, group_name: str, partitions: int) -> int | None:
        """Change the number of partitions; return the tick that all must reach first, None if done.

        Its workers take the partitions there. Setting the present number cancels a resize that has
        not happened yet.
        """
        tick: int | None = self._value("resize_group", queue, group_name, partitions)
        return tick

    def get_group_info(
        self, queue: str | None = None, group_name: str | None = None
    ) -> list[GroupInfo]:
        """Return all groups, those of a queue, or one. Raises GroupNotFound if it does not
        exist."""
        rows = self._rows("get_group_info", queue, group_name)
        if group_name is not None and queue is not None and not rows:
            raise GroupNotFound(
                f"there is no consumer group {group_name!r} on queue {queue!r}",
                hint="Create it with create_group, or run a worker.",
            )
        return [GroupInfo.from_row(row) for row in rows]

    def get_group_partitions(self, queue: str, group_name: str) -> list[GroupPartition]:
        """Return the partitions of a group, by number."""
        rows = self._rows("get_group_partitions", queue, group_name)
        return [GroupPartition.from_row(row) for row in rows]

    def get_parked_keys(self, queue: str, group_name: str) -> list[ParkedKey]:
        """Return the parked keys of a group, the longest parked first."""
        rows = self._rows("get_parked_keys", queue, group_name)
        return [ParkedKey.from_row(row) for row in rows]

    def unpark_key(self, queue: str, group_name: str, key: str | None = None) -> int:
        """Retry a parked key, or all, now, in order; return the number of keys."""
        return int(self._value("unpark_key", queue, group_name, key))

    def give_up_parked(self, queue: str, group_name: str, key: str, *, most: int | None = 1) -> int:
        """Make the first events of a parked key dead letters, None: of all; return their number.

        The rest of the key is retried now.
        """
        return int(self._value("give_up_parked", queue, group_name, key, most))

    def _value(self, function: str, *arguments: Any) -> Any:
        return next(iter((self._rows(function, *arguments))[0].values()))

    def _rows(self, function: str, *arguments: Any) -> list[dict[str, Any]]:
        with translate_errors(), self.conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute(call(function, len(arguments)), checked(arguments))
            return cursor.fetchall()
