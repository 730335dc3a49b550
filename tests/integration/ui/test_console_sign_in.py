"""Sign-in and its attacks: no request acts unless its user is known and its page is ours."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

import pgqpy.ui
from pgqpy.admin import Admin
from pgqpy.embedded import Server
from pgqpy.ui import _app, _live, _sign_in
from tests.fixtures.fix_console import (
    HOST,
    ROLE,
    Client,
    Console,
    Links,
    by_header,
    csrf,
    post,
    serving,
    watching,
)
from tests.fixtures.fix_db import Connection, MakeRole

TOKEN = "a-secret-of-the-link"


@pytest.fixture
def roles(make_role: MakeRole) -> tuple[str, str]:
    """Two administrators."""
    return make_role("ann", "pgq_admin"), make_role("bob", "pgq_admin")


def statuses(client: Client, *requests: dict[str, str]) -> list[int]:
    return [client.get("/", headers=headers).status_code for headers in requests]


def test_without_a_way_to_sign_in_all_is_refused_and_the_page_says_what_to_configure(
    dsn: str, queue: str, console: Console
) -> None:
    client = console(dsn, password=False)
    for url in ("/", "/queues", f"/queue?name={queue}", "/sign-in?token="):
        answer = client.get(url, headers={ROLE: "postgres"})
        assert answer.status_code == 403
        assert "user_header=" in answer.text
        assert queue not in answer.text.replace(url, "")
    assert client.post("/queues", data={"action": "create"}).status_code == 403
    events = client.get("/", headers={"Accept": "text/event-stream"})
    assert (events.status_code, events.text) == (403, "")


def test_the_link_signs_in_once_and_only_by_the_names_of_this_machine(
    dsn: str, console: Console
) -> None:
    client = console(dsn, token=TOKEN)
    assert client.get("/").status_code == 403
    assert client.get("/sign-in?token=guess").status_code == 403
    # A page of the web whose host name leads here.
    stolen = client.get(f"/sign-in?token={TOKEN}", headers={"Host": "evil.example:8040"})
    assert stolen.status_code == 403
    signed_in = client.get(f"/sign-in?token={TOKEN}")
    assert signed_in.status_code == 200
    cookie = signed_in.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert client.get("/").status_code == 200
    assert statuses(
        client,
        *({"Host": host} for host in ("evil.example", "127.0.0.1.evil.example", "")),
        *({"Host": host} for host in ("localhost:8040", "127.0.0.1:8040", "[::1]:8040")),
    ) == [403, 403, 403, 200, 200, 200]
    client.cookies.clear()
    assert client.get(f"/sign-in?token={TOKEN}").status_code == 403


def test_a_cookie_that_was_changed_or_is_old_is_refused(
    dsn: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = console(dsn, token=TOKEN)
    client.get(f"/sign-in?token={TOKEN}")
    value = client.cookies[_sign_in.COOKIE]
    text, _, signature = value.strip('"').partition(".")
    client.cookies.clear()
    for forged in (f"{text[:-4]}AAAA.{signature}", f"{text}.{'0' * 64}", text, "x.y", ""):
        assert statuses(client, {"Cookie": f"{_sign_in.COOKIE}={forged}"}) == [403]
    good = {"Cookie": f"{_sign_in.COOKIE}={text}.{signature}"}
    assert statuses(client, good) == [200]
    later = time.time() + _sign_in.LASTS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert statuses(client, good) == [403]


def test_forms_of_other_sites_and_other_viewers_change_nothing(
    conn: Connection, roles: tuple[str, str], client: Client
) -> None:
    ann, bob = roles
    theirs = csrf(client.get("/queues", headers={ROLE: bob}).text)
    own = csrf(client.get("/queues", headers={ROLE: ann}).text)
    attacks: list[tuple[str, dict[str, str]]] = [
        (own, {"Origin": "https://evil.example"}),
        (own, {"Origin": "null"}),
        (own, {"Origin": f"{HOST}:81"}),
        (own, {}),
        (own, {"Sec-Fetch-Site": "cross-site", "Origin": HOST}),
        (own, {"Sec-Fetch-Site": "same-site", "Origin": HOST}),
        (theirs, {"Origin": HOST}),
        ("", {"Origin": HOST}),
        ("\u00e9", {"Origin": HOST}),
    ]
    for value, headers in attacks:
        form = {"csrf": value, "action": "create", "name": "evil"}
        answer = client.post("/queues", data=form, headers=headers | {ROLE: ann})
        assert answer.status_code == 403, headers
    assert client.post("/queues", headers={ROLE: ann, "Origin": HOST}).status_code == 403
    assert Admin(conn).get_queue_info() == []
    assert post(client, "/queues", ann, action="nothing").status_code == 400
    large = client.post("/queues", content=b"a" * 2**21, headers={ROLE: ann, "Origin": HOST})
    assert large.status_code == 413
    many = client.post("/queues", content=b"a&" * 2000, headers={ROLE: ann, "Origin": HOST})
    assert many.status_code == 413
    # Behind a proxy that changes the host, browsers still say that it is the same origin.
    form = {"csrf": own, "action": "create", "name": "good"}
    headers = {"Sec-Fetch-Site": "same-origin", "Origin": "https://ops.example", ROLE: ann}
    assert client.post("/queues", data=form, headers=headers).status_code == 303


def test_a_request_acts_as_its_role_and_as_no_other(
    dsn: str, roles: tuple[str, str], client: Client, console: Console, make_role: MakeRole
) -> None:
    assert "as <bdi>test_ann</bdi>" in client.get("/", headers={ROLE: roles[0]}).text
    # PostgreSQL takes "none" for the session's own role.
    for name in ("none", "NONE", "no_such_role", "test_ann; reset role", 'x"', "a\0b"):
        refused = console(dsn, user=lambda request, name=name: name).get("/")
        assert refused.status_code == 403, name
        assert "may not act as role" in refused.text
    one = console(psycopg.conninfo.make_conninfo(dsn, user=make_role("console", roles[0])))
    assert statuses(one, *({ROLE: each} for each in roles)) == [200, 403]
    hint = one.get("/", headers={ROLE: roles[1]}).text
    assert "grant &#34;test_bob&#34; to &#34;test_console&#34;" in hint


def test_a_header_names_the_role_if_a_trusted_proxy_sends_it(
    dsn: str, roles: tuple[str, str], console: Console
) -> None:
    header = {"X-Remote-User": roles[0]}
    settings = {"user_header": "X-Remote-User", "trusted_proxies": ["10.1.0.0/16"]}
    assert statuses(console(dsn, client=("10.1.2.3", 1), **settings), header, {}) == [200, 403]
    for other in ("10.2.0.1", "127.0.0.1", "testclient"):
        assert statuses(console(dsn, client=(other, 1), **settings), header) == [403]
    twice = console(dsn, client=("10.1.2.3", 1), **settings).get(
        "/", headers=[("X-Remote-User", roles[0]), ("X-Remote-User", "postgres")]
    )
    assert twice.status_code == 403
    assert statuses(console(dsn, password=False), header) == [403]


@pytest.fixture
def asking(mortal: Server) -> str:
    """A server that asks carl and dora for a password."""
    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        for role in ("carl", "dora"):
            conn.execute(f"create role {role} login password 'swordfish' in role pgq_reader")
        conn.execute("create role trusted login in role pgq_reader")
        [(path,)] = conn.execute("show hba_file").fetchall()
        rules = Path(path)
        rules.write_text(f"local all carl,dora scram-sha-256\n{rules.read_text()}")
        conn.execute("select pg_reload_conf()")
    return mortal.dsn


def test_guesses_wait_for_each_other_and_keep_no_other_user_out(
    asking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sign_in, "PENALTY", 600)
    checked: list[str] = []
    lets_in = _sign_in.SignIn._lets_in

    def count(self: _sign_in.SignIn, role: str, password: str) -> bool:
        checked.append(password)
        return lets_in(self, role, password)

    monkeypatch.setattr(_sign_in.SignIn, "_lets_in", count)
    app: Any = pgqpy.ui.app(asking, password=True)

    async def sign_in(address: str, role: str, password: str) -> int:
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url=HOST) as client:
            form = {"role": role, "password": password}
            answer = await client.post("/sign-in", data=form, headers={"Origin": HOST})
            return answer.status_code

    async def attack() -> None:
        many = 2 * _sign_in.WAITING
        guesses = [asyncio.create_task(sign_in("10.0.0.1", "carl", "cod")) for _ in range(many)]
        refused = [await each for each in guesses[_sign_in.WAITING :]]
        assert refused == [429] * _sign_in.WAITING
        assert await sign_in("10.0.0.1", "dora", "swordfish") == 200
        assert await sign_in("10.0.0.2", "carl", "swordfish") == 200
        assert checked.count("cod") == 1
        for each in guesses:
            each.cancel()

    asyncio.run(attack())


def test_a_password_is_one_that_postgresql_has_asked_for(
    asking: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sign_in, "PENALTY", 0)
    client = console(asking, password=True)
    assert client.get("/").headers["location"] == "/sign-in"
    assert "Password" in client.get("/sign-in").text

    def sign_in(role: str, password: str, origin: str = HOST) -> int:
        form = {"role": role, "password": password}
        return client.post("/sign-in", data=form, headers={"Origin": origin}).status_code

    # The server takes any password of this role from here.
    refused = [("trusted", "any"), ("carl", "cod"), ("carl", ""), ("", "x"), ("none\0", "x")]
    assert [sign_in(*each) for each in refused] == [403] * len(refused)
    assert sign_in("carl", "swordfish", "https://evil.example") == 403
    assert client.get("/").status_code == 303
    assert sign_in("carl", "swordfish") == 200
    shown = client.get("/").text
    assert "as <bdi>carl</bdi>" in shown
    form, kept = {"csrf": csrf(shown)}, client.cookies[_sign_in.COOKIE]
    assert client.post("/sign-out", data=form, headers={"Origin": HOST}).status_code == 200
    assert client.get("/").status_code == 303
    # Neither does a copy of the cookie sign in.
    assert client.get("/", headers={"Cookie": f"{_sign_in.COOKIE}={kept}"}).status_code == 303


def test_a_stream_ends_so_that_its_user_is_asked_for_again(
    dsn: str, roles: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_app, "STREAM", 0.2)
    monkeypatch.setattr(_live, "KEEP_ALIVE", 0.3)
    with (
        serving(pgqpy.ui.app(dsn, user=by_header)) as url,
        watching(f"{url}/queues", roles[0]) as stream,
    ):
        stream.until(lambda kind, _: kind == "again")
        with pytest.raises(AssertionError, match="the stream has ended"):
            stream.until(lambda *_: True)


def test_mounted_under_a_path_all_addresses_are_below_it(
    dsn: str, conn: Connection, queue: str, roles: tuple[str, str], console: Console
) -> None:
    client = console(dsn, path="/ops/q")
    for url in ("/ops/q/", "/ops/q/queues", f"/ops/q/queue?name={queue}", "/ops/q/task_queues"):
        answer = client.get(url, headers={ROLE: roles[0]})
        assert answer.status_code == 200
        found = [each for each in Links(answer.text).found if not each.startswith("#")]
        assert found
        assert all(each.startswith("/ops/q/") for each in found)
        for each in found:
            if "static" in each or each.endswith(".svg"):
                assert client.get(each).status_code == 200
    done = post(client, "/ops/q/queues", roles[0], action="create", name="new")
    assert done.headers["location"] == "/ops/q/queue?name=new"
    assert "Path=/ops/q" in done.headers["set-cookie"]
    dropped = post(client, "/ops/q/queue?name=new", roles[0], action="drop", confirm="new")
    assert dropped.headers["location"] == "/ops/q/queues"


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="one of user"):
        pgqpy.ui.app("", user_header="X", password=True)
    with pytest.raises(ValueError, match="colour"):
        pgqpy.ui.app("", colour="pink")
    with pytest.raises(ValueError, match="has host bits set"):
        pgqpy.ui.app("", user_header="X", trusted_proxies=["10.0.0.1/8"])


def test_each_of_several_databases_has_a_console_and_a_sign_in_of_its_own(
    dsn: str, conn: Connection, other_dsn: str, console: Console
) -> None:
    queue = "in_the_shop_only"
    Admin(conn).create_queue(queue)
    client = console({"shop": dsn, "billing": other_dsn}, token=TOKEN)
    assert client.get("/").headers["location"] == "/shop/"
    assert client.get("/nothing/").status_code == 404
    assert client.get(f"/shop/sign-in?token={TOKEN}").status_code == 200
    assert queue in client.get("/shop/queues").text
    refused = client.get("/billing/queues")
    assert refused.status_code == 403
    assert "/shop/" in Links(refused.text).found
    shop = client.cookies[_sign_in.COOKIE]
    stolen = {"Cookie": f"{_sign_in.COOKIE}={shop}"}
    assert client.get("/shop/queues", headers=stolen).status_code == 200
    assert client.get("/billing/queues", headers=stolen).status_code == 403
    assert client.get(f"/billing/sign-in?token={TOKEN}").status_code == 200
    page = client.get("/billing/queues").text
    assert queue not in page
    assert {"/shop/", "/billing/", "/billing/queues"} <= set(Links(page).found)
    for wrong in ({}, {"a/b": dsn}, {"": dsn}):
        with pytest.raises(ValueError, match="name databases by"):
            pgqpy.ui.app(wrong)
