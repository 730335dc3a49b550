"""Consumers and consumer groups: how far they are, why not further, and moves to another place."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from pgqpy._runtime.words import plural
from pgqpy.admin import Admin, GroupAdmin
from pgqpy.cli._events.consumer import events_between, main_consumer
from pgqpy.doctor._readings import group_in
from pgqpy.doctor._status import ConsumerStatus
from pgqpy.errors import ConsumerNotRegistered, InvalidParameter, PgqError
from pgqpy.models import GroupInfo, Start
from pgqpy.ui._overview import read_status
from pgqpy.ui._view import Done, Look, View, address, digits

WORST = ("stuck", "failing", "behind", "paused", "ok")
CHANGES = {
    "seek": "pgq.register_consumer_at(text, text, bigint)",
    "unregister": "pgq.unregister_consumer(text, text)",
    "pause": "pgq.pause_consumer(text, text)",
    "resize": "pgq.resize_group(text, text, integer)",
}

# The oldest tick that is kept, the position, and the newest one.
PLACES = """
select oldest.tick_time as oldest, place.tick_time as position, newest.tick_time as newest
  from pgq.queue q
 cross join lateral (
       select min(tick_id) as first, max(tick_id) as last
         from pgq.tick
        where tick_queue = q.queue_id) t
  join pgq.tick oldest on oldest.tick_queue = q.queue_id and oldest.tick_id = t.first
  join pgq.tick newest on newest.tick_queue = q.queue_id and newest.tick_id = t.last
  left join pgq.tick place on place.tick_queue = q.queue_id and place.tick_id = %s
 where q.queue_name = %s
"""
# What a role sees of the sessions of others is PostgreSQL's decision. Between two batches a
# session is named after the consumer only, whichever its queue is, with a version. An archive
# says its path after it.
SESSIONS = r"""
select pid, usename::text as role, host(client_addr) as host, backend_start as since,
       application_name like 'pgqpy batch %%' as has_batch,
       substring(rest, '^ ([^ :]+)') as version
  from pg_catalog.pg_stat_activity
  left join lateral (
       select substr(application_name, length(%(name)s) + 1) as rest
        where starts_with(application_name, left(%(name)s, 63))) r
       on rest ~ '^( \d+\.[^ :]+)?(: .+)?$'
 where application_name like 'pgqpy batch ' || %(batch)s || ',%%'
    or datname = current_database() and rest is not null
 order by has_batch desc, since
 limit 20
