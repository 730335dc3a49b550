"""The console's tasks: found, changed one by one and all together; schedules, flows, settings."""

from __future__ import annotations

import html
import re
import tracemalloc
from urllib.parse import urlencode

import psycopg
import pytest

from pgqpy.embedded import Server
from pgqpy.tasks import Tasks
from pgqpy.ui import _chosen
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_console import HOST, OWNER, ROLE, Client, Console, csrf, get, post
from tests.fixtures.fix_db import Connection, MakeRole
from tests.fixtures.fix_standby import standby_of


@pytest.fixture
def tasks(conn: Connection) -> Tasks:
    made = Tasks(conn)
    made.create_queue("mails")
    return made


def page(**query: str) -> str:
    return f"/task_queue?{urlencode({'name': 'mails'} | query)}"


def statuses(tasks: Tasks, queue: str = "mails") -> list[str]:
    return sorted(each.status for each in tasks.list(queue, max_tasks=None))


def change(client: Client, tasks: Tasks, action: str, role: str = OWNER, **fields: str) -> str:
    """Change all tasks that a filter finds, and wait for the end; what the page says then."""
    answer = post(client, page(), role, action=action, **fields)
    assert answer.status_code == 303, answer.text
    wait_until(lambda: "so far" not in get(client, page()))
    return get(client, page())


def test_tasks_are_found_by_what_they_hold(client: Client, tasks: Tasks) -> None:
    numbers = [
        tasks.push("mails", {"task": "send", "to": to}, priority=nr, headers={"nr": nr})
        for nr, to in enumerate(("ann", "bob"))
    ]
    stopped = tasks.push("mails", {"task": "send", "to": "cid"}, unique_key="c")
    tasks.change("mails", {"ids": [stopped]}, {"stop": True, "error": "timeout after 17 s"})
    [claimed] = tasks.claim("mails", max_tasks=1, random=False)
    found = {
        numbers[0]: [{"payload": '{"to": "ann"}'}, {"headers": '{"nr": 0}'}],
        numbers[1]: [{"claimant": tasks.claimant}, {"priority": "1"}, {"attempts": "1"}],
        stopped: [{"state": "stopped"}, {"error": "TIMEOUT"}, {"key": "c"}],
    }
    assert claimed.id == numbers[1]
    for number, queries in found.items():
        for query in queries:
            shown = get(client, page(**query))
            assert [n for n in (*numbers, stopped) if f"/task?id={n}" in shown] == [number], query
    assert "/task?id=" not in get(client, page(before="2020-01-01"))
    assert "timeout after # s" in get(client, page())


@pytest.mark.parametrize("wrong", [{"payload": "ann"}, {"attempts": "x"}, {"before": "soon"}])
def test_a_filter_that_cannot_be_read_is_refused_on_the_page(
    client: Client, tasks: Tasks, wrong: dict[str, str]
) -> None:
    tasks.push("mails", 1)
    shown = get(client, page(**wrong, preview="delete"))
    assert 'class="alert" role="alert"' in shown
    assert "Delete: " not in shown
    assert post(client, page(), OWNER, action="delete", **wrong).status_code == 409
    assert len(tasks.list("mails")) == 1


def test_all_tasks_that_a_filter_finds_are_changed_after_a_preview(
    client: Client, tasks: Tasks, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chosen, "CHUNK", 3)
    tasks.push_many("mails", [{"to": "ann"}] * 8)
    other = tasks.push("mails", {"to": "bob"})
    ann = {"payload": '{"to": "ann"}'}
    assert "8 tasks" in get(client, page(**ann, preview="stop"))
    assert "done, 8" in change(client, tasks, "stop", **ann)
    assert statuses(tasks) == ["available"] + ["stopped"] * 8
    change(client, tasks, "start", state="stopped", value="1 hour")
    assert statuses(tasks) == ["available"] + ["scheduled"] * 8
    change(client, tasks, "prioritise", **ann, value="7")
    assert sorted(each.priority for each in tasks.list("mails")) == [0] + [7] * 8
    tasks.create_queue("slow")
    change(client, tasks, "move", priority="7", value="slow")
    assert [each.id for each in tasks.list("mails")] == [other]
    assert len(tasks.list("slow")) == 8
    change(client, tasks, "delete", state="available")
    assert tasks.list("mails") == []
    [[logged]] = conn.execute(
        "select sum(al_count) from pgq.action_log where al_action = 'task_queue: stop'"
    ).fetchall()
    assert logged == 8


