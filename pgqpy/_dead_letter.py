"""Dead letters, and filters for them, as values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Self

from pgqpy._wire.statements import checked
from pgqpy.event import Event

_WHERE = """
 where (%(ids)s::bigint[] is null or dl_id = any(%(ids)s::bigint[]))
   and (%(queue)s::text is null or dl_queue = %(queue)s)
   and (%(consumer)s::text is null or dl_consumer = %(consumer)s)
   and (%(event_type)s::text is null or ev_type = %(event_type)s)
   and (%(reason)s::text is null or position(lower(%(reason)s) in lower(dl_reason)) > 0)
   and (%(older_than)s::interval is null or dl_time < now() - %(older_than)s::interval)
"""
_COLUMNS = """
select dl_id, dl_time, dl_queue, dl_consumer, dl_batch, dl_attempts, dl_reason, dl_traceback,
       ev_id, ev_time, ev_txid, coalesce(ev_retry, 0) as ev_retry, ev_type, ev_data,
       ev_extra1, ev_extra2, ev_extra3, ev_extra4
  from pgq.dead_letter
"""

COUNT = f"select count(*) as value from pgq.dead_letter {_WHERE}".encode()
FIND = f"{_COLUMNS} {_WHERE} order by dl_id desc limit %(limit)s".encode()
REPLAY, PURGE = (
    f"select pgq.{name}(array(select dl_id from pgq.dead_letter {_WHERE})) as value".encode()
    for name in ("replay_dead_letters", "purge_dead_letters")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """A filter for dead letters: all given conditions must apply.

    ``reason`` is a part of the reason, in upper or lower case; ``older_than`` the minimum time
    since they were given up, as an interval or as PostgreSQL writes one (``"30 days"``).
    """

    ids: Collection[int] | None = None
    queue: str | None = None
    consumer: str | None = None
    event_type: str | None = None
    reason: str | None = None
    older_than: timedelta | str | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the statements here."""
        given = asdict(self)
        checked(given.values())
        return given | {"ids": None if self.ids is None else list(self.ids)}


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """A dead letter.

    ``consumer`` gave ``event`` up at ``time``, in batch ``batch_id``, after ``attempts`` attempts,
    for ``reason``; ``traceback`` is None if it was given up on purpose.
    """

    id: int
    time: datetime
    queue: str
    consumer: str
    batch_id: int
    attempts: int
    reason: str
    traceback: str | None
    event: Event

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Make it from a row of `FIND`."""
        values = list(row.values())
        *names, _ = (field.name for field in fields(cls))
        return cls(**dict(zip(names, values, strict=False)), event=Event(*values[len(names) :]))