"""


class _Move(NamedTuple):
    """A move to a tick: what it does with how many events, and their first and last time."""

    tick: int
    verb: str
    number: int
    oldest: datetime
    newest: datetime


def consumers(look: Look) -> dict[str, Any]:
    status = read_status(look)
    groups = _groups(look, None)
    text, state = look.query.get("text", ""), look.query.get("state", "")
    found = [
        (queue, each, _group_of(queue.queue, each.consumer, groups))
        for queue in status.queues
        for each in queue.consumers
        if text in each.consumer or text in queue.queue
    ]
    counts = {name: sum(each.state == name for _, each, _ in found) for name in WORST}
    found = [row for row in found if state in ("", row[1].state)]
    found.sort(
        key=lambda row: (WORST.index(row[1].state), -(row[1].pending_events or 0), row[0].queue)
    )
    return {"found": found, "states": counts, "state": state, "text": text}


def consumer(look: Look) -> dict[str, Any]:
    queue, name = _names(look)
    [status] = read_status(look, queue).queues
    group = next(iter(_groups(look, queue, name)), None)
    itself = next((each for each in status.consumers if each.consumer == name), None)
    if group is None and itself is None:
        raise ConsumerNotRegistered(f"queue {queue!r} has no consumer {name!r}")
    members = [each for each in status.consumers if _is(each, queue, name, group)]
    values: dict[str, Any] = {
        "queue": status,
        "name": name,
        "itself": itself,
        "group": group,
        "partitions": [],
        "parked": [],
        "paused": next((each.paused for each in members), None),
        "failing": [each for each in members if each.failing],
        "place": None,
        "sessions": [],
        "to": look.query.get("to", ""),
        "preview": None,
        "may": {name: look.visit.may_change_by(each) for name, each in CHANGES.items()},
        "main": main_consumer(look.visit.conn, queue, name),
    }
    if group is not None:
        admin = GroupAdmin(look.visit.conn)
        values["partitions"] = admin.get_group_partitions(queue, name)
        values["parked"] = admin.get_parked_keys(queue, name)
    else:
        assert itself is not None
        values["place"] = next(iter(look.visit.rows(PLACES, [itself.last_tick, queue])), None)
        named = {"name": f"pgqpy {name}", "batch": str(itself.current_batch or "none")}
        values["sessions"] = look.visit.rows(SESSIONS, named)
        if values["to"]:
            # Not while the page is only kept up to date.
            values["preview"] = partial(_preview, look, queue, itself, values["to"])
    return values


def _is(each: ConsumerStatus, queue: str, name: str, group: GroupInfo | None) -> bool:
    """Return whether it is the consumer, or a partition of the group."""
    if group is None:
        return each.consumer == name
    return _group_of(queue, each.consumer, [group]) == name


def _preview(
    look: Look, queue: str, at: ConsumerStatus, to: str
) -> tuple[_Move | None, PgqError | None]:
    """Return what a move does, or why it is refused."""
    try:
        with look.visit.conn.transaction():
            return _move(look, queue, at, to), None
    except PgqError as error:
        return None, error


def _names(look: Look) -> tuple[str, str]:
    """Return the queue, and the consumer or the group of which it is a partition."""
    queue = look.query.get("queue", "")
    return queue, _group_of(queue, look.name, _groups(look, queue)) or look.name


def _groups(look: Look, queue: str | None, name: str | None = None) -> list[GroupInfo]:
    if not look.visit.may("pgq.get_group_info(text, text)"):
        return []
    found = GroupAdmin(look.visit.conn).get_group_info(queue)
    return [each for each in found if name is None or each.group_name == name]


def _group_of(queue: str, consumer: str, groups: list[GroupInfo]) -> str | None:
    """Return the group of which a consumer is a partition."""
    name = group_in(consumer)
    known = any((each.queue_name, each.group_name) == (queue, name) for each in groups)
    return name if known else None


def _move(look: Look, queue: str, at: ConsumerStatus, to: str) -> _Move:
    """Return the tick for a place, and what a move there reads again or skips."""
    start: int | Start | None = digits(to)
    if to in ("first", "now"):
        start = "first" if to == "first" else "now"
    elif start is None:
        try:
            time = datetime.fromisoformat(to)
        except ValueError:
            raise InvalidParameter(
                f"{to!r} is no place in a queue",
                hint="give first, now, a time such as 2026-11-21 08:30, or the id of an event",
            ) from None
        start = time if time.tzinfo else time.replace(tzinfo=UTC)
    conn = look.visit.conn
    tick = Admin(conn).find_tick(queue, start)
    before = tick if at.last_tick is None else at.last_tick
    between = events_between(conn, queue, min(before, tick), max(before, tick))
    return _Move(tick, "reads again" if tick < before else "skips", *between)


def seek(look: Look, form: Mapping[str, str]) -> Done:
    """Move a consumer; an open batch is dropped."""
    queue, name = _names(look)
    [status] = read_status(look, queue).queues
    at = next((each for each in status.consumers if each.consumer == name), None)
    if at is None:
        raise ConsumerNotRegistered(f"queue {queue!r} has no consumer {name!r}")
    move = _move(look, queue, at, form.get("to", ""))
    if str(at.last_tick) != form.get("from", ""):
        raise InvalidParameter(
            f"{name} was not moved: it has gone on meanwhile", hint="stop it, and look again"
        )
    Admin(look.visit.conn).register_consumer_at(queue, name, move.tick)
    does = f"{move.verb} {plural(move.number, 'event')}"
    told = f"moved {name} from tick {at.last_tick} to {move.tick}: {does}"
    return Done(told, address("consumer", queue=queue, name=name))


def pause(look: Look, form: Mapping[str, str]) -> Done:
    """Pause a consumer or group."""
    queue, name = _names(look)
    done = Admin(look.visit.conn).pause_consumer(queue, name)
    return Done(f"{name} {'is' if done else 'was already'} paused")


def resume(look: Look, form: Mapping[str, str]) -> Done:
    """End the pause of a consumer or group."""
    queue, name = _names(look)
    done = Admin(look.visit.conn).resume_consumer(queue, name)
    return Done(f"{name} {'goes on' if done else 'was not paused'}")


def unregister(look: Look, form: Mapping[str, str]) -> Done:
    """Unregister a consumer, or drop a group."""
    queue, name = _names(look)
    if form.get("confirm") != name:
        raise InvalidParameter(
            "nothing was unregistered: the name typed is another one",
            hint=f"type {name} to unregister it",
        )
    if _groups(look, queue, name):
        GroupAdmin(look.visit.conn).drop_group(queue, name, force="force" in form)
        return Done(f"dropped group {name} of {queue}", "/consumers")
    gone = Admin(look.visit.conn).unregister_consumer(queue, name)
    return Done(f"unregistered {name} from {queue}", "/consumers", gone)


def resize(look: Look, form: Mapping[str, str]) -> Done:
    try:
        partitions = int(form.get("partitions", ""))
    except ValueError:
        raise InvalidParameter("give the number of partitions in digits") from None
    queue, name = _names(look)
    tick = GroupAdmin(look.visit.conn).resize_group(queue, name, partitions)
    when = "now" if tick is None else f"as soon as its workers have taken all to tick {tick}"
    return Done(f"{name} has {plural(partitions, 'partition')} {when}")


def unpark(look: Look, form: Mapping[str, str]) -> Done:
    (queue, name), key = _names(look), form.get("key", "")
    if not GroupAdmin(look.visit.conn).unpark_key(queue, name, key):
        raise InvalidParameter(f"key {key} of group {name} is not parked any more")
    return Done(f"key {key} is tried again now", count=1)


VIEWS = [
    View("consumers", "Consumers", consumers, menu="consumers"),
    View(
        "consumer",
        "Consumer",
        consumer,
        {
            "seek": seek,
            "pause": pause,
            "resume": resume,
            "unregister": unregister,
            "resize": resize,
            "unpark": unpark,
        },
        menu="consumers",
    ),
]
