"""The console's dead letters: by error, replayed, edited and purged; many in the background."""

from __future__ import annotations

import tracemalloc
from urllib.parse import parse_qs, urlsplit

import pytest

from pgqpy.admin import Admin
from pgqpy.ui import _dead_letters
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_console import HOST, OWNER, ROLE, Client, csrf, get, post
from tests.fixtures.fix_db import Connection, MakeRole

COUNT = "select count(*) from pgq.dead_letter"


def give_up(conn: Connection, queue: str, count: int, data: str = '{"id": 1}') -> list[int]:
    """Dead letters of a consumer; their ids."""
    Admin(conn).register_consumer(queue, "billing")
    conn.execute(
        "select pgq.insert_event(%s, 'order', %s) from generate_series(1, %s)", [queue, data, count]
    )
    ops.tick(conn, queue)
    batch = Admin(conn).next_batch(queue, "billing")
    assert batch is not None
    conn.execute(
        "select pgq.event_dead_letter(%s, ev_id, 'no <i>order</i> ' || ev_id)"
        "  from pgq.get_batch_events(%s)",
        [batch, batch],
    )
    Admin(conn).finish_batch(batch)
    return [n for (n,) in conn.execute("select dl_id from pgq.dead_letter order by 1")]


def test_dead_letters_are_grouped_by_error_and_found(
    conn: Connection, queue: str, client: Client, make_role: MakeRole
) -> None:
    first, *_ = give_up(conn, queue, 3)
    page = get(client, "/dead_letters")
    assert "no &lt;i&gt;order&lt;/i&gt; #" in page
    assert f"/dead_letter?id={first}" in page
    for found, where in {
        True: f"queue={queue}&consumer=billing&event_type=order&reason=ORDER",
        False: "reason=timeout",
    }.items():
        assert (f"/dead_letter?id={first}" in get(client, f"/dead_letters?{where}")) == found
    letter = get(client, f"/dead_letter?id={first}")
    assert "no &lt;i&gt;order&lt;/i&gt;" in letter
    assert "&#34;id&#34;: 1" in letter
    for wrong in ("0", "x", "9" * 30):
        get(client, f"/dead_letter?id={wrong}", status=404)
    Admin(conn).restrict_queue(queue)
    reader = make_role("reader", "pgq_reader")
    assert "/dead_letter?" not in get(client, "/dead_letters", reader)
    get(client, f"/dead_letter?id={first}", reader, 404)


def test_one_is_replayed_edited_or_purged(conn: Connection, queue: str, client: Client) -> None:
    first, second, third = give_up(conn, queue, 3)
    assert post(client, f"/dead_letter?id={first}", OWNER, action="replay").status_code == 303
    page = f"/dead_letter?id={second}"
    assert post(client, page, OWNER, action="edit", data="{").status_code == 409
    assert ops.value(conn, COUNT) == 2
    assert post(client, page, OWNER, action="edit", data='{"id": 2}').status_code == 303
    assert post(client, f"/dead_letter?id={third}", OWNER, action="purge").status_code == 303
    assert ops.value(conn, COUNT) == 0
    assert "Retries that wait" in get(client, "/dead_letters")
    conn.execute("select pgq.maint_retry_events()")
    ops.tick(conn, queue)
    batch = Admin(conn).next_batch(queue, "billing")
    again = conn.execute("select ev_data from pgq.get_batch_events(%s) order by ev_id", [batch])
    assert [data for (data,) in again] == ['{"id": 1}', '{"id": 2}']
    logged = conn.execute("select al_action, al_count from pgq.action_log order by al_id")
    assert logged.fetchall() == [
        ("dead_letter: replay", 1), ("dead_letter: edit", 1), ("dead_letter: purge", 1),
    ]  # fmt: skip


def test_a_change_leads_to_the_letters_of_a_queue_of_any_name(
    conn: Connection, client: Client
) -> None:
    name = "a&b#c%d?e f=ü"
    Admin(conn).create_queue(name)
    for number, fields in zip(
        give_up(conn, name, 3),
        ({"action": "replay"}, {"action": "purge"}, {"action": "edit", "data": "{}"}),
        strict=True,
    ):
        answer = post(client, f"/dead_letter?id={number}", OWNER, **fields)
        asked = parse_qs(urlsplit(answer.headers["location"]).query)
        assert asked == {"queue": [name]}, fields


