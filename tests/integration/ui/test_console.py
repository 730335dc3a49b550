"""The views: what they show, to whom, and that their actions are the functions of SQL."""

from __future__ import annotations

import asyncio
import re
import threading
from itertools import product
from typing import Any, LiteralString
from urllib.parse import quote, urlencode

import psycopg
import pytest

import pgqpy.ui
from pgqpy.admin import Admin
from pgqpy.embedded import Server
from pgqpy.errors import PgqError
from pgqpy.tasks import Tasks
from pgqpy.ui import Look, View, _app, _overview
from pgqpy.ui._database import Database, Visit
from pgqpy.ui._page import fragments
from tests.fixtures import fix_console
from tests.fixtures import queue_ops as ops
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
from tests.fixtures.fix_db import Connect, Connection, MakeRole

EVIL = "<script>alert(1)</script>"
ADMIN, READER, WRITER = "test_admin", "test_reader", "test_writer"
STRANGER = "test_stranger"


@pytest.fixture
def roles(make_role: MakeRole) -> None:
    """An administrator, a reader, a writer, and a role without any right."""
    make_role("stranger")
    for name in ("admin", "reader", "writer"):
        make_role(name, f"pgq_{name}")


def get(client: Client, url: str, role: str = ADMIN, status: int = 200) -> str:
    return fix_console.get(client, url, role, status)


def names(conn: Connection) -> list[str]:
    return [info.queue_name for info in Admin(conn).get_queue_info()]


def test_the_overview_says_what_is_wrong_and_what_to_do(
    dsn: str, conn: Connection, queue: str, roles: None, console: Console
) -> None:
    client = console(dsn)
    shown = get(client, "/", STRANGER)
    assert "Nothing is wrong." in shown
    assert "may not look at task queues" in shown
    # Not yet: its queue is new.
    assert "No ticker of pgqpy is running" in get(client, "/")
    with psycopg.connect(dsn, autocommit=True) as ticker:
        ticker.execute("select pg_advisory_lock(1885827440, 1)")
        assert "No ticker" not in get(client, "/")
    conn.execute("select pgq.set_queue_config(%s, 'external_ticker', 'true')", [queue])
    assert "No ticker" not in get(client, "/")
    conn.execute("select pgq.set_queue_config(%s, 'external_ticker', 'false')", [queue])
    ops.insert_ticked(conn, queue, "a")
    conn.execute("select pgq.register_consumer_at(%s, 'billing', 1)", [queue])
    batch = ops.value(conn, "select pgq.next_batch(%s, 'billing')", queue)
    conn.execute("select pgq.note_failure(%s, %s, 1)", [batch, EVIL])
    shown = get(client, "/")
    assert "1 problem" in shown
    assert "billing fails in batch" in shown
    alert = shown.partition('class="alert"><strong>')[2]
    assert alert.startswith(f'<a href="/queue?name={queue}"><bdi>{queue}</bdi></a>: ')
    assert "remove the cause" in shown
    assert "&lt;script&gt;" in shown
    for name in ("a", "b", "c"):
        conn.execute("select pgq.register_consumer_at(%s, %s, 1)", [queue, name])
    # The one that fails before those that are stuck, of which some are counted.
    row = get(console(dsn, stuck_after=0), "/").partition('class="state bad">')[2]
    assert row.startswith("<bdi>billing</bdi> failing")
    assert ">2 more</span>" in row


def test_text_of_the_database_is_never_markup(
    dsn: str, conn: Connection, roles: None, console: Console
) -> None:
    Admin(conn).create_queue(EVIL)
    conn.execute("select pgq.register_consumer(%s, %s)", [EVIL, EVIL])
    tasks = Tasks(conn)
    tasks.create_queue("mails")
    number = tasks.push("mails", {EVIL: EVIL})
    tasks.change("mails", {"ids": [number]}, {"error": EVIL, "headers": {EVIL: EVIL}})
    client = console(dsn, name=EVIL)
    name = "%3Cscript%3Ealert(1)%3C/script%3E"
    for url in ("/", "/queues", f"/queue?name={name}", "/task_queue?name=mails"):
        answer = client.get(url, headers={ROLE: ADMIN})
        assert "<script>alert" not in answer.text
        assert "&lt;script&gt;alert(1)" in answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    shown = get(client, f"/task?id={number}")
    assert "<script>alert" not in shown
    assert shown.count("&lt;script&gt;alert(1)") >= 5
    assert "<script>alert" not in get(client, f"/queue?name=no{name}", status=404)
    # No script or style is in a page, so the policy needs no exception.
    assert " style=" not in shown
    assert " onclick=" not in shown


