"""Dead letters, by error: found, replayed, edited, purged; and the retries that wait."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from pgqpy._runtime.words import plural
from pgqpy.connection import Connection
from pgqpy.dead_letters import _WHERE, DeadLetters
from pgqpy.errors import InvalidParameter
from pgqpy.event import Event
from pgqpy.models import DeadLetterFilter, DeadLetterInfo
from pgqpy.ui._view import Bulk, Done, Look, NotFound, View, address

#: Letters on the page; the newest of those found, which are grouped.
SHOWN, GROUPED = 50, 10_000
#: A chunk of a change; letters that are found at once for the next chunks.
CHUNK, FOUND = 5000, 100_000
#: Groups on the page.
LARGEST = 30
NUMBER = re.compile(r"\d+")
#: Characters of a payload on the page.
LONGEST = 200_000
FIELDS = ("queue", "consumer", "event_type", "reason")
CHANGES = {"replay": DeadLetters.replay, "patch": DeadLetters.replay, "purge": DeadLetters.purge}
REPLAY = "pgq.replay_dead_letters(bigint[], text)"

LIST = f"""
select dl_id as id, dl_time as time, dl_queue as queue, dl_consumer as consumer,
       dl_attempts as attempts, left(dl_reason, 200) as reason, ev_id, ev_type
  from pgq.dead_letter {_WHERE}
 order by dl_id desc
 limit %(limit)s
"""
ONE = """
select dl_id, dl_time, dl_queue, dl_consumer, dl_batch, dl_attempts, left(dl_reason, %(cut)s),
       left(dl_traceback, %(cut)s), ev_id, ev_time, ev_txid, coalesce(ev_retry, 0), ev_type,
       left(ev_data, %(cut)s)
  from pgq.dead_letter
 where dl_id = %(id)s
"""
IDS = f"""
select array(select dl_id from pgq.dead_letter {_WHERE} and dl_id <= %(newest)s
              order by dl_id limit %(limit)s)
"""
COUNT = f"""
select count(*), max(dl_id) from pgq.dead_letter {_WHERE}
"""
RETRIES = """
select q.queue_name as queue, c.co_name as consumer, w.due, w.ev_id, w.ev_type,
       coalesce(w.ev_retry, 0) as retries
  from pgq.waiting_event w
  join pgq.queue q on q.queue_id = w.ev_queue
  join pgq.registration r on r.sub_id = w.ev_owner and r.sub_queue = w.ev_queue
  join pgq.consumer c on c.co_id = r.sub_consumer
 where w.ev_owner is not null
   and (%(queue)s::text is null or q.queue_name = %(queue)s)
 order by w.due
 limit %(limit)s
