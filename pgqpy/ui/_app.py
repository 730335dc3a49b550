"""The ASGI application: routes, guards, and the pages of errors."""

from __future__ import annotations

import ipaddress
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import pgqpy
from pgqpy._runtime.words import printable
from pgqpy.doctor._history import History
from pgqpy.errors import (
    ConnectionFailed,
    ConsumerNotRegistered,
    InvalidParameter,
    InvalidPayload,
    PermissionDenied,
    PgqError,
    QueueNotFound,
    TaskQueueNotFound,
)
from pgqpy.log import logger
from pgqpy.ui import (
    _audit,
    _consumers,
    _dead_letters,
    _events,
    _flow,
    _overview,
    _periodic,
    _queues,
    _server,
    _spark,
    _tasks,
)
from pgqpy.ui._audit import log
from pgqpy.ui._bulk import Changes
from pgqpy.ui._database import Database, ReadOnly, Visit
from pgqpy.ui._live import Live
from pgqpy.ui._mask import Steps, masks
from pgqpy.ui._page import fragments, page
from pgqpy.ui._sign_in import HOW, FindUser, SignIn, Viewer
from pgqpy.ui._view import Done, File, Look, NotFound, View

#: One each for production, testing, and so on: of the tab's icon and the line at the top.
COLOURS = {
    "grey": "#7a8594",
    "red": "#d2353a",
    "orange": "#d97706",
    "green": "#2f9e57",
    "blue": "#2f74d0",
    "violet": "#8250c8",
}
VIEWS = [
    *_overview.VIEWS,
    *_queues.VIEWS,
    *_events.VIEWS,
    *_consumers.VIEWS,
    *_dead_letters.VIEWS,
    *_tasks.VIEWS,
    *_periodic.VIEWS,
    *_flow.VIEWS,
    *_spark.VIEWS,
    *_server.VIEWS,
    *_audit.VIEWS,
]

