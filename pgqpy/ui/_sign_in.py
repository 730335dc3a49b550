"""Sign-in: which PostgreSQL role a request acts as, and whether its own page has sent a form."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import ipaddress
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from pgqpy.connection import connect
from pgqpy.errors import PgqError

#: The role of a request's user, None: not signed in.
FindUser = Callable[[Request], str | Awaitable[str | None] | None]

COOKIE = "pgqpy_ui"
LASTS = 12 * 3600
#: Seconds that a wrong password costs.
PENALTY = 1.0
#: Attempts to sign in as a role from an address that wait for each other; checks of all at a time.
WAITING, CHECKS = 5, 4

HOW = """Sign-in is not set up. Give app() one of these: user= (a function of the application which
returns the PostgreSQL role of a request), user_header= (of a reverse proxy that checks users),
password=True (of PostgreSQL). `pgqpy ui` on this machine prints a link."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The signed-in user: a role, None: that of the console's session."""

    role: str | None
    #: Distinguishes this sign-in from others of the role.
    nonce: str = ""
    ends: float | None = None


# Long: a field for each way to sign in, and their secrets.
@dataclass(slots=True)
class SignIn:
    """The ways that are configured."""

    user: FindUser | None
    user_header: str | None
    trusted_proxies: Collection[ipaddress.IPv4Network | ipaddress.IPv6Network]
    password: bool
    #: Of the link that is good for one sign-in.
    token: str | None
    dsn: str | None
    secret: bytes
    by_link: bool = False
    #: When the cookies end whose viewers have signed out, by their nonces.
    _signed_out: dict[str, float] = field(default_factory=dict)
    _attempts: WeakValueDictionary[Hashable, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary
    )
    _turns: WeakValueDictionary[Hashable, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _checks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHECKS))

    def __post_init__(self) -> None:
        self.by_link = self.token is not None

    @property
    def hosts(self) -> Collection[str] | None:
        """The names under which the console may be asked; None: any.

        The link's cookie acts as the session's own role, on the machine of its user, where any page
        of the web may send requests: a name that its owner points to 127.0.0.1 must not do.
        """
        return ("127.0.0.1", "localhost", "[::1]") if self.by_link else None

    async def viewer(self, request: Request) -> Viewer | None:
        """Return the user of a request."""
        if self.user is not None:
            found = self.user(request)
            role = await found if inspect.isawaitable(found) else found
            return Viewer(role) if role else None
        if self.user_header is not None:
            values = request.headers.getlist(self.user_header)
            if self._from_proxy(request) and len(values) == 1 and values[0]:
                return Viewer(values[0])
            return None
        return self._from_cookie(request.cookies.get(COOKIE, ""))

    def csrf(self, viewer: Viewer) -> str:
        """Return the value that each form of the viewer carries."""
        return self._sign(f"form {json.dumps([viewer.role, viewer.nonce])}")

    def is_own_form(self, request: Request, viewer: Viewer, value: str) -> bool:
        """Whether a form comes from a page that the console has given this viewer."""
        return self.is_own_page(request) and hmac.compare_digest(
            value.encode(), self.csrf(viewer).encode()
        )

    def is_own_page(self, request: Request) -> bool:
        """Whether a page of the same origin sends this, as the browser says."""
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        origin = urlsplit(request.headers.get("origin", "")).netloc
        return origin != "" and origin == request.headers.get("host")

    def take_token(self, token: str) -> Viewer | None:
        """Return the viewer for a link's token, once."""
        if self.token and hmac.compare_digest(token.encode(), self.token.encode()):
            self.token = None
            return Viewer(None, secrets.token_urlsafe(8), time.time() + LASTS)
        return None

    async def check_password(self, request: Request, role: str, password: str) -> Viewer | None:
        """Return the viewer if PostgreSQL lets this role in by this password.

        Guesses wait for each other; so do users of the same role and address only.
        """
        # The server takes no more bytes of a name.
        key = request.client and request.client.host, role.encode()[:63]
        waiting = self._attempts.setdefault(key, asyncio.Semaphore(WAITING))
        if waiting.locked():
            raise HTTPException(429, "Too many attempts to sign in. Wait some seconds.")
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with waiting, turn:
            async with self._checks:
                lets_in = await asyncio.to_thread(self._lets_in, role, password)
            if lets_in:
                return Viewer(role, secrets.token_urlsafe(8), time.time() + LASTS)
            await asyncio.sleep(PENALTY)
            return None

    def remember(self, response: Response, request: Request, viewer: Viewer) -> None:
        """Give the viewer's browser its cookie."""
        value = json.dumps([self.by_link, viewer.role, viewer.nonce, viewer.ends]).encode()
        text = base64.urlsafe_b64encode(value).decode()
        response.set_cookie(
            COOKIE,
            f"{text}.{self._sign(f'cookie {text}')}",
            max_age=LASTS,
            path=request.scope.get("root_path") or "/",
            secure=self._is_https(request),
            httponly=True,
            samesite="strict",
        )

    def forget(self, response: Response, request: Request, viewer: Viewer) -> None:
        """Take the cookie away; a copy of it signs in no more."""
        now = time.time()
        self._signed_out = {each: end for each, end in self._signed_out.items() if end > now}
        self._signed_out[viewer.nonce] = viewer.ends or 0
        response.delete_cookie(COOKIE, path=request.scope.get("root_path") or "/")

    def _from_cookie(self, cookie: str) -> Viewer | None:
        text, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(f"cookie {text}").encode()):
            return None
        by_link, role, nonce, ends = json.loads(base64.urlsafe_b64decode(text))
        if nonce in self._signed_out or time.time() >= ends:
            return None
        # Its role is one of those that this way to sign in gives.
        return Viewer(role, nonce, ends) if by_link == self.by_link else None

    def _sign(self, text: str) -> str:
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()

    def _lets_in(self, role: str, password: str) -> bool:
        if not role or not password or "\0" in role + password:
            return False
        try:
            with connect(
                self.dsn, user=role, password=password, application_name="pgqpy ui"
            ) as conn:
                # Otherwise the server trusts the console's machine, and takes any password.
                return bool(conn.pgconn.used_password)
        except PgqError:
            return False

    def _is_https(self, request: HTTPConnection) -> bool:
        said = request.headers.get("x-forwarded-proto") if self._from_proxy(request) else None
        return (said or request.url.scheme) == "https"

    def _from_proxy(self, request: HTTPConnection) -> bool:
        if request.client is None:
            return False
        try:
            address = ipaddress.ip_address(request.client.host)
        except ValueError:
            return False
        return any(address in each for each in self.trusted_proxies)