"""


def dead_letters(look: Look) -> dict[str, Any]:
    which = _filter(look.query)
    given = asdict(which)
    found = look.visit.rows(LIST, given | {"limit": GROUPED})
    retries = None
    if look.visit.may("pgq.waiting_event"):
        retries = look.visit.rows(RETRIES, {"queue": which.queue, "limit": SHOWN})
    return {
        "given": {name: look.query.get(name, "") for name in FIELDS},
        "found": found[:SHOWN],
        "more": len(found) > SHOWN,
        "groups": _groups(found),
        "grouped": GROUPED if len(found) == GROUPED else None,
        "retries": retries,
        "preview": look.query.get("preview") if look.query.get("preview") in CHANGES else None,
        # Not while the page is only kept up to date.
        "count": lambda: _count(look.visit.conn, which)[0],
        "may": look.visit.may_change_by(REPLAY),
        # What is masked must not be changed unseen.
        "may_patch": not look.masks,
    }


def dead_letter(look: Look) -> dict[str, Any]:
    letter = _letter(look)
    data, may = letter.event.data or "", look.visit.may_change_by(REPLAY)
    return {
        "letter": letter,
        "is_cut": len(data) > LONGEST,
        "data": data[:LONGEST],
        "longest": LONGEST,
        # A masked payload cannot be edited: the mask would be written.
        "may_edit": not look.masks and len(data) <= LONGEST and may,
        "may": may,
    }


def _groups(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Group letters by error, the largest groups first; errors that differ in numbers are one."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for letter in found:
        error = NUMBER.sub("#", letter["reason"].partition("\n")[0])
        same = {"queue": letter["queue"], "consumer": letter["consumer"], "error": error}
        group = groups.setdefault(
            tuple(same.values()),
            # The longest part of the error that all of them have.
            same | {"count": 0, "last": letter["time"], "part": max(error.split("#"), key=len)},
        )
        group["count"] += 1
        group["first"] = letter["time"]
    return sorted(groups.values(), key=lambda group: -group["count"])[:LARGEST]


def _filter(given: Mapping[str, str]) -> DeadLetterFilter:
    queue, consumer, event_type, reason = (
        given.get(name, "").replace("\0", "") or None for name in FIELDS
    )
    return DeadLetterFilter(queue=queue, consumer=consumer, event_type=event_type, reason=reason)


def _count(conn: Connection, which: DeadLetterFilter) -> tuple[int, int]:
    """Return how many there are, and the newest."""
    [[count, newest]] = conn.execute(COUNT.encode(), asdict(which)).fetchall()
    return count, newest or 0


def _letter(look: Look) -> DeadLetterInfo:
    """Return a letter, with the pieces of its texts that are shown."""
    for row in look.visit.conn.execute(ONE, {"id": look.id, "cut": LONGEST + 1}).fetchall():
        fields = [*row[:8], Event(*row[8:])]
        return DeadLetterInfo(*fields)
    raise NotFound(
        f"there is no dead letter {look.query.get('id', '')}",
        hint="it was replayed or purged, or you may not read it",
    )


def replay(look: Look, form: Mapping[str, str]) -> Done:
    return _change_all("replay", look, form)


def patch(look: Look, form: Mapping[str, str]) -> Done:
    if look.masks:
        raise InvalidParameter("payloads are masked here, so they cannot be changed")
    try:
        is_object = isinstance(json.loads(form.get("patch", "")), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise InvalidParameter(
            "the change is no JSON object", hint='give one like {"currency": "EUR"}'
        )
    return _change_all("patch", look, form, patch=form["patch"])


def purge(look: Look, form: Mapping[str, str]) -> Done:
    return _change_all("purge", look, form)


def _change_all(name: str, look: Look, form: Mapping[str, str], **how: str) -> Done:
    """Begin to change what the preview counted: not the letters that come later."""
    which = _filter(form)
    count, newest = _count(look.visit.conn, which)
    if not count:
        raise InvalidParameter("no dead letter was found", hint="they are gone, or none fits")
    change, given = CHANGES[name], asdict(which) | {"newest": newest, "limit": FOUND}
    # The view reads all letters to find the oldest, so ids are read for many chunks.
    found: list[int] = []

    def step(conn: Connection) -> int:
        done = 0
        while not done:
            if not found:
                [[ids]] = conn.execute(IDS.encode(), given).fetchall()
                found.extend(ids)
            ids, found[:CHUNK] = found[:CHUNK], []
            if not ids:
                break
            done = change(DeadLetters(conn), DeadLetterFilter(ids=ids), **how)
        return done

    what = f"{'change and replay' if how else name} {plural(count, 'dead letter')}"
    return Done(f"began to {what}", bulk=Bulk(what, count, step))


def change_one(
    past: str, change: Callable[[DeadLetters, DeadLetterFilter], int]
) -> Callable[[Look, Mapping[str, str]], Done]:
    """Return the action that changes the letter of the page."""

    def act(look: Look, form: Mapping[str, str]) -> Done:
        letter = _letter(look)
        change(DeadLetters(look.visit.conn), DeadLetterFilter(ids=[letter.id]))
        page = address("dead_letters", queue=letter.queue)
        return Done(f"{past} dead letter {letter.id}", page, 1)

    return act


def edit(look: Look, form: Mapping[str, str]) -> Done:
    """Replay the event with another payload, to the consumer that gave it up."""
    letter, data = _letter(look), form.get("data", "")
    if look.masks:
        raise InvalidParameter("payloads are masked here, so they cannot be edited")
    if len(letter.event.data or "") > LONGEST:
        raise InvalidParameter("the payload is too long to be edited here", hint="nothing was sent")
    # Forms end lines by CR LF.
    data = data.replace("\r\n", "\n")
    try:
        json.loads(letter.event.data or "")
    except ValueError:
        pass
    else:
        try:
            json.loads(data)
        except ValueError as error:
            raise InvalidParameter(
                f"the new payload is no JSON, as the old one was: {error}", hint="nothing was sent"
            ) from None
    DeadLetters(look.visit.conn).replay(DeadLetterFilter(ids=[letter.id]), data=data)
    return Done(
        f"replayed event {letter.event.id} with the new payload to {letter.consumer}",
        address("dead_letters", queue=letter.queue),
        1,
    )


VIEWS = [
    View(
        "dead_letters",
        "Dead letters",
        dead_letters,
        {"replay": replay, "patch": patch, "purge": purge},
        menu="dead_letters",
        needs="pgq.dead_letter",
    ),
    View(
        "dead_letter",
        "Dead letter",
        dead_letter,
        {
            "replay": change_one("replayed", DeadLetters.replay),
            "purge": change_one("purged", DeadLetters.purge),
            "edit": edit,
        },
        menu="dead_letters",
    ),
]