def test_tasks_that_came_later_and_those_of_workers_are_not_changed(
    client: Client, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chosen, "CHUNK", 1)
    tasks.push_many("mails", [1, 2, 3])
    [claimed] = tasks.claim("mails", max_tasks=1, random=False)
    # The first chunk changes none, and the others are still changed.
    assert "done, 2" in change(client, tasks, "delete")
    tasks.finish(claimed)


def test_claimed_tasks_are_cancelled_too(client: Client, tasks: Tasks) -> None:
    tasks.push_many("mails", [1, 2, 3])
    [claimed] = tasks.claim("mails", max_tasks=1, random=False)
    assert "done, 3" in change(client, tasks, "cancel")
    assert [each.id for each in tasks.list("mails")] == [claimed.id]
    assert tasks.progress("mails")[0].cancelled == _chosen.CANCELLED


def test_failed_tasks_are_sent_back_all_together(client: Client, tasks: Tasks) -> None:
    tasks.push_many("mails", range(5))
    for each in tasks.claim("mails", max_tasks=5):
        tasks.fail(each, f"no mailbox {each.id}", final=True)
    failed = "/task_queue?name=mails.failed&error=mailbox&preview=retry"
    assert "Retry: 5 tasks" in get(client, failed)
    assert post(client, failed, OWNER, action="retry", error="mailbox").status_code == 303
    wait_until(lambda: len(tasks.list("mails")) == 5)


@pytest.mark.parametrize(
    ("action", "value"), [("prioritise", "high"), ("start", "soon"), ("move", ""), ("move", "nope")]
)
def test_a_wrong_value_of_a_change_is_refused_at_once(
    client: Client, tasks: Tasks, action: str, value: str
) -> None:
    number = tasks.push("mails", 1)
    refused = post(client, page(), OWNER, action=action, value=value)
    assert refused.status_code in (404, 409), refused.text
    assert statuses(tasks) == ["available"]
    one = f"/task?id={number}"
    assert post(client, one, OWNER, action=action, queue="mails", value=value).status_code != 303


def test_changes_are_offered_and_done_by_right_only(
    client: Client, tasks: Tasks, conn: Connection, make_role: MakeRole
) -> None:
    number, reader = tasks.push("mails", "secret"), make_role("reader", "pgq_reader")
    tasks.create_queue("open")
    tasks.push("open", 1)
    shown = get(client, "/task_queue?name=open", reader)
    assert 'value="delete"' in shown
    assert 'value="drop"' not in shown
    assert 'value="configure"' not in shown
    conn.execute("select pgq_task.restrict_queue('mails')")
    shown = get(client, page(preview="delete"), reader)
    assert "secret" not in shown
    assert "You may not read this queue." in shown
    get(client, f"/task?id={number}", reader, 404)
    own = csrf(get(client, "/task_queue?name=open&preview=delete", reader))
    given = {"confirm": "mails", "lease": "1 s", "before_lease": "2 s", "rate": "1"}
    given |= {"csrf": own, "value": "1", "queue": "mails"}
    headers = {ROLE: reader, "Origin": HOST}
    for action in (*_chosen.CHANGES, "configure", "limit", "pause", "drop"):
        data = given | {"action": action}
        answer = client.post(page(), data=data, headers=headers)
        assert answer.status_code == 403, (action, answer.text)
    for action in _chosen.CHANGES:
        data = given | {"action": action}
        answer = client.post(f"/task?id={number}", data=data, headers=headers)
        assert answer.status_code in (403, 404, 409), (action, answer.text)
    assert statuses(tasks) == ["available"]
    assert f"/task?id={number}" in get(client, page())
    assert "secret" in get(client, f"/task?id={number}")