def test_no_text_turns_around_what_is_after_it(
    conn: Connection, roles: None, client: Client
) -> None:
    odd, tasks = "a\u202eb\u2066c", Tasks(conn)
    Admin(conn).create_queue(odd)
    conn.execute("select pgq.register_consumer_at(%s, %s, 1)", [odd, odd])
    number = ops.value(conn, "select pgq.insert_event(%s, %s, %s)", odd, odd, odd)
    for _ in range(2):
        ops.tick(conn, odd)
    batch = ops.value(conn, "select pgq.next_batch(%s, %s)", odd, odd)
    conn.execute("select pgq.note_failure(%s, %s, 1)", [batch, odd])
    conn.execute("select pgq.event_dead_letter(%s, %s, %s)", [batch, number, odd])
    with conn.transaction():
        conn.execute("select pgq.log_action(%s, jsonb_build_object('a', %s::text))", [odd, odd])
    tasks.create_queue(odd)
    tasks.push(odd, odd)
    tasks.fail(tasks.claim(odd)[0], odd, final=True)
    flow = tasks.push_flow([{"queue": odd, "payload": odd, "name": odd}])
    [task] = tasks.list(f"{odd}.failed")
    name = urlencode({"name": odd})
    pages = [f"/{each.path}" for each in _app.VIEWS if each.menu == each.path]
    pages += [f"/queue?{name}", f"/events?{name}", f"/event?{name}&id={number}"]
    pages += [f"/consumer?queue={quote(odd)}&{name}", f"/task_queue?{name}", f"/task?id={task.id}"]
    pages += ["/dead_letter?id=1", f"/flow?id={flow}", f"/audit?text={quote(odd)}"]
    for url in pages:
        shown = get(client, url)
        # A form sends the name as it is.
        shown = re.sub(r'(?s) value="[^"]*"|<textarea.*?</textarea>', "", shown)
        assert "\u202e" not in shown, url
        assert "\u2066" not in shown, url
        assert r"a\u202eb\u2066c" in shown or url in ("/spark", "/database"), url
    assert f'<option value="{odd}" selected>' in get(client, f"/events?{name}")
    refused = post(client, f"/queue?{name}", ADMIN, action="drop", confirm="a")
    assert r"type a\u202eb\u2066c to drop it" in refused.text
    get(client, f"/queue?name=x{quote(odd)}", status=404)
    done = post(client, f"/queue?{name}", ADMIN, action="drop", confirm=odd, force="on")
    assert r"dropped queue a\u202eb\u2066c" in get(client, done.headers["location"])
    template = "{% block live_it %}{{ text }}{% endblock %}"
    assert fragments(template, {"text": odd}) == {"live_it": r"a\u202eb\u2066c"}


def test_an_unknown_queue_task_or_page_is_said_to_be_unknown(
    dsn: str, roles: None, console: Console
) -> None:
    client = console(dsn)
    # What is missing can be created, by those that may.
    for url, where in (
        ("/queue?name=n%26b", "/queues"),
        ("/events?name=n%26b", "/queues"),
        ("/consumer?queue=n%26b&name=c", "/queues"),
        ("/task_queue?name=n%26b", "/task_queues"),
    ):
        shown = get(client, url, status=404)
        assert "queue &#39;n&amp;b&#39; does not exist" in shown
        link = f"{where}?name=n%26b"
        assert link in Links(shown).found
        assert 'name="name" value="n&amp;b"' in get(client, link)
        looking = console(dsn, read_only=True)
        for page in (get(client, url, WRITER, 404), get(looking, url, status=404)):
            assert link not in Links(page).found
    for number in ("17", "", "x", "9" * 30):
        assert "there is no task" in get(client, f"/task?id={number}", status=404)
    assert "no such page" in get(client, "/nope", status=404)


