"""Arguments that name things in the database; a shell completes them from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
import psycopg
from click.shell_completion import CompletionItem

import pgqpy
from pgqpy.admin import Admin
from pgqpy.cli._base.database import refuse_planted
from pgqpy.cli._events.queue_config import PARAMETERS
from pgqpy.tasks import Tasks

#: The seconds to wait for completions: the shell's prompt is blocked meanwhile.
COMPLETION_TIMEOUT = 2

Names = Callable[[Admin, dict[str, str]], Iterable[str]]


def is_unicode(text: str) -> bool:
    """Whether it has no undecodable bytes, which a shell passes on unchanged."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Text(click.ParamType[str]):
    """Any text that can be sent; the server checks the rest."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse texts that PostgreSQL cannot store."""
        if "\0" in value:
            self.fail("it holds a NUL character, which PostgreSQL cannot store", param, ctx)
        if not is_unicode(value):
            self.fail("it is no text: its bytes are not UTF-8", param, ctx)
        return value


class Name(Text):
    """The name of something in the database."""

    def __init__(self, what: str, names: Names) -> None:
        self.name = what
        self._names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the existing names with this prefix; none if the server does not answer in
        time."""
        settings = ctx.find_root().params
        try:
            with pgqpy.connect(
                ctx.params.get("dsn") or settings.get("dsn"),
                autocommit=True,
                connect_timeout=COMPLETION_TIMEOUT,
            ) as conn:
                refuse_planted(conn)
                names = sorted(set(self._names(Admin(conn), ctx.params)))
        except (psycopg.Error, pgqpy.PgqError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


TEXT = Text()
#: Ids chosen by users are negative: `pgqpy task show -- -7`.
TASK_ID = click.IntRange(-(2**63), 2**63 - 1)
PRIORITY = click.IntRange(-(2**15), 2**15 - 1)
#: One more is asked for, to know whether there are more.
COUNT = click.IntRange(1, 2**31 - 2)
PARAMETER = click.Choice([*PARAMETERS])
QUEUE = Name("queue", lambda admin, _: (q.queue_name for q in admin.get_queue_info()))
TASK_QUEUE = Name(
    "queue", lambda admin, _: (q.queue_name for q in Tasks(admin.conn).queues(max_count=1))
)
CONSUMER = Name(
    "consumer",
    lambda admin, typed: (c.consumer_name for c in admin.get_consumer_info(typed.get("queue"))),
)