#: The pages that create what was not found, and the functions that they call.
CREATE = {
    QueueNotFound: ("queues", _queues.CREATE),
    TaskQueueNotFound: ("task_queues", _tasks.CREATE),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
#: Of one of several databases.
NAME = re.compile("[A-Za-z0-9_-]+")
#: Seconds after which a browser has to ask for the stream of a page again, as the user it then is.
STREAM = 300.0
#: The largest form in bytes.
LARGEST = 2**20
#: Carries the message of an action to the next page.
SAID = "pgqpy_ui_said"

ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">
<rect width="16" height="16" rx="3.5" fill="{}"/>
<path d="M4 5h8M4 8h8M4 11h5" stroke="#fff" stroke-width="1.6" stroke-linecap="round"/></svg>"""


def app(
    dsn: str | Mapping[str, str] | None = None,
    *,
    user: FindUser | None = None,
    user_header: str | None = None,
    trusted_proxies: Collection[str] = ("127.0.0.1", "::1"),
    password: bool = False,
    token: str | None = None,
    read_only: bool = False,
    name: str = "",
    colour: str = "grey",
    mask: Collection[str] = (),
    secret: str | None = None,
    statement_timeout: float = 5,
    stuck_after: float = 300,
    views: Iterable[View] = (),
) -> ASGIApp:
    """Return the console as an ASGI application, to be run or mounted under any path.

    One of ``user``, ``user_header``, ``password`` and ``token`` says how users sign in; without any
    all requests are refused. Each request then acts as its user's PostgreSQL role: the role of
    ``dsn`` must be a member of these roles.

    Args:
        dsn: The database; default: PGQPY_DSN, then libpq's environment. A mapping of names to
            databases gives each a console under ``/name``, with a sign-in of its own.
        user: Returns the role of a request's user, None: not signed in.
            May be a coroutine function.
        user_header: The header in which a reverse proxy names the role. It must remove the header
            from the requests of users.
        trusted_proxies: The addresses or networks of that proxy.
        password: Sign in by name and password of a PostgreSQL role.
        token: Sign in by ``/sign-in?token=...``, once, from this machine, as the role of ``dsn``.
        read_only: Whether nothing can be changed. On a standby it is so in any case.
        name: The name of the installation, in tab and header.
        colour: The colour of both, one of `COLOURS`.
        mask: JSON paths of values in payloads that are not shown, such as ``$.card.number``,
            ``$.lines[*].iban``, ``$..password``.
        secret: Signs cookies and forms. Give it if several processes serve the console.
        statement_timeout: Seconds after which a statement is cancelled.
        stuck_after: Seconds that a consumer may be behind, or a transaction open, before it is
            reported.
        views: More pages, see `View`.
    """
    if sum(each is not None for each in (user, user_header, token)) + password > 1:
        raise ValueError("give one of user, user_header, password and token")
    if colour not in COLOURS:
        raise ValueError(f"the colour must be one of {', '.join(COLOURS)}")
    key = secret.encode() if secret else secrets.token_bytes(32)
    proxies = [ipaddress.ip_network(each) for each in trusted_proxies]
    where = dsn if isinstance(dsn, Mapping) else {"": dsn}
    named = where if isinstance(dsn, Mapping) else {}
    if not where or not all(map(NAME.fullmatch, named)):
        raise ValueError("name databases by letters, digits, - and _")
    all_views = [*VIEWS, *views]
    consoles = {
        each: _Console(
            Database(
                here,
                statement_timeout=statement_timeout,
                read_only=read_only,
                needs={each.needs for each in all_views if each.needs},
            ),
            # What signs in to one database is worth nothing for another.
            SignIn(user, user_header, proxies, password, token, here, key + each.encode()),
            name,
            colour,
            masks(mask),
            tuple(named),
            each,
            timedelta(seconds=stuck_after),
            all_views,
        )
        for each, here in where.items()
    }

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        for each in consoles.values():
            await each.database.close()

    async def to_first(request: Request) -> Response:
        return RedirectResponse(f"{_root(request)}/{next(iter(named))}/")

    if named:
        each_app = [Mount(f"/{each}", Starlette(**made.parts())) for each, made in consoles.items()]
        inside = Starlette(routes=[Route("/", to_first), *each_app], lifespan=lifespan)
    else:
        inside = Starlette(**consoles[""].parts(), lifespan=lifespan)
    return _Guard(inside, next(iter(consoles.values())).sign_in.hosts)


class _Guard:
    """Refuses foreign host names, and adds the headers that keep browsers from doing more."""

    def __init__(self, inside: ASGIApp, hosts: Collection[str] | None) -> None:
        self._inside = inside
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inside(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if "etag" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        host = Request(scope).headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._hosts is not None and name not in self._hosts:
            refusal = HTMLResponse("the console is asked by the name of another machine\n", 403)
            await refusal(scope, receive, send_guarded)
            return
        await self._inside(scope, receive, send_guarded)


@dataclass
class _Console:
    database: Database
    sign_in: SignIn
    name: str
    colour: str
    masks: tuple[Steps, ...]
    #: The names of all databases, if there are several, and that of this one.
    databases: tuple[str, ...]
    own: str
    patience: timedelta
    views: Sequence[View]

    def __post_init__(self) -> None:
        self.live = Live()
        self.history = History()
        self.changes = Changes()
        #: What was last shown around the pages of each role.
        self.around: dict[str | None, dict[str, Any]] = {}

    def parts(self) -> dict[str, Any]:
        """Return what Starlette takes."""
        routes = [
            *(
                Route(f"/{view.path}", self.endpoint(view), methods=["GET", "POST"])
                for view in self.views
            ),
            Route("/sign-in", self.sign_in_page, methods=["GET", "POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
            Route("/stop", self.stop, methods=["POST"]),
            Route("/icon.svg", self.icon),
            Mount("/static", StaticFiles(packages=[("pgqpy.ui", "static")])),
        ]
        errors = {HTTPException: self.http_error, PgqError: self.pgq_error}
        return {"routes": routes, "exception_handlers": errors}

    def endpoint(self, view: View) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            viewer = await self.sign_in.viewer(request)
            if viewer is None:
                return self._closed(request)
            if request.method == "POST":
                return await self._act(request, view, viewer)
            if view.download is not None and "download" in request.query_params:
                return await self._download(request, view.download, viewer)
            if "text/event-stream" in request.headers.get("accept", ""):
                return self._stream(request, view, viewer)
            return await self._show(request, view, viewer)

        return answer

    # --- pages

    async def _show(
        self,
        request: Request,
        view: View,
        viewer: Viewer,
        error: PgqError | None = None,
        refused: Mapping[str, str] | None = None,
    ) -> Response:
        """Show a page; if its form was ``refused``, with what was typed, and the error."""
        said = unquote(request.cookies.get(SAID, ""))

        def write(visit: Visit) -> str:
            values = self._values(request, view, visit, viewer.role)
            look = self._look(request, visit)
            if refused:
                # With the preview that the form is in.
                look = replace(look, query={**look.query, "preview": refused["action"]})
            values |= view.read(look)
            form = {"csrf": self.sign_in.csrf(viewer), "said": said, "error": error}
            values |= form | {"refused": refused or {}}
            return page(view.template or f"{view.path or 'overview'}.html", values)

        html = await self.database.visit(viewer.role, write)
        response = HTMLResponse(html, _status(error) if error else 200)
        if said:
            response.delete_cookie(SAID, path=_root(request) or "/")
        return response

    async def _download(
        self, request: Request, make: Callable[[Look], File], viewer: Viewer
    ) -> Response:
        file = await self.database.visit(
            viewer.role, lambda visit: make(self._look(request, visit))
        )
        disposition = f"attachment; filename*=UTF-8''{quote(file.name, safe='')}"
        headers = {"Content-Disposition": disposition}
        return Response(file.content.encode(), headers=headers, media_type=file.media_type)

    def _stream(self, request: Request, view: View, viewer: Viewer) -> Response:
        def write(visit: Visit) -> dict[str, str]:
            values = self._values(request, view, visit, viewer.role)
            values |= view.read(self._look(request, visit))
            return fragments(view.template or f"{view.path or 'overview'}.html", values)

        make = partial(self.database.visit, viewer.role, write)
        key = (viewer.role, _root(request), view.path, request.url.query)
        ends = min(viewer.ends or math.inf, time.time() + STREAM)
        events = self.live.events(key, make, ends)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _act(self, request: Request, view: View, viewer: Viewer) -> Response:
        _, form = await self._own_form(request, viewer)
        name = form.get("action", "")
        if name not in view.actions:
            raise HTTPException(400, "There is no such action.")

        title, given = f"{view.path}: {name}", _given(request.query_params, form)

        def act(visit: Visit) -> Done:
            done = view.actions[name](self._look(request, visit), form)
            if done.bulk is None:
                log(visit, title, given, done.count)
            elif self.changes.running(viewer.role):
                raise InvalidParameter("another change of yours is running", hint="wait or stop it")
            return done

        try:
            done = await self.database.visit(viewer.role, act, change=True)
        except PgqError as error:
            return await self._show(request, view, viewer, error, form)
        if done.bulk is not None:
            self.changes.start(
                self.database,
                viewer.role,
                done.bulk,
                lambda visit, count: log(visit, title, given, count),
            )
        fields = {"role": viewer.role, "page": str(request.url.path), "done": done.message}
        logger.info("console: %s", printable(done.message), extra=fields)
        here = f"/{view.path}?{request.url.query}" if request.url.query else f"/{view.path}"
        root = _root(request)
        response = RedirectResponse(root + (done.page or here), 303)
        message = quote(done.message[:1000])
        response.set_cookie(
            SAID, message, max_age=30, path=root or "/", httponly=True, samesite="strict"
        )
        return response

    async def _own_form(
        self, request: Request, viewer: Viewer | None = None
    ) -> tuple[Viewer, Mapping[str, str]]:
        """Return the viewer, and a form that a page of the console has given to this one."""
        form = await _form(request)
        viewer = viewer or await self.sign_in.viewer(request)
        if viewer is None or not self.sign_in.is_own_form(request, viewer, form.get("csrf", "")):
            raise HTTPException(403, "This form is not from a page of the console. Load it again.")
        return viewer, form

    def _look(self, request: Request, visit: Visit) -> Look:
        return Look(visit, request.query_params, self.history, self.patience, self.masks)

    def _values(
        self, request: Request, view: View, visit: Visit, role: str | None
    ) -> dict[str, Any]:
        own = {"view": view, "changes": self.changes.of_role.get(role, [])}
        return self._frame(request) | self._around(visit, role) | own

    def _around(self, visit: Visit, role: str | None) -> dict[str, Any]:
        """Return what is around the pages of a role."""
        pages = [each for each in self.views if each.menu == each.path]
        self.around[role] = {
            "menu": [each for each in pages if each.needs in ("", *visit.has)],
            "database": visit.database,
            "role": visit.role,
            "read_only": visit.read_only,
        }
        return self.around[role]

    async def _around_error(
        self, request: Request, status: int, error: Exception
    ) -> dict[str, Any]:
        """Return what is around the pages of the viewer: if the database is lost, as it was."""
        viewer = await self.sign_in.viewer(request)
        if viewer is None:
            return {}
        creating: dict[str, str] = {}

        def look(visit: Visit) -> None:
            self._around(visit, viewer.role)
            for kind, (where, function) in CREATE.items():
                if isinstance(error, kind) and visit.may_change_by(function):
                    query = request.query_params
                    creating["creates"] = where
                    creating["new"] = query.get("queue") or query.get("name", "")

        try:
            if status != 503:
                await self.database.visit(viewer.role, look)
        except PgqError:
            self.around.pop(viewer.role, None)
        around = self.around.get(viewer.role, {}) | creating
        return around | {"csrf": self.sign_in.csrf(viewer)}

    def _frame(self, request: Request) -> dict[str, Any]:
        return {
            "root": _root(request),
            "instance": self.name,
            "colour": self.colour,
            "databases": self.databases,
            "own": self.own,
            "masks": self.masks,
            "version": pgqpy.__version__,
            "has_cookie": self.sign_in.password or self.sign_in.by_link,
        }

    # --- sign-in

    def _closed(self, request: Request) -> Response:
        if "text/event-stream" in request.headers.get("accept", ""):
            return Response(status_code=403)
        if self.sign_in.password and request.method == "GET":
            return RedirectResponse(f"{_root(request)}/sign-in", 303)
        hint = HOW
        if self.sign_in.by_link:
            hint = "Start `pgqpy ui` again: it prints a link that is good for one sign-in."
        elif self.sign_in.user or self.sign_in.user_header or self.sign_in.password:
            hint = "Sign in first."
        return self._error(request, 403, "You are not signed in", hint)

    async def sign_in_page(self, request: Request) -> Response:
        if request.method == "POST":
            form = await _form(request)
            if not self.sign_in.password or not self.sign_in.is_own_page(request):
                raise HTTPException(403, "This form is not from a page of the console.")
            role = form.get("role", "")
            password = form.get("password", "")
            viewer = await self.sign_in.check_password(request, role, password)
            if viewer is None:
                logger.warning("console: refused a password", extra={"role": role})
                wrong = "PostgreSQL does not let this role in by this password."
                return self._sign_in_form(request, wrong, 403)
        elif self.sign_in.password:
            return self._sign_in_form(request, "", 200)
        else:
            viewer = self.sign_in.take_token(request.query_params.get("token", ""))
            if viewer is None:
                return self._closed(request)
        # Not a redirect: after a link on another site's page, browsers would not send the cookie.
        response = HTMLResponse(page("signed_in.html", self._frame(request)))
        self.sign_in.remember(response, request, viewer)
        return response

    def _sign_in_form(self, request: Request, wrong: str, status: int) -> Response:
        return HTMLResponse(page("sign_in.html", self._frame(request) | {"wrong": wrong}), status)

    async def stop(self, request: Request) -> Response:
        """Stop the viewer's change of many things; what it has changed stays changed."""
        viewer, form = await self._own_form(request)
        if change := self.changes.running(viewer.role):
            change.stop = True
            given = {"change": change.title}
            await self.database.visit(
                viewer.role, lambda visit: log(visit, "stop", given, None), change=True
            )
        page = form.get("page", "")
        is_ours = any(each.path == page.partition("?")[0] for each in self.views)
        return RedirectResponse(f"{_root(request)}/{page if is_ours else ''}", 303)

    async def sign_out(self, request: Request) -> Response:
        viewer, _ = await self._own_form(request)
        response = self._error(request, 200, "You have signed out", "Close this tab.")
        self.sign_in.forget(response, request, viewer)
        return response

    # --- the rest

    async def icon(self, request: Request) -> Response:
        return Response(ICON.format(COLOURS[self.colour]), media_type="image/svg+xml")

    async def http_error(self, request: Request, error: HTTPException) -> Response:
        message = "There is no such page" if error.status_code == 404 else error.detail
        around = await self._around_error(request, error.status_code, error)
        return self._error(request, error.status_code, message, None, around)

    async def pgq_error(self, request: Request, error: PgqError) -> Response:
        status = _status(error, 400 if isinstance(error, InvalidParameter) else 500)
        around = await self._around_error(request, status, error)
        return self._error(request, status, error.message, error.hint, around)

    def _error(
        self,
        request: Request,
        status: int,
        message: str,
        hint: str | None,
        around: dict[str, Any] | None = None,
    ) -> Response:
        told = {"status": status, "message": message, "hint": hint}
        nothing = {"view": None, "menu": (), "said": "", "error": None, "creates": ""}
        values = self._frame(request) | nothing | told | (around or {})
        return HTMLResponse(page("error.html", values), status)


def _root(request: Request) -> str:
    return quote(request.scope.get("root_path", "").rstrip("/"))


def _status(error: PgqError, other: int = 409) -> int:
    match error:
        case QueueNotFound() | TaskQueueNotFound() | ConsumerNotRegistered() | NotFound():
            return 404
        case InvalidPayload():
            return 400
        case PermissionDenied() | ReadOnly():
            return 403
        case ConnectionFailed():
            return 503
    return other


def _given(query: Mapping[str, str], form: Mapping[str, str]) -> dict[str, str]:
    """Return what is logged of an action: also what the URL says if the form says something else,
    as most actions take from it what they change."""
    hidden = {name: value for name, value in query.items() if form.get(name, value) != value}
    return {**query, **form} | {f"url.{name}": value for name, value in hidden.items()}


async def _form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form; the last one of each name."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise HTTPException(413, "This form is too large.")
    text = body.decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=1000))
    except ValueError:
        raise HTTPException(413, "This form is too large.") from None