def test_actions_call_the_functions_of_sql(conn: Connection, roles: None, client: Client) -> None:
    done = post(client, "/queues", ADMIN, action="create", name="orders & more")
    assert done.status_code == 303
    page = done.headers["location"]
    assert "created queue orders &amp; more" in get(client, page)
    assert names(conn) == ["orders & more"]

    form = {"ticker_max_lag": "00:00:09", "before_ticker_max_lag": "00:00:03"}
    kept = {"rotation_period": "01:00:00", "before_rotation_period": "01:00:00"}
    post(client, page, ADMIN, action="configure", **form, **kept)
    settings = "select queue_ticker_max_lag::text, queue_rotation_period::text from pgq.queue"
    # What the form has not changed is not set.
    assert conn.execute(settings).fetchall() == [("00:00:09", "02:00:00")]
    bad = post(client, page, ADMIN, action="configure", keep="soon", before_keep="")
    assert bad.status_code == 409
    assert "queue parameter keep cannot be" in bad.text

    post(client, page, ADMIN, action="disable_insert", value="true")
    with ops.refused("PQ006"):
        conn.execute("select pgq.insert_event('orders & more', 't', 'd')")
    post(client, page, ADMIN, action="disable_insert", value="false")

    wrong = post(client, page, ADMIN, action="drop", confirm="orders")
    assert wrong.status_code == 409
    assert "the name typed is another one" in wrong.text
    conn.execute("select pgq.register_consumer('orders & more', 'billing')")
    assert post(client, page, ADMIN, action="drop", confirm="orders & more").status_code == 409
    post(client, page, ADMIN, action="drop", confirm="orders & more", force="on")
    assert names(conn) == []


def test_a_form_that_is_refused_keeps_what_was_typed(
    conn: Connection, queue: str, roles: None, client: Client
) -> None:
    tasks = Tasks(conn)
    tasks.create_queue("mails")
    number = tasks.push("mails", {"a": 1})
    conn.execute(
        "insert into pgq._dead_letter (dl_queue, dl_consumer, dl_batch, dl_attempts, dl_reason,"
        " ev_id, ev_time, ev_type, ev_data) values (%s, 'c', 1, 1, 'bad', 1, now(), 't', '{}')",
        [queue],
    )

    def refused(url: str, action: str, **fields: str) -> str:
        form = {"csrf": csrf(get(client, "/queues")), "action": action, **fields}
        answer = client.post(url, data=form, headers={ROLE: ADMIN, "Origin": HOST})
        assert answer.status_code == 409, answer.text
        return answer.text

    settings = {"keep": "soon", "disable_insert": "true", "before_disable_insert": "false"}
    shown = refused(f"/queue?name={queue}", "configure", **settings)
    assert 'name="keep" value="soon"' in shown
    assert 'name="before_keep" value=""' in shown
    before = '<select id="disable_insert" name="disable_insert">'
    assert shown.partition(before)[2].lstrip().startswith("<option selected>true")
    long = "x" * 1000
    assert f'value="{long}"' in refused("/queues", "create", name=long)
    assert f'value="{long}"' in refused("/task_queues", "create", name=long)
    shown = refused(f"/events?name={queue}", "insert", type="", data="a &", extra2="b")
    assert "<details open>" in shown
    assert 'name="data" value="a &amp;"' in shown
    assert 'name="extra2" value="b"' in shown
    mails = "/task_queue?name=mails"
    assert 'value="often"' in refused(mails, "configure", lease="often")
    shown = refused(mails, "limit", max_running="x", rate_period="2 days")
    assert 'name="max_running" value="x"' in shown
    assert 'name="rate_period" value="2 days"' in shown
    # With its preview.
    shown = refused(mails, "prioritise", value="high")
    assert 'name="value" value="high"' in shown
    assert "1 task get another priority" in shown
    task = f"/task?id={number}"
    assert "{oh}</textarea>" in refused(task, "edit", version="1", payload="{oh}")
    assert 'value="high"' in refused(task, "prioritise", queue="mails", value="high")
    assert "[oh]</textarea>" in refused("/dead_letters", "patch", patch="[oh]")
    assert "oh</textarea>" in refused("/dead_letter?id=1", "edit", data="oh")


def test_what_a_role_may_not_do_is_not_offered_and_refused_by_postgresql(
    conn: Connection, queue: str, roles: None, client: Client
) -> None:
    page = f"/queue?name={queue}"
    assert "New queue" in get(client, "/queues")
    assert 'value="drop"' in get(client, page)
    for url, role in product(("/queues", page), (READER, STRANGER)):
        assert 'name="action"' not in get(client, url, role)
    # A page that was loaded before the right was revoked.
    conn.execute("select pgq.grant_queue(%s, '{admin}', %s)", [queue, READER])
    form = csrf(get(client, page, READER))
    conn.execute("select pgq.revoke_queue(%s, '{admin}', %s)", [queue, READER])
    headers = {ROLE: READER, "Origin": HOST}
    drop = {"csrf": form, "action": "drop", "confirm": queue}
    refused = client.post(page, data=drop, headers=headers)
    assert refused.status_code == 403
    assert "may not administer" in refused.text
    assert names(conn) == [queue]
    # A grant is enough, as it is in SQL.
    conn.execute("select pgq.grant_queue(%s, '{admin}', %s)", [queue, READER])
    assert 'value="drop"' in get(client, page, READER)
    assert client.post(page, data=drop, headers=headers).status_code == 303
    assert names(conn) == []