def test_a_missing_error_queue_makes_the_server_log_no_error(
    client: Client, tasks: Tasks, server: Server
) -> None:
    logged_before = server.log.stat().st_size
    tasks.create_queue("mails.failed_later")
    assert "which does not exist yet" in get(client, page())
    tasks.create_queue("mails.failed")
    assert "which does not exist yet" not in get(client, page())
    logged = server.log.read_bytes()[logged_before:].splitlines()
    assert [line for line in logged if b"ERROR" in line and b"mails" in line] == []


def test_one_task_is_changed(client: Client, tasks: Tasks) -> None:
    number = tasks.push("mails", {"to": "an"})
    one = f"/task?id={number}"
    for action, value in (("stop", ""), ("start", "1 hour"), ("prioritise", "3")):
        answer = post(client, one, OWNER, action=action, queue="mails", value=value)
        assert answer.status_code == 303
    [info] = tasks.list("mails")
    assert (info.status, info.priority) == ("scheduled", 3)
    edited = {"action": "edit", "version": str(info.version), "payload": '{"to": "ann"}'}
    assert post(client, one, OWNER, **edited).status_code == 303
    assert tasks.list("mails")[0].payload == {"to": "ann"}
    # It has changed since the page was loaded; and no JSON.
    assert post(client, one, OWNER, **edited).status_code == 409
    wrong = edited | {"version": str(info.version + 1), "payload": "{"}
    assert post(client, one, OWNER, **wrong).status_code == 409
    assert tasks.list("mails")[0].payload == {"to": "ann"}


def test_a_role_that_may_only_push_sees_sizes_and_no_tasks(
    client: Client, tasks: Tasks, make_role: MakeRole
) -> None:
    tasks.push("mails", "secret")
    tasks.claim("mails")
    writer = make_role("writer", "pgq_writer")
    assert "Your role may not look at tasks." in get(client, "/task_queues", writer)
    assert "You may not read this queue." in get(client, page(), writer)


def test_a_change_is_for_one_queue(client: Client, tasks: Tasks) -> None:
    tasks.push("mails", 1)
    own = csrf(get(client, page(preview="cancel")))
    for action in _chosen.CHANGES:
        data = {"csrf": own, "action": action, "value": "mails"}
        url = "/task_queue?name=mai*"
        answer = client.post(url, data=data, headers={ROLE: OWNER, "Origin": HOST})
        assert answer.status_code in (404, 409)
    assert statuses(tasks) == ["available"]


def test_masked_payloads_are_not_edited_nor_shown(dsn: str, console: Console, tasks: Tasks) -> None:
    client = console(dsn, mask=["$.card.number", "$.task"])
    card = {"number": "no 4711", "type": "debit"}
    one = f"/task?id={tasks.push('mails', {'card': card, 'task': 's3cret'})}"
    for shown in (get(client, page()), get(client, one)):
        assert "no 4711" not in shown
        assert "s3cret" not in shown
        assert "debit" in shown
    with pytest.raises(ValueError, match="no path like"):
        console(dsn, mask=["card"])
    edited = {"action": "edit", "version": "1", "payload": "{}"}
    assert post(client, one, OWNER, **edited).status_code == 409