def test_of_a_large_letter_its_page_reads_a_piece(
    conn: Connection, queue: str, client: Client
) -> None:
    [letter] = give_up(conn, queue, 1, data=f'"{"x" * 5_000_000}"')
    tracemalloc.start()
    try:
        page = get(client, f"/dead_letter?id={letter}")
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert "Only the first 200,000 characters" in page
    edited = {"action": "edit", "data": "1"}
    assert post(client, f"/dead_letter?id={letter}", OWNER, **edited).status_code == 409
    assert post(client, f"/dead_letter?id={letter}", OWNER, action="replay").status_code == 303


def ended(client: Client) -> str:
    """The page when the change has ended."""
    for _ in range(600):
        page = get(client, "/dead_letters")
        if "so far" not in page:
            return page
    raise AssertionError(page)


def test_all_that_were_found_are_changed_in_the_background(
    conn: Connection, queue: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dead_letters, "CHUNK", 2)
    monkeypatch.setattr(_dead_letters, "FOUND", 3)
    ids = give_up(conn, queue, 5)
    preview = get(client, f"/dead_letters?queue={queue}&preview=purge")
    assert "5 dead letters" in preview
    assert "deleted for good" in preview
    asked = post(client, "/dead_letters?preview=purge", OWNER, action="purge", queue="none")
    assert asked.status_code == 409
    given = {"action": "purge", "queue": queue}
    assert post(client, "/dead_letters?preview=purge", OWNER, **given).status_code == 303
    assert "done, 5" in ended(client)
    assert ops.value(conn, COUNT) == 0
    logged = "select al_action, al_count from pgq.action_log order by al_id"
    assert conn.execute(logged).fetchall() == [("dead_letters: purge", n) for n in (2, 1, 2)]
    assert len(ids) == 5


def test_all_that_were_found_are_changed_and_replayed(
    conn: Connection, queue: str, client: Client
) -> None:
    give_up(conn, queue, 3)
    page = f"/dead_letters?queue={queue}&preview=patch"
    assert "3 dead letters" in get(client, page)
    given = {"action": "patch", "queue": queue}
    assert post(client, page, OWNER, **given, patch="[1]").status_code == 409
    assert post(client, page, OWNER, **given, patch='{"new": 1}').status_code == 303
    assert "done, 3" in ended(client)
    waiting = "select distinct ev_data::jsonb -> 'new' from pgq.waiting_event"
    assert conn.execute(waiting).fetchall() == [(1,)]


def test_a_change_is_stopped_and_an_error_ends_it(
    conn: Connection, queue: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dead_letters, "CHUNK", 1)
    give_up(conn, queue, 100)
    page = "/dead_letters?preview=purge"
    form = csrf(get(client, page))
    headers = {ROLE: OWNER, "Origin": HOST}
    purge = {"csrf": form, "action": "purge", "queue": queue}
    assert client.post(page, data=purge, headers=headers).status_code == 303
    # One at a time.
    assert client.post(page, data=purge, headers=headers).status_code == 409
    assert client.post("/stop", data={"csrf": "x"}, headers=headers).status_code == 403
    stopped = client.post("/stop", data={"csrf": form, "page": "/evil.example"}, headers=headers)
    assert (stopped.status_code, stopped.headers["location"]) == (303, "/")
    here = "task_queue?name=mails"
    again = client.post("/stop", data={"csrf": form, "page": here}, headers=headers)
    assert again.headers["location"] == f"/{here}"
    assert "stopped after" in ended(client)
    left = ops.value(conn, COUNT)
    assert left > 0
    logged = "select al_role, al_arguments from pgq.action_log where al_action = 'stop'"
    told = {"change": "purge 100 dead letters"}
    assert conn.execute(logged).fetchall() == [(OWNER, told)]
    Admin(conn).unregister_consumer(queue, "billing")
    assert post(client, page, OWNER, action="replay", queue=queue).status_code == 303
    assert "after 0." in ended(client)
    assert ops.value(conn, COUNT) == left


def test_a_retry_at_a_time_without_end_hides_no_letter(
    conn: Connection, queue: str, client: Client
) -> None:
    admin = Admin(conn)
    admin.register_consumer(queue, "billing")
    number = ops.value(conn, "select pgq.insert_event(%s, 't', 'd')", queue)
    ops.tick(conn, queue)
    batch = admin.next_batch(queue, "billing")
    conn.execute("select pgq.event_retry(%s, %s, 3600)", [batch, number])
    for time in ("infinity", "20000-01-01"):
        # From a dump of an older release, which took such times.
        conn.execute("update pgq.delayed set due = %s", [time])
        assert "9999-12-31" in get(client, "/dead_letters")