def offered(page: str) -> set[str]:
    """The addresses in the menu, if there is one."""
    return set(Links(page.partition('aria-label="Views"')[2].partition("</nav>")[0]).found)


def test_the_menu_offers_what_a_role_may_see_on_pages_of_errors_too(
    dsn: str, conn: Connection, roles: None, console: Console
) -> None:
    conn.execute("create schema secret create table item (id int)")
    hidden = View("hidden", "Hidden", lambda _: {}, menu="hidden", needs="secret.item")
    client = console(dsn, views=[hidden])
    pages = {f"/{each.path}" for each in _app.VIEWS if each.menu == each.path}
    refused = {
        ADMIN: set[str](),
        READER: {"/audit"},
        WRITER: {"/audit", "/dead_letters"},
        STRANGER: {"/audit", "/dead_letters", "/task_queues"},
    }
    for role, these in refused.items():
        menu = offered(get(client, "/", role))
        assert menu == pages - these
        for url in pages:
            assert offered(get(client, url, role, 403 if url in these else 200)) == menu
        for url in ("/nope", "/queue?name=nope"):
            wrong = get(client, url, role, 404)
            assert offered(wrong) == menu
            # What keeps a page up to date would ask for this one.
            assert "console.js" not in wrong
    assert offered(get(client, "/", "test_nobody", 403)) == set()


def test_pages_prepare_their_statements_and_survive_an_upgrade_of_the_schema(
    dsn: str, conn: Connection, console: Console
) -> None:
    conn.execute("create table item as select 1 as id")

    def read(look: Look) -> dict[str, Any]:
        found = look.visit.conn.execute("select * from public.item").fetchall()
        prepared = look.visit.conn.execute("select count(*) from pg_prepared_statements").fetchone()
        return {"found": found, "prepared": prepared}

    view = View("items", "Items", read, template="{{ found }} {{ prepared[0] > 0 }}")
    client = console(dsn, views=[view])
    for _ in range(5):
        shown = get(client, "/items", "postgres")
    assert shown == "[(1,)] True"
    conn.execute("alter table item add note text")
    get(client, "/items", "postgres", 500)
    assert get(client, "/items", "postgres") == "[(1, None)] False"


def test_the_menu_stays_if_the_database_is_lost(mortal: Server, console: Console) -> None:
    client = console(mortal.dsn)
    menu = offered(get(client, "/", "postgres"))
    mortal.kill()
    assert offered(get(client, "/queues", "postgres", 503)) == menu != set()


def test_a_task_is_sent_back_cancelled_or_deleted(
    conn: Connection, roles: None, client: Client
) -> None:
    tasks = Tasks(conn)
    tasks.create_queue("mails")
    numbers = [tasks.push("mails", each) for each in "abc"]
    [first] = tasks.claim("mails", max_tasks=1, random=False)
    tasks.fail(first, "no such address", final=True)
    page = f"/task?id={first.id}"
    assert "no such address" in get(client, page)
    assert post(client, page, ADMIN, action="retry", queue="mails.failed").status_code == 303
    assert [each.queue for each in tasks.list(filter={"ids": numbers})] == ["mails"] * 3
    assert post(client, page, ADMIN, action="delete", queue="mails").status_code == 303
    post(client, f"/task?id={numbers[1]}", ADMIN, action="cancel", queue="mails")
    assert [each.id for each in tasks.list()] == numbers[2:]
    again = f"/task?id={numbers[2]}"
    assert post(client, again, ADMIN, action="retry", queue="mails").status_code == 409


