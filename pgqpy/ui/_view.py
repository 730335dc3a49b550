"""A view: one page of the console, what it reads, and what can be done there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from pgqpy.connection import Connection
from pgqpy.doctor._history import History
from pgqpy.errors import PgqError
from pgqpy.ui._database import Visit
from pgqpy.ui._mask import Steps


class NotFound(PgqError):
    """There is nothing of this name or number, or the role may not read it."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a view: the transaction, the query of the URL, and what was read before."""

    visit: Visit
    query: Mapping[str, str]
    history: History
    #: How far behind a consumer may be before that is a problem.
    patience: timedelta
    masks: tuple[Steps, ...] = ()

    @property
    def name(self) -> str:
        """The name of the queue, or what else the page is about."""
        return self.query.get("name", "")

    @property
    def id(self) -> int | None:
        """The number of what the page is about; None if it is no number."""
        return digits(self.query.get("id", ""))


def digits(text: str, most: int = 18) -> int | None:
    """Return the whole number that a text has in up to so many digits, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most else None


def address(path: str, **query: object) -> str:
    """Return the address of a page."""
    return f"/{path}?{urlencode(query)}"


@dataclass(frozen=True, slots=True)
class Bulk:
    """A change of many things; ``step`` changes some of them, and returns their number, 0 at the
    end."""

    title: str
    total: int
    step: Callable[[Connection], int]


@dataclass(frozen=True, slots=True)
class Done:
    """What an action has done, the page that shows it ("": the same), and how much was changed."""

    message: str
    page: str = ""
    count: int | None = None
    #: What goes on in the background.
    bulk: Bulk | None = None


@dataclass(frozen=True, slots=True)
class File:
    """What a view gives for ``download=FORMAT``."""

    name: str
    media_type: str
    content: str


Read = Callable[[Look], dict[str, Any]]
#: Acts by the fields of a form.
Action = Callable[[Look, Mapping[str, str]], Done]


@dataclass(frozen=True, slots=True)
class View:
    """One page: ``/path``, written by a template from the values that ``read`` returns."""

    path: str
    title: str
    read: Read
    actions: Mapping[str, Action] = field(default_factory=dict)
    #: The path of the menu's entry that it belongs to.
    menu: str = ""
    #: The text of its template; "": the file ``path.html`` of the console's.
    template: str = ""
    download: Callable[[Look], File] | None = None
    #: The menu offers it to roles that may read this relation, or call this function, named with
    #: its schema and the types of its arguments; "": to all.
    needs: str = ""