def test_a_payload_that_python_cannot_read_hides_no_other_task(
    client: Client, conn: Connection, tasks: Tasks
) -> None:
    tasks.push("mails", {"to": "ann"})
    nested = "[" * 2000 + "]" * 2000
    for odd in (f'{{"n": {nested}}}', f'{{"n": {"1" * 5000}}}'):
        push = "select pgq_task.push('mails', %s::jsonb, headers => %s::jsonb)"
        [[number]] = conn.execute(push, [odd, odd]).fetchall()
        conn.execute(
            "select pgq_task.set_periodic('odd', 'mails', '@every 90s', 'UTC', %s::jsonb)", [odd]
        )
        assert "ann" in get(client, page())
        shown = get(client, f"/task?id={number}")
        assert odd[6:30] in html.unescape(shown)
        assert "Another payload" not in shown
        get(client, "/task_queues")
        get(client, "/periodic?name=odd")


def test_of_large_tasks_pages_read_a_piece_that_shows_nothing_masked(
    dsn: str, console: Console, conn: Connection, tasks: Tasks
) -> None:
    client, masking = console(dsn), console(dsn, mask=["$.card"])
    tasks.set_config("mails", "keep", "1 day")
    large = "jsonb_build_object('card', 'no 4711', 'text', repeat('x', %s))"
    conn.execute(f"select pgq_task.push('mails', {large}) from generate_series(1, 12)", [2_000_000])
    conn.execute(f"select pgq_task.push('mails', {large}, priority => -1)", [20_000_000])
    done = [each.id for each in tasks.pop("mails", max_tasks=4)]
    [first] = tasks.list("mails", max_tasks=1, payloads=False)
    tracemalloc.start()
    try:
        for url in f"/finished_task?name=mails&id={done[0]}", f"/task?id={first.id}", page():
            tracemalloc.reset_peak()
            shown = get(client, url)
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
            assert "no 4711" in shown
            assert "Another payload" not in shown
            assert "no 4711" not in get(masking, url)
    finally:
        tracemalloc.stop()
    assert "kB, not read)" in shown


def test_finished_tasks_are_shown_and_pushed_again(client: Client, tasks: Tasks) -> None:
    tasks.set_config("mails", "keep", "1 day")
    tasks.push("mails", "to ann")
    [task] = tasks.claim("mails")
    tasks.finish(task, {"sent": True})
    one = f"/finished_task?name=mails&id={task.id}"
    assert f"finished_task?name=mails&amp;id={task.id}" in get(client, page())
    assert "&#34;sent&#34;: true" in get(client, one)
    assert post(client, one, OWNER, action="replay").status_code == 303
    assert [each.payload for each in tasks.list("mails")] == ["to ann"]
    get(client, "/finished_task?name=mails&id=99", status=404)


def test_a_queue_is_created_configured_limited_paused_and_dropped(
    client: Client, tasks: Tasks
) -> None:
    post(client, "/task_queues", OWNER, action="create", name="slow")
    slow = "/task_queue?name=slow"
    settings = {"lease": "00:01:00", "before_lease": "00:05:00", "max_attempts": "9"}
    post(client, slow, OWNER, action="configure", **settings, before_max_attempts="9")
    post(client, slow, OWNER, action="limit", rate="5", max_running="2", rate_period="10 s")
    post(client, slow, OWNER, action="pause")
    [info] = tasks.queues("slow")
    assert (info.lease.total_seconds(), info.max_attempts, info.paused is None) == (60, None, False)
    [limits] = tasks.limits("slow")
    assert (limits.rate, limits.max_running, limits.rate_period.total_seconds()) == (5, 2, 10)
    assert "0 of 5 begun" in get(client, slow)
    for wrong in ({"rate": "many"}, {"rate": "1", "rate_period": "x"}, {"rate": "0"}):
        assert post(client, slow, OWNER, action="limit", **wrong).status_code == 409
    post(client, slow, OWNER, action="resume")
    assert tasks.queues("slow")[0].paused is None
    assert post(client, slow, OWNER, action="drop", confirm="mails").status_code == 409
    tasks.push("slow", 1)
    assert post(client, slow, OWNER, action="drop", confirm="slow").status_code == 409
    assert post(client, slow, OWNER, action="drop", confirm="slow", force="on").status_code == 303
    assert [each.queue_name for each in tasks.queues()] == ["mails"]