def test_actions_are_logged_with_their_role_in_their_transaction(
    conn: Connection, queue: str, roles: None, client: Client
) -> None:
    post(client, "/queues", ADMIN, action="create", name="orders")
    post(client, "/events?name=orders", ADMIN, action="insert", type="a", data="4711-0815")
    failed = post(client, f"/queue?name={queue}", ADMIN, action="drop", confirm="other")
    assert failed.status_code == 409
    logged = "select al_role, al_action, al_arguments from pgq.action_log order by al_id"
    assert conn.execute(logged).fetchall() == [
        (ADMIN, "queues: create", {"name": "orders"}),
        (ADMIN, "events: insert", {"name": "orders", "type": "a", "data": "(9 characters)"}),
    ]
    page = get(client, "/audit?text=insert")
    assert "events: insert" in page
    assert "queues: create" not in page
    assert client.get("/audit", headers={ROLE: READER}).status_code == 403
    # A row is its caller's, whatever that claims, and can neither be changed nor taken away.
    conn.execute("update pgq.action_log set al_time = now() - interval '91 days' where al_id = 1")
    with conn.transaction():
        conn.execute(f"set local role {READER}".encode())
        conn.execute("select pgq.log_action('forged')")
        for change in ("delete from", "update", "truncate", "insert into"):
            rest = {"update": " set al_role = 'x'", "insert into": " default values"}
            with ops.refused("42501"), conn.transaction():
                conn.execute(f"{change} pgq.action_log{rest.get(change, '')}".encode())
    assert conn.execute(logged).fetchall()[1:] == [(READER, "forged", {})]
    assert len(conn.execute(logged).fetchall()) == 2


def test_the_log_of_an_action_names_what_it_has_changed_whatever_its_form_says(
    conn: Connection, queue: str, roles: None, client: Client
) -> None:
    page = f"/queue?name={queue}&url.name=decoy"
    fields = {"action": "disable_insert", "value": "true", "name": "decoy", "url.name": "decoy"}
    assert post(client, page, ADMIN, **fields).status_code == 303
    Tasks(conn).create_queue("mails")
    emptied = {"action": "configure", "max_attempts": "", "before_max_attempts": "5"}
    assert post(client, "/task_queue?name=mails", ADMIN, **emptied).status_code == 303
    logged = conn.execute("select al_arguments from pgq.action_log order by al_id").fetchall()
    assert logged == [
        ({"name": "decoy", "value": "true", "url.name": queue},),
        ({"name": "mails", "max_attempts": ""},),
    ]


