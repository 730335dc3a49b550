"""The console on the running demo, with a page on which to make trouble: ``make demo UI=1``."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from examples.demo.processes import Process
from pgqpy.ui import Done, Look, View, app

LASTS = 20
"""Seconds after which a trouble ends."""
STUCK_AFTER = 2
"""Seconds behind after which console and doctor report a consumer."""

PAGE = """
{% extends "page.html" %}
{% block main %}
<h1>Make trouble</h1>
<p>Each ends after {{ lasts }} s. What do <a href="{{ root }}/">the overview</a>
and <code>pgqpy doctor --stuck-after {{ patience }}</code> say about it?</p>
<div id="live_troubles">{% block live_troubles %}
<table class="narrow"><tbody>
{% for each in troubles %}<tr><th scope="row">{{ each.title }}</th><td>{{ each.what }}</td>
<td>{% if each.left %}{{ ui.state("for %.0f s"|format(each.left), "bad") }}{% endif %}</td></tr>
{% endfor %}</tbody></table>
{% endblock %}</div>
<form method="post" class="line">{{ ui.csrf(csrf) }}
{% for each in troubles %}
<button name="kind" value="{{ each.title }}" class="destroys">{{ each.title }}</button>
{% endfor %}
<input type="hidden" name="action" value="make"></form>
<form method="post" class="line">{{ ui.csrf(csrf) }}
<button name="action" value="end">End all trouble</button></form>
{% endblock %}
"""

# The consumer of delays cannot store this airline.
POISON = """
alter table pgqpy_demo.delay_by_carrier add constraint poison check (carrier <> 'poison') not valid;
insert into pgqpy_demo.flight (id, carrier, number, origin, dest, scheduled)
values (-1, 'poison', 1, 'EWR', 'IAH', now())
"""
CURE = """
alter table pgqpy_demo.delay_by_carrier drop constraint poison;
delete from pgqpy_demo.flight where id = -1
"""
HOLD = "begin isolation level repeatable read; select txid_current()"


@dataclass(slots=True)
class Trouble:
    """Something that can go wrong."""

    title: str
    what: str
    begin: Callable[[], object]
    end: Callable[[], object]
    events: int = 0
    """The events that it has put into the queue."""
    ends: float | None = None

    @property
    def left(self) -> float:
        """The seconds that it goes on."""
        return max(self.ends - time.monotonic(), 0.1) if self.ends else 0.0


class Troubles:
    """All kinds. The console's thread begins them, and the main thread ends them.

    The kernel ends a process with the thread that has started it, see `processes`.
    """

    def __init__(self, dsn: str, ticker: Process, consumer: Process) -> None:
        self._dsn = dsn
        self._holder: psycopg.Connection[Any] | None = None
        self.kinds = [
            Trouble("Kill the ticker", "events are not delivered", ticker.kill, ticker.start),
            Trouble("Stop a consumer", "it falls behind", consumer.kill, consumer.start),
            Trouble("Hold the horizon", "by an open transaction", self._hold, self._let_go),
            Trouble(
                "Insert a poison event",
                "one of the consumers fails",
                lambda: self._execute(POISON),
                lambda: self._execute(CURE),
                events=2,
            ),
        ]
        self.events = 0

    def make(self, _: Look, form: Mapping[str, str]) -> Done:
        """Begin one; the action of a button."""
        for each in self.kinds:
            if each.title == form.get("kind") and each.ends is None:
                each.begin()
                self.events += each.events
                each.ends = time.monotonic() + LASTS
                return Done(f"{each.title}: done")
        return Done("it goes on already")

    def end_all(self, _: Look, __: Mapping[str, str]) -> Done:
        """Have all end now; the action of a button."""
        for each in self.kinds:
            each.ends = each.ends and time.monotonic()
        return Done("all trouble ends")

    def go_on(self) -> bool:
        """End those whose time is over; whether there is trouble still. Call it often."""
        for each in self.kinds:
            if each.ends is not None and each.ends <= time.monotonic():
                each.end()
                each.ends = None
        return any(each.ends for each in self.kinds)

    def _hold(self) -> None:
        self._holder = psycopg.connect(self._dsn, application_name="nightly report")
        self._holder.execute(HOLD)

    def _let_go(self) -> None:
        if self._holder is not None:
            self._holder.close()

    def _execute(self, statements: str) -> None:
        with psycopg.connect(self._dsn) as conn:
            conn.execute(statements.encode())


@contextmanager
def console(dsn: str, troubles: Troubles) -> Iterator[str]:
    """Serve the console during the block; gives the link that signs in."""
    import uvicorn

    values = {"lasts": LASTS, "patience": STUCK_AFTER, "troubles": troubles.kinds}
    actions = {"make": troubles.make, "end": troubles.end_all}
    page = View("trouble", "Make trouble", lambda _: values, actions, "trouble", PAGE)
    token = secrets.token_urlsafe()
    served = app(
        dsn, token=token, name="demo", colour="violet", stuck_after=STUCK_AFTER, views=[page]
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings = uvicorn.Config(
            served, access_log=False, log_level="critical", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            host, port = listening.getsockname()
            yield f"http://{host}:{port}/sign-in?token={token}"
        finally:
            server.should_exit = True
            thread.join()