def test_workers_that_have_tasks_are_listed(client: Client, tasks: Tasks) -> None:
    tasks.push_many("mails", [1, 2])
    assert "No worker has a task now." in get(client, "/task_queues")
    tasks.claim("mails", max_tasks=2)
    shown = get(client, "/task_queues")
    assert tasks.claimant in shown
    assert f"claimant={tasks.claimant}" in shown
    assert re.search("<dt>Workers</dt><dd>1 ", get(client, "/"))


def test_schedules_are_told_in_words_run_paused_and_dropped(
    client: Client, tasks: Tasks, conn: Connection
) -> None:
    for name, cron in (("nightly", "30 2 * * MON-FRI"), ("broken", "x y"), ("often", "@every 90s")):
        conn.execute("select pgq_task.set_periodic(%s, 'mails', %s, 'UTC', '1')", [name, cron])
    shown = get(client, "/task_queues")
    for text in ("At 02:30 on Monday through Friday", "Every 90 s", "is no cron expression"):
        assert text in shown
    one = "/periodic?name=nightly"
    assert get(client, one).count("02:30:00 UTC") == 5
    post(client, one, OWNER, action="run")
    assert len(tasks.list("mails")) == 1
    post(client, one, OWNER, action="pause")
    assert "paused" in get(client, one)
    post(client, one, OWNER, action="resume")
    assert [each.paused for each in tasks.periodic()] == [None] * 3
    assert post(client, one, OWNER, action="drop").status_code == 303
    get(client, one, status=404)


def test_the_failures_of_a_task_are_listed(client: Client, tasks: Tasks) -> None:
    tasks.create_queue("work")
    number = tasks.push("work", {})
    for error in ("first <b>", "second"):
        [task] = tasks.try_claim("work")
        tasks.fail(task, error)
    shown = get(client, f"/task?id={number}")
    listed = shown.partition("Attempts that failed")[2].partition("</table>")[0]
    assert listed.index("second") < listed.index("first &lt;b&gt;")


def test_a_flow_is_drawn(client: Client, tasks: Tasks) -> None:
    step = {"queue": "mails", "payload": 1}
    number = tasks.push_flow(
        [step | {"name": "a"}, step | {"name": "b"}, step | {"name": "<i>", "after": [1, 2]}]
    )
    first = tasks.list("mails")[0].id
    assert f"/flow?id={number}" in get(client, f"/task?id={first}")
    shown = get(client, f"/flow?id={number}")
    assert shown.count("<rect") == 3
    assert shown.count("<path") == 2
    assert "<i>" not in shown
    for wrong in ("0", "x", "9" * 30, str(number + 100)):
        get(client, f"/flow?id={wrong}", status=404)


def test_steps_of_a_large_flow_are_drawn_together_with_counts(client: Client, tasks: Tasks) -> None:
    load = {"queue": "mails", "payload": 1, "name": "load"}
    merge = load | {"name": "merge", "after": [*range(1, 101)]}
    number = tasks.push_flow([*[load] * 100, merge])
    [done] = tasks.claim("mails", random=False)
    tasks.finish(done)
    shown = get(client, f"/flow?id={number}")
    assert shown.count("<rect") == 2
    assert "99 available, 1 finished" in shown


@pytest.mark.slow
def test_a_task_is_shown_on_a_standby(mortal: Server, console: Console) -> None:
    with psycopg.connect(mortal.dsn, autocommit=True) as conn:
        Tasks(conn).create_queue("mails")
        number = Tasks(conn).push("mails", {"to": "ada"})
    with standby_of(mortal) as standby:
        client, url = console(standby.dsn), f"/task?id={number}"
        wait_until(lambda: client.get(url, headers={ROLE: OWNER}).status_code == 200)
        shown = get(client, url)
        assert "ada" in shown
        assert "read-only" in shown
        assert 'name="action"' not in shown
