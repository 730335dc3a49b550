"""Queues of events: the list, and one queue with its settings, consumers and rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pgqpy.admin import Admin
from pgqpy.cli._events.queue import PARAMETERS
from pgqpy.connection import Connection
from pgqpy.errors import InvalidParameter, PermissionDenied, translate_errors
from pgqpy.ui._overview import Line, read_status
from pgqpy.ui._piece import CUT
from pgqpy.ui._view import Action, Done, Look, View, address

#: The event tables: which one is written now, and their sizes.
TABLES = """
select n as number, n = q.queue_cur_table as current,
       pg_total_relation_size(to_regclass(format('%%s_%%s', q.queue_data_pfx, n))) as bytes
  from pgq.queue q
 cross join generate_series(0, q.queue_ntables - 1) n
 where q.queue_name = %s
 order by n
"""
#: The oldest tick that is kept.
KEPT = """
select q.queue_name, oldest.tick_id as first_tick, oldest.tick_time as first_time
  from pgq.queue q
  left join lateral (
       select tick_id, tick_time
         from pgq.tick
        where tick_queue = q.queue_id
        order by tick_id
        limit 1) oldest on true
 where q.queue_name = %s
"""
DELAYED = """
select due, ev_id as id, ev_type as type, left(ev_data, %s) as data,
       has_function_privilege('pgq.where_is_event(text, bigint)', 'execute') as may_locate
  from pgq.get_delayed_events(%s, %s)
"""
#: Delayed events on the page.
NEXT = 20
# As text: written back as it was read, it is the same value.
SETTINGS = "select {} from pgq.queue where queue_name = %s".format(
    ", ".join(f"queue_{name}::text as {name}" for name in PARAMETERS)
)
SIZES = """
select q.queue_name,
       sum(pg_total_relation_size(to_regclass(format('%s_%s', q.queue_data_pfx, n))))::bigint
  from pgq.queue q
 cross join generate_series(0, q.queue_ntables - 1) n
 group by q.queue_name
"""
CREATE = "pgq.create_queue(text)"
SWITCHES = ("ticker_paused", "external_ticker", "disable_insert")


def queues(look: Look) -> dict[str, Any]:
    status = read_status(look)
    return {
        "lines": [Line(each, look.history) for each in status.queues],
        "sizes": dict(look.visit.conn.execute(SIZES).fetchall()),
        "may_create": look.visit.may_change_by(CREATE),
        "new": look.name,
    }


def queue(look: Look) -> dict[str, Any]:
    visit, conn, name = look.visit, look.visit.conn, look.name
    status = read_status(look, name)
    [info] = status.queues
    may, grants = True, []
    try:
        with conn.transaction():
            grants = Admin(conn).get_queue_grants(name)
    except PermissionDenied:
        may = False
    delayed = []
    if info.delayed_events:
        # Without the right to read their number is all that is shown.
        with suppress(PermissionDenied), conn.transaction(), translate_errors():
            delayed = visit.rows(DELAYED, [CUT, name, NEXT])
    return {
        "alerts": [each for each in status.alerts if each.message.startswith(f"{name}: ")],
        "line": Line(info, look.history),
        "queue": info,
        "delayed": delayed,
        "tables": visit.rows(TABLES, [name]),
        "kept": visit.rows(KEPT, [name])[0],
        "settings": visit.rows(SETTINGS, [name])[0],
        "meanings": PARAMETERS,
        "switches": SWITCHES,
        "grants": grants,
        "is_admin": may,
        "may_change": may and not visit.read_only,
    }


def actions(
    client: Callable[[Connection], Any],
    set_config: Callable[..., None],
    what: str,
    path: str,
    parameters: Iterable[str],
) -> tuple[Action, dict[str, Action]]:
    """Return the action that creates a queue, of events or of tasks, and those of one."""

    def create(look: Look, form: Mapping[str, str]) -> Done:
        name = form.get("name", "").strip()
        created = client(look.visit.conn).create_queue(name)
        told = f"created {what} {name}" if created else f"{what} {name} exists already"
        return Done(told, address(path, name=name))

    def configure(look: Look, form: Mapping[str, str]) -> Done:
        # What the viewer has changed: others may have set the rest since.
        changed = [
            name for name in parameters if name in form and form[name] != form.get(f"before_{name}")
        ]
        for name in changed:
            set_config(client(look.visit.conn), look.name, name, form[name].strip() or None)
        told = f"set {', '.join(changed)} of {look.name}" if changed else "nothing was changed"
        return Done(told)

    def drop(look: Look, form: Mapping[str, str]) -> Done:
        if form.get("confirm") != look.name:
            raise InvalidParameter(
                "the queue was not dropped: the name typed is another one",
                hint=f"type {look.name} to drop it",
            )
        client(look.visit.conn).drop_queue(look.name, force="force" in form)
        return Done(f"dropped {what} {look.name}", f"/{path}s")

    return create, {"configure": configure, "drop": drop}


def disable_insert(look: Look, form: Mapping[str, str]) -> Done:
    value = "true" if form.get("value") == "true" else "false"
    Admin(look.visit.conn).set_queue_config(look.name, "disable_insert", value)
    return Done(f"{look.name} {'refuses' if value == 'true' else 'takes'} events")


create, _OF_ONE = actions(Admin, Admin.set_queue_config, "queue", "queue", PARAMETERS)
VIEWS = [
    View("queues", "Queues", queues, {"create": create}, menu="queues"),
    View(
        "queue",
        "Queue",
        queue,
        _OF_ONE | {"disable_insert": disable_insert},
        menu="queues",
    ),
]
