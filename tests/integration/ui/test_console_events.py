"""The console's events: as they come, found, compared, inserted, downloaded; and where one is."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import psycopg
import pytest

from pgqpy.admin import Admin
from pgqpy.embedded import Server
from pgqpy.producer import Producer
from pgqpy.schema import schema_sql
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_console import OWNER, ROLE, Client, Console, get, post
from tests.fixtures.fix_db import Connection, MakeRole


def add(conn: Connection, queue: str, data: str | None, ev_type: str = "order") -> int:
    number: int = ops.value(conn, "select pgq.insert_event(%s, %s, %s)", queue, ev_type, data)
    return number


def found(page: str) -> list[int]:
    """The ids in the list."""
    return [int(each.partition('"')[0]) for each in page.split("id=")[1:] if each[0].isdigit()]


@pytest.fixture
def client(dsn: str, console: Console) -> Client:
    return console(dsn, mask=["$.card"])


def test_events_are_found_by_type_text_path_time_and_id(
    conn: Connection, queue: str, client: Client
) -> None:
    first = add(conn, queue, '{"id": 1, "who": "ada"}')
    second = add(conn, queue, '{"id": 2, "lines": [{"n": 7}]}', "refund")
    third = add(conn, queue, "no JSON at all")
    page = f"/events?name={queue}"
    assert found(get(client, page)) == [third, second, first]
    for condition, expected in {
        "type=refund": [second],
        "contains=ada": [first],
        "path=$.lines[*].n": [second],
        "path=$.id&value=1": [first],
        f"from={second}": [second, third],
        "since=2020-01-01": [first, second, third],
        "since=2100-01-01 00:00": [],
    }.items():
        assert found(get(client, f"{page}&{condition}")) == expected, condition
    for condition, told in {
        "path=$.(": "no JSON path",
        "value=1": "found by its JSON path",
        "since=yesterday": "the time as",
        "from=x": "the first id in digits",
        f"from={'9' * 40}": "No such events",
        "contains=%00": "3 events",
    }.items():
        shown = get(client, f"{page}&{condition}")
        assert told in shown
        # Nothing is said of events if they were not looked for.
        assert ('role="alert"><strong' in shown) != ("shown." in shown)
    assert f'<option value="{queue}" selected>{queue}</option>' in get(client, page)
    get(client, "/events?name=nothing", status=404)
    # However many come after it.
    conn.execute("select pgq.insert_event(%s, 't', 'd') from generate_series(1, 200)", [queue])
    for _ in range(4):
        ops.tick(conn, queue)
    assert found(get(client, f"{page}&from={second}"))[:2] == [second, third]
    assert found(get(client, f"{page}&from={second}&type=refund")) == [second]


def test_payloads_are_shown_exactly_masked_and_never_run(
    conn: Connection, queue: str, client: Client
) -> None:
    odd = add(conn, queue, '{"price": 12.50, "big": 123456789012345678901.10, "card": "no 4711"}')
    script = add(conn, queue, "<script>alert(1)</script>", "<b>bold</b>")
    page = get(client, f"/event?name={queue}&id={odd}")
    assert "12.50" in page
    assert "123456789012345678901.10" in page
    both = page + get(client, f"/events?name={queue}")
    assert "no 4711" not in both
    assert "<script>alert" not in both + get(client, f"/event?name={queue}&id={script}")
    long = add(conn, queue, json.dumps({"card": "no 4711", "text": "x" * 300_000}))
    page = get(client, f"/event?name={queue}&id={long}")
    assert "Only the first 200,000 characters" in page
    assert "no 4711" not in page
    conn.execute(
        "select pgq.insert_event(%s, 'a', 'b', repeat('e', 9000000), null, null, null)", [queue]
    )
    [[last]] = conn.execute("select max(ev_id) from pgq.event_template").fetchall()
    assert len(get(client, f"/events?name={queue}")) < 30_000
    assert len(get(client, f"/event?name={queue}&id={last}")) < 300_000
    refused = get(client, f"/events?name={queue}&download=csv", status=400)
    assert f"event {long} has more than" in refused
    assert f"pgqpy event peek {queue} " in refused


def test_a_deeply_nested_payload_is_shown_as_it_is_and_with_masks_not_at_all(
    dsn: str, conn: Connection, queue: str, console: Console
) -> None:
    plain, hiding = console(dsn), console(dsn, mask=["$..password"])
    for depth in (100, 500, 980, 5000):
        nested = "[" * depth + '{"password": "no 4711"}' + "]" * depth
        conn.execute(
            "select pgq.insert_event(%s, 'U:id', %s, 't', null, null, null)", [queue, nested]
        )
        number = add(conn, queue, nested)
        for url in (f"/events?name={queue}", f"/event?name={queue}&id={number}"):
            get(plain, url)
            assert "no 4711" not in get(hiding, url)
        get(hiding, f"/event?name={queue}&id={number - 1}")
        assert "no 4711" not in get(hiding, f"/events?name={queue}&download=csv")
    wide = add(conn, queue, "[" * 900 + "1," * 50_000 + "1" + "]" * 900)
    assert len(get(plain, f"/event?name={queue}&id={wide}")) < 1_000_000
    marked = add(conn, queue, '\ufeff{"password": "no 0815"}')
    assert "no 0815" not in get(hiding, f"/event?name={queue}&id={marked}")


def test_bytes_that_are_no_text_are_told_and_the_console_goes_on(
    server: Server, conn: Connection, queue: str, client: Client, console: Console
) -> None:
    number = add(conn, queue, "\x01\x1b[2J\x9b\u202e\ufffe \U0001f680")
    assert "\U0001f680" in get(client, f"/event?name={queue}&id={number}")
    for asked, status in (("%00", 400), ("%ff", 404), ("%ED%A0%80", 404)):
        get(client, f"/queue?name={asked}", status=status)
    get(client, f"/events?name={queue}&text=%ff")
    # Only a database without an encoding can hold an event that is no text.
    conn.execute("create database test_bytes template template0 encoding 'SQL_ASCII' locale 'C'")
    try:
        with psycopg.connect(server.dsn_of("test_bytes"), autocommit=True) as odd:
            odd.execute(schema_sql().encode())
            odd.execute("select pgq.create_queue('q')")
            odd.execute(b"select pgq.insert_event('q', 't', 'caf\xe9')")
        bytes_there = console(server.dsn_of("test_bytes"))
        answer = bytes_there.get("/events?name=q", headers={ROLE: OWNER})
        assert "invalid byte sequence" in answer.text
        assert "base64" in answer.text
        assert "q" in get(bytes_there, "/queues")
    finally:
        conn.execute("drop database test_bytes with (force)")


def test_a_captured_change_is_compared_with_the_row_before(
    conn: Connection, queue: str, client: Client
) -> None:
    conn.execute("create table flight (id int primary key, delay int, card text)")
    conn.execute("select pgq.capture_table('flight', %s, old_values => 'changed')", [queue])
    conn.execute("insert into flight values (1, 5, 'no 4711')")
    conn.execute("update flight set delay = 12")
    conn.execute("delete from flight")
    ids = [n for (n,) in conn.execute("select ev_id from pgq.event_template order by ev_id")]
    inserted, updated, deleted = (get(client, f"/event?name={queue}&id={n}") for n in ids)
    assert (
        '<td class="cut changed"><bdi>5</bdi></td><td class="cut changed"><bdi>12</bdi>' in updated
    )
    assert "changed" not in inserted + deleted
    assert "UPDATE public.flight" in get(client, f"/events?name={queue}")
    assert "no 4711" not in inserted + updated + deleted


def test_the_page_of_an_event_says_where_it_is_for_each_consumer(
    conn: Connection, queue: str, client: Client
) -> None:
    admin = Admin(conn)
    for name in ("billing", "mail"):
        admin.register_consumer(queue, name)
    number = add(conn, queue, "x")
    ops.tick(conn, queue)
    batch = admin.next_batch(queue, "billing")
    assert batch is not None
    conn.execute("select pgq.event_dead_letter(%s, %s, 'no such order')", [batch, number])
    admin.finish_batch(batch)
    page = get(client, f"/event?name={queue}&id={number}")
    assert "The event is stored" in page
    for told in ("billing", "dead letter", "no such order", "mail", "not read"):
        assert told in page
    assert "not there" in get(client, f"/event?name={queue}&id={number + 9}")
    later = Producer(queue).insert_event(conn, "t", "d", delay=timedelta(hours=1))
    page = get(client, f"/event?name={queue}&id={later}")
    assert "The event is delayed until" in page
    assert "No consumer can read it now." in page
    get(client, f"/event?name={queue}&id=x", status=404)
    get(client, f"/event?name={queue}&id={'9' * 30}", status=404)


def test_an_event_is_inserted_by_roles_that_may(
    conn: Connection, queue: str, client: Client, make_role: MakeRole
) -> None:
    page = f"/events?name={queue}"
    reader, writer = make_role("reader", "pgq_reader"), make_role("writer", "pgq_writer")
    assert 'name="action"' not in get(client, page, reader)
    fields = {"action": "insert", "type": "order", "data": '{"id": 3}', "extra2": "b"}
    assert post(client, page, writer, **fields).status_code == 303
    assert post(client, page, OWNER, action="insert", type="").status_code == 409
    # Of a restricted queue a role without the right sees nothing.
    Admin(conn).restrict_queue(queue)
    for role in (reader, writer):
        assert "&#34;id&#34;" not in get(client, page, role)
        assert 'name="action"' not in get(client, page, role)
    rows = conn.execute("select ev_type, ev_data, ev_extra1, ev_extra2 from pgq.event_template")
    assert rows.fetchall() == [("order", '{"id": 3}', None, "b")]


def test_a_role_that_may_only_read_events_sees_one_without_its_places(
    conn: Connection, queue: str, client: Client, make_role: MakeRole
) -> None:
    number, writer = add(conn, queue, "a secret"), make_role("writer", "pgq_writer")
    page = f"/event?name={queue}&id={number}"
    assert "a secret" not in get(client, page, writer, 403)
    # Nothing is offered that would be refused.
    assert "download=" not in get(client, f"/events?name={queue}", writer)
    Admin(conn).grant_queue(queue, ["read"], writer)
    seen = get(client, page, writer)
    assert "a secret" in seen
    assert "You may not see that." in seen
    get(client, f"{page}0", writer, 404)


def test_the_page_of_a_queue_lists_the_delayed_events_that_are_due_next(
    conn: Connection, queue: str, client: Client, make_role: MakeRole
) -> None:
    page = f"/queue?name={queue}"
    assert "Delayed events" not in get(client, page)
    insert = "select pgq.insert_event_at(%s, now() + n * interval '1 h', 'remind', %s || n)"
    masked = '{"card": "no 4711", "n": 0} '
    conn.execute(f"{insert} from generate_series(40, 1, -1) n".encode(), [queue, "later "])
    conn.execute(f"{insert} from (values (0.5)) v (n)".encode(), [queue, masked])
    shown = get(client, page)
    listed = shown.partition("Delayed events</h2>")[2]
    assert "no 4711" not in shown
    assert listed.index("later 1<") < listed.index("later 19<")
    assert "later 20<" not in shown
    assert "Only the next 20 are shown." in shown
    assert "The event is delayed" in get(client, f"/event?name={queue}&id={found(listed)[1]}")
    writer = make_role("writer", "pgq_writer")
    # Its right to read the list is none to look for an event.
    shown = get(client, page, writer)
    assert "later 1<" in shown
    assert "/event?" not in shown
    Admin(conn).restrict_queue(queue)
    assert "Delayed events" not in get(client, page, writer)


def test_what_was_found_is_downloaded(conn: Connection, queue: str, client: Client) -> None:
    add(conn, queue, '{"id": 1, "card": "no 4711"}')
    add(conn, queue, 'a "quoted", line\nand another', "refund")
    lines = get(client, f"/events?name={queue}&download=jsonl").splitlines()
    assert [json.loads(each)["type"] for each in lines] == ["order", "refund"]
    assert "no 4711" not in lines[0]
    answer = client.get(f"/events?name={queue}&type=refund&download=csv", headers={ROLE: OWNER})
    assert "attachment" in answer.headers["content-disposition"]
    [row] = csv.DictReader(io.StringIO(answer.text))
    assert row["data"] == 'a "quoted", line\nand another'


def test_no_cell_of_a_download_is_a_formula(conn: Connection, queue: str, client: Client) -> None:
    texts = [
        '=HYPERLINK("https://evil.example")',
        "@SUM(1)",
        "+1+cmd|' /C calc'!A0",
        "-12.5",
        "\t=1",
    ]
    for text in texts:
        add(conn, queue, text, text)
    answer = client.get(f"/events?name={queue}&download=csv", headers={ROLE: OWNER})
    rows = [*csv.DictReader(io.StringIO(answer.text, newline=""))]
    marked = [text if text == "-12.5" else f"'{text}" for text in texts]
    assert [row["data"] for row in rows] == [row["type"] for row in rows] == marked
    lines = get(client, f"/events?name={queue}&download=jsonl").splitlines()
    assert [json.loads(each)["data"] for each in lines] == texts


def test_a_download_masks_the_row_before_too(conn: Connection, queue: str, client: Client) -> None:
    conn.execute("create table payment (id int primary key, card text)")
    conn.execute("select pgq.capture_table('payment', %s, old_values => 'row')", [queue])
    conn.execute("insert into payment values (1, 'no 4711')")
    conn.execute("update payment set card = 'no 0815'")
    conn.execute(
        "select pgq.insert_event(%s, 'a', 'b', %s, null, null, null)",
        [queue, '{"card": "no 4711"}'],
    )
    for url in ("&download=jsonl", "&download=csv", ""):
        page = get(client, f"/events?name={queue}{url}")
        assert "no 4711" not in page
        assert "no 0815" not in page