def test_a_name_writes_no_line_of_its_own_into_the_log_of_the_application(
    conn: Connection, roles: None, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pgqpy")
    odd = "a\nERROR forged\x1b[2J"
    assert post(client, "/queues", ADMIN, action="create", name=odd).status_code == 303
    [said] = [each for each in caplog.messages if "created queue" in each]
    assert said.isprintable()


def test_nothing_that_a_role_writes_into_the_log_hides_the_rest(
    conn: Connection, roles: None, client: Client
) -> None:
    post(client, "/queues", ADMIN, action="create", name="orders")
    nested = "[" * 2000 + "]" * 2000
    for odd in ("[]", "3", nested, f'{{"a": {nested}}}', f'{{"a": {"1" * 5000}}}', "{}"):
        with conn.transaction():
            conn.execute(f"set local role {READER}".encode())
            conn.execute("select pgq.log_action(repeat('x', 200), %s::jsonb)", [odd])
    page = get(client, "/audit")
    assert "name=orders" in page
    assert len(page) < 50_000


def test_an_action_whose_note_would_be_too_long_is_not_done(
    conn: Connection, roles: None, client: Client
) -> None:
    many = {f"x{n}": "x" * 200 for n in range(100)}
    refused = post(client, "/queues", ADMIN, action="create", name="orders", **many)
    assert refused.status_code == 409
    assert "log_action: a note of" in refused.text
    assert Admin(conn).get_queue_info() == []
    for note in ("repeat('x', 201)", "'x', jsonb_build_object('x', repeat('x', 20000))"):
        with ops.refused("PQ011"):
            conn.execute(f"select pgq.log_action({note})".encode())


def test_a_read_only_console_offers_no_change_and_makes_none(
    dsn: str, conn: Connection, queue: str, roles: None, console: Console
) -> None:
    client, page = console(dsn, read_only=True, secret="same"), f"/queue?name={queue}"
    for url in ("/queues", page):
        assert 'name="action"' not in get(client, url)
    Tasks(conn).create_queue("mails")
    Tasks(conn).push("mails", 1)
    assert "Change all of these" not in get(client, "/task_queue?name=mails")
    form = csrf(get(console(dsn, secret="same"), page))
    drop = {"csrf": form, "action": "drop", "confirm": queue}
    refused = client.post(page, data=drop, headers={ROLE: ADMIN, "Origin": HOST})
    assert refused.status_code == 403
    assert "read-only" in refused.text
    assert names(conn) == [queue]


def test_a_look_cannot_write(dsn: str, queue: str) -> None:
    database = Database(dsn, statement_timeout=5, read_only=False)

    async def look() -> None:
        try:
            await database.visit(None, lambda visit: Admin(visit.conn).create_queue("other"))
        finally:
            await database.close()

    with pytest.raises(PgqError) as caught:
        asyncio.run(look())
    assert caught.value.sqlstate == "25006"


def test_a_role_that_asks_for_much_lets_others_in_between(dsn: str, roles: None) -> None:
    database = Database(dsn, statement_timeout=5, read_only=False)
    done: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def first(visit: Visit) -> None:
        begun.set()
        may_end.wait(30)

    async def ask() -> None:
        greedy = [asyncio.create_task(database.visit(READER, first))]
        await asyncio.to_thread(begun.wait, 30)
        note = done.append
        greedy += [
            asyncio.create_task(database.visit(READER, lambda _: note("greedy"))) for _ in range(20)
        ]
        await asyncio.sleep(0)
        other = asyncio.create_task(database.visit(ADMIN, lambda _: note("other")))
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(other, *greedy)
        await database.close()

    asyncio.run(ask())
    assert done.index("other") <= 1


def test_a_schema_that_another_role_has_made_meanwhile_is_not_used(
    make_role: MakeRole, empty_dsn: str, connect: Connect, console: Console
) -> None:
    client, mallory, there = console(empty_dsn), make_role("mallory"), connect(empty_dsn)
    assert "does not exist" in get(client, "/audit", "postgres", 500)
    there.execute(
        f"create schema pgq authorization {mallory}; set session authorization {mallory};"
        "create table pgq.action_log (al_id bigint)".encode()
    )
    assert f"belongs to role {mallory}" in get(client, "/audit", "postgres", 500)


def test_a_view_takes_as_many_statements_for_many_queues_as_for_one(
    conn: Connection, roles: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(conn)
    statements = 0
    execute = psycopg.Cursor.execute

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal statements
        statements += threading.current_thread().name.startswith("pgqpy-ui")
        return execute(self, *arguments, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    monkeypatch.setattr(_overview, "EVERY", 0)

    def needed(url: str) -> int:
        nonlocal statements
        statements = 0
        get(client, url)
        return statements

    views = ("/", "/queues", "/task_queues", "/task_queue?name=t", "/pipeline?name=p", "/spark")
    Admin(conn).create_queue("q")
    tasks.create_queue("t")
    tasks.create_queue("p.a")
    station: LiteralString = "select pgq_task.set_station(%s, 'p', true, '{b}')"
    conn.execute(station, ["p.a"])
    get(client, "/")
    before = [needed(url) for url in views]
    for number in range(10):
        Admin(conn).create_queue(f"q{number}")
        conn.execute("select pgq.register_consumer(%s, 'c')", [f"q{number}"])
        tasks.create_queue(f"t{number}")
        tasks.create_queue(f"p.{number}")
        conn.execute(station, [f"p.{number}"])
    assert [needed(url) for url in views] == before
    assert max(before) <= 25


def test_a_page_is_kept_up_to_date_over_a_restart_of_the_server_by_one_session(
    mortal: Server,
) -> None:
    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        Admin(conn).create_queue("orders")
    app = pgqpy.ui.app(mortal.dsn, user=by_header)
    with serving(app) as url, watching(f"{url}/", "postgres") as stream:
        assert "orders" in stream.fragment("live_queues")
        with watching(f"{url}/queues", "postgres") as other:
            assert "orders" in other.fragment("live_queues")
            with psycopg.connect(mortal.dsn, autocommit=True) as conn:
                Admin(conn).create_queue("later")
                count = "select count(*) from pg_stat_activity where application_name = 'pgqpy ui'"
                assert ops.value(conn, count) == 1
            stream.fragment("live_queues", "later")
        mortal.kill()
        stream.until(lambda kind, data: kind == "state" and data["problem"])
        mortal.restart()
        stream.until(lambda kind, data: kind == "state" and not data["problem"])
        with psycopg.connect(mortal.dsn, autocommit=True) as conn:
            Admin(conn).create_queue("after")
        stream.fragment("live_queues", "after")
