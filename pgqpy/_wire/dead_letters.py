"""The statements about dead letters; the parameters of all are a filter."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pgqpy._wire.statements import checked
from pgqpy.models import DeadLetterFilter

WHERE = """
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

COUNT = f"select count(*) as value from pgq.dead_letter {WHERE}".encode()
FIND = f"{_COLUMNS} {WHERE} order by dl_id desc limit %(limit)s".encode()
_IDS = f"array(select dl_id from pgq.dead_letter {WHERE})"
REPLAY = f"select pgq.replay_dead_letters({_IDS}, %(data)s) as value".encode()
PATCH = f"select pgq.replay_dead_letters_patched({_IDS}, %(patch)s::jsonb) as value".encode()
PURGE = f"select pgq.purge_dead_letters({_IDS}) as value".encode()


def parameters(which: DeadLetterFilter, **more: Any) -> dict[str, Any]:
    """Return the parameters of a statement. Raises TypeError, InvalidPayload."""
    if not isinstance(which, DeadLetterFilter):
        raise TypeError(f"dead letters are chosen by a DeadLetterFilter, not {which!r:.80}")
    given = asdict(which)
    checked([*given.values(), more.get("data")])
    return given | {"ids": None if which.ids is None else list(which.ids)} | more
