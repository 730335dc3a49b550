"""``pgqpy task``: queues, pushes, lists, changes, history, grants and workers from a shell."""

from __future__ import annotations

import json
import runpy
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pgqpy.tasks import Tasks
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_cli import Cli, Spawn
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import PATIENCE, eventually


@pytest.fixture
def mails(cli: Cli) -> str:
    cli.ok("task", "create", "mails")
    return "mails"


def pushed(cli: Cli, *args: str) -> int:
    return int(cli.ok("task", "push", *args).rpartition(" ")[2])


def fail(conn: Connection, queue: str, *, error: str = "timeout", final: bool = True) -> int:
    ((task, version),) = ops.claim(conn, queue)
    conn.execute(
        "select pgq_task.fail('w', %s, %s, %s, final => %s)", [task, version, error, final]
    )
    return task


def test_tasks_whose_json_python_cannot_read_are_shown(
    cli: Cli, conn: Connection, mails: str
) -> None:
    nested = "[" * 3000 + "]" * 3000
    odd = "select pgq_task.push('mails', %s::jsonb, headers => %s::jsonb)"
    [[task]] = conn.execute(odd, [nested, f'{{"n": {nested}}}']).fetchall()
    periodic = "select pgq_task.set_periodic('odd', 'mails', '@every 90s', 'UTC', %s::jsonb)"
    conn.execute(periodic, [nested])
    deep = pushed(cli, mails, "[" * 700 + "]" * 700)
    for command in (["list", mails], ["show", str(task), str(deep)]):
        assert "[" * 3000 in cli.ok("task", *command)
        first, second = map(json.loads, cli.ok("task", *command, "--json").splitlines())
        assert first["payload"]["text"] == nested
        assert second["payload"] == json.loads("[" * 700 + "]" * 700)
    assert cli.json("task", "periodic", "list")[0]["payload"]["text"] == nested


# --- queues


@pytest.mark.smoke
def test_queues_are_created_configured_paused_and_dropped(cli: Cli) -> None:
    said = cli.ok("task", "create", "mails", "--set", "lease=5min", "--set", "max_attempts=8")
    assert said == "created task queue mails\n"
    assert cli.ok("task", "create", "mails") == "task queue mails exists already\n"
    assert cli.json("task", "config", "mails") == {
        "lease": 300.0,
        "time_limit": None,
        "max_attempts": 8,
        "error_queue": "mails.failed",
        "keep": 0.0,
        "keep_tenants": None,
        "weight": 1,
    }
    cli.ok("task", "config", "mails", "max_attempts", "null")
    assert cli.json("task", "config", "mails", "max_attempts") == {"max_attempts": None}
    cli.ok("task", "pause", "mails")
    assert "mails (paused)" in cli.ok("task", "queues")
    cli.ok("task", "resume", "mails")
    (queue,) = cli.json("task", "queues", "m*s")
    assert queue["paused"] is None
    assert cli.json("task", "queues", "s*") == []
    assert cli.ok("task", "queues", "s*") == "no such task queues\n"
    pushed(cli, "mails", "1")
    assert "--force" in cli.fails("task", "drop", "mails")
    cli.ok("task", "drop", "mails", "--force")
    assert cli.ok("task", "queues").startswith("no task queues yet")


def test_what_makes_no_sense_for_a_queue_is_refused_with_what_does(cli: Cli, mails: str) -> None:
    assert "pgqpy task create" in cli.fails("task", "push", "nosuch", "1")
    assert "Parameters: lease" in cli.fails("task", "create", "x", "--set", "colour=red")
    assert cli("task", "config", "x").exit_code == 1
    for parameter, value in (("lease", "0"), ("keep", "forever"), ("error_queue", mails)):
        assert "hint: " in cli.fails("task", "config", mails, parameter, value)


def test_sizes_are_listed_by_status_and_operations_counted(
    cli: Cli, conn: Connection, mails: str
) -> None:
    pushed(cli, mails, "1", "--order-key", "a")
    pushed(cli, mails, "2", "--order-key", "a")
    pushed(cli, mails, "3", "--delay", "1 hour")
    pushed(cli, mails, "4")
    ops.claim(conn, mails)
    (queue,) = cli.json("task", "queues")
    names = ("total", "available", "claimed", "scheduled", "held", "stopped")
    assert [queue[name] for name in names] == [4, 1, 1, 1, 1, 0]
    heading, _, row = cli.ok("task", "queues").splitlines()
    assert " ".join(heading.split()) == "Queue Available Waiting Claimed Scheduled Held Stopped"
    assert row.startswith("mails")
    fail(conn, mails)
    stats = cli.json("task", "stats", mails)[0]
    assert (stats["pushed"], stats["claimed"], stats["failed"]) == (4, 2, 1)
    assert "failed_attempts" in cli.ok("task", "stats", mails)
    assert "mails.failed" in cli.ok("task", "stats")
    assert "mails.failed" in cli.ok("task", "stats", "m*.f*")
    assert cli.ok("task", "stats", "s*") == "no such task queues\n"
    assert cli.json("task", "stats", mails, "--reset")[0]["pushed"] == 4
    assert {each["queue_name"]: each["pushed"] for each in cli.json("task", "stats")}["mails"] == 0


# --- push


def test_a_payload_comes_as_it_was_written(cli: Cli, conn: Connection, mails: str) -> None:
    task = pushed(
        cli, mails, '{"n": 12345678901234567890.10}', "--priority", "-3", "--headers", "{}"
    )
    row = conn.execute(
        "select payload::text, priority, headers from pgq_task.tasks where id = %s", [task]
    ).fetchone()
    assert row == ('{"n": 12345678901234567890.10}', -3, {})
    first = int(cli.ok("task", "push", mails, "-", "--key", "k", stdin='"ä"').rpartition(" ")[2])
    assert first > task
    assert pushed(cli, mails, "2", "--key", "k") == first


def test_the_lines_of_a_file_are_pushed_or_none(
    cli: Cli, conn: Connection, mails: str, tmp_path: Path
) -> None:
    file = tmp_path / "mails.jsonl"
    file.write_text('{"to": "ann"}\n\n12\nnull\n')
    assert cli.ok("task", "push", mails, "--file", str(file)) == "pushed 3 tasks into mails\n"
    said = cli.ok("task", "push", mails, "--file", "-", stdin="1\n" * 2500)
    assert said == "pushed 2,500 tasks into mails\n"
    file.write_text("1\n" * 1500 + "hello\n")
    said = cli.fails("task", "push", mails, "--file", str(file))
    assert "mails.jsonl, line 1501: this is not JSON" in said
    assert "quotes" in said
    assert conn.execute("select count(*) from pgq_task.tasks").fetchone() == (2503,)


def test_what_cannot_be_pushed_says_why(cli: Cli, mails: str) -> None:
    for arguments, exit_code, said in (
        (["hello"], 2, "this is not JSON"),
        (["NaN"], 2, "JSON has no NaN"),
        (["[" * 100_000], 2, "nested too deeply"),
        (['"\udcff"'], 2, "not UTF-8"),
        (["1", "--at", "infinity"], 2, "no time such as"),
        (["1", "--at", "0001-01-01"], 2, "no time such as"),
        (["1", "--delay", "soon"], 1, "intervals are written like"),
        (["1", "--delay", "1000000 years"], 1, "200 years"),
        (["1", "--delay", "infinity"], 1, "infin"),
        (["1", "--delay", "-1 hour"], 1, "is negative"),
        (["1", "--at", "2030-01-01", "--delay", "1h"], 2, "exclude each other"),
        (["1", "--headers", "[]"], 2, "no JSON object"),
        (["1", "--priority", "40000"], 2, "is not in the range"),
        (["1", "--file", "-"], 2, "not for --file"),
    ):
        assert said in cli.fails("task", "push", mails, *arguments, exit_code=exit_code)
    assert "not UTF-8" in cli.fails("task", "push", "\udcff", "1", exit_code=2)


def test_numbers_and_intervals_out_of_range_are_refused(cli: Cli, mails: str) -> None:
    task = str(pushed(cli, mails, "1"))
    for arguments, exit_code, said in (
        (["list", mails, "-n", "99999999999"], 2, "range"),
        (["list", mails, "--attempts", "99999999999"], 2, "range"),
        (["show", "99999999999999999999"], 2, "range"),
        (["work", "shop:app", "--lease", "0"], 2, "range"),
        (["work", "shop:app", "--stop-timeout", "-1"], 2, "range"),
        (["list", mails, "--older-than", "a while"], 1, "a while"),
        (["list", mails, "--older-than", "9999999999 years"], 1, "intervals are written like"),
        (["start", task, "--delay", "soon"], 1, "cannot be read"),
        (["finish", "--", "-7"], 1, "there is no task -7"),
    ):
        assert said in cli.fails("task", *arguments, exit_code=exit_code)


# --- lists


def test_lists_are_filtered(cli: Cli, conn: Connection, mails: str) -> None:
    ann = pushed(cli, mails, '{"to": "ann", "n": 1}', "--key", "first")
    bob = pushed(cli, mails, '{"to": "bob"}', "--delay", "1 hour")
    eve = pushed(cli, mails, '{"to": "eve"}', "--priority", "9")

    def ids(*options: str) -> list[int]:
        return [each["id"] for each in cli.json_lines("task", "list", mails, *options)]

    assert ids() == [eve, ann, bob]
    assert ids("--payload", '{"to": "ann"}') == [ann]
    assert ids("--status", "scheduled") == [bob]
    assert ids("--status", "scheduled", "--status", "claimed") == [bob]
    assert ids("--key", "first") == [ann]
    assert ids("--priority", "9") == [eve]
    assert ids("--older-than", "1 hour") == []
    assert ids("--older-than", "0") == [eve, ann, bob]
    assert "and more" in cli.ok("task", "list", mails, "-n", "2")
    assert f"{mails} " in cli.ok("task", "list", f"{mails[:-1]}*", "-n", "1")
    assert cli.ok("task", "list", mails, "--attempts", "1") == "no such tasks\n"
    fail(conn, mails, error="no route\nto host")
    table = cli.ok("task", "list", "mails.failed")
    assert "no route" in table
    assert "to host" not in table


def test_a_task_is_shown_in_full(cli: Cli, conn: Connection, mails: str) -> None:
    task = pushed(cli, mails, '{"to": "ann"}', "--headers", '{"trace": 7}')
    fail(conn, mails, error="ValueError: bad\n\nTraceback:\n  line 1")
    said = cli.ok("task", "show", str(task))
    assert 'payload       {"to": "ann"}' in said
    assert "error         ValueError: bad\n" in said
    assert said.count("line 1") == 1
    (shown,) = cli.json_lines("task", "show", str(task))
    assert shown["headers"]["origin"] == mails
    assert "there is no task 99" in cli.fails("task", "show", "99")
    # Control characters do not reach the terminal.
    task = pushed(cli, mails, r'"\u001b[31mred"')
    fail(conn, mails, error="\x1b[31mred")
    for said in (cli.ok("task", "list"), cli.ok("task", "show", str(task))):
        assert "\x1b" not in said


# --- changes


def test_tasks_are_stopped_and_started_by_id_or_by_filter(
    cli: Cli, conn: Connection, mails: str
) -> None:
    one, two = (pushed(cli, mails, f'{{"n": {n}}}') for n in (1, 2))
    assert cli.ok("task", "stop", str(one), str(two)) == "stopped 2 tasks\n"
    assert "stopped" in cli.ok("task", "list")
    assert "status        stopped\n" in cli.ok("task", "show", str(one))
    assert ops.claim(conn, mails) == []
    dry = cli.ok("task", "start", "--queue", mails, "--payload", '{"n": 2}', "--dry-run")
    assert dry == "1 task would be started\n"
    assert ops.claim(conn, mails) == []
    cli.ok("task", "start", "--queue", mails, "--payload", '{"n": 2}', "--set-priority", "5")
    assert [task for task, _ in ops.claim(conn, mails)] == [two]
    cli.ok("task", "start", str(one), "--delay", "1 hour")
    assert ops.statuses(conn)[one] == "scheduled"


def test_tasks_move_and_are_removed(cli: Cli, conn: Connection, mails: str) -> None:
    one, two = (pushed(cli, mails, "1") for _ in range(2))
    cli.ok("task", "create", "slow")
    assert cli.ok("task", "move", "slow", str(one)) == "moved 1 task\n"
    assert (ops.task(conn, one) or {})["queue"] == "slow"
    remove = ("task", "remove", "--queue", mails, "--all")
    assert cli.ok(*remove, "--dry-run").startswith("1 task would")
    assert ops.task(conn, two)
    assert cli.ok(*remove) == "removed 1 task\n"
    assert ops.statuses(conn).keys() == {one}
    # What is claimed is left to its worker, unless one insists.
    cli.ok("task", "remove", str(one))
    one, two = (pushed(cli, mails, "1") for _ in range(2))
    ops.claim(conn, mails, claimant="worker 7")
    assert "is claimed by worker 7" in cli.fails("task", "remove", str(two), str(one))
    assert ops.statuses(conn).keys() == {one, two}
    assert cli.ok("task", "stop", "--queue", mails, "--all") == "stopped 1 task\n"
    assert cli.ok("task", "remove", str(one), "--claimed") == "removed 1 task\n"


def test_failed_tasks_are_seen_where_their_queue_is(cli: Cli, conn: Connection, mails: str) -> None:
    # There is no error queue yet.
    assert cli.ok("task", "list", mails, "--failed") == "no such tasks\n"
    assert cli.ok("task", "errors", mails) == "no task has failed\n"
    for queue in (mails, "mails.failed"):
        assert cli.ok("task", "retry", "--queue", queue, "--all") == "sent back 0 tasks\n"
    assert cli.ok("task", "remove", "--queue", "mails.failed", "--all") == "removed 0 tasks\n"
    assert "'nosuch' does not exist" in cli.fails("task", "retry", "--queue", "nosuch", "--all")
    for error in ("no user 17", "no user 4", "timeout\ntraceback"):
        ops.push(conn, mails)
        fail(conn, mails, error=error)
    conn.execute("select pgq_task.push('mails.failed', '1')")
    assert len(cli.json_lines("task", "list", mails, "--failed", "--attempts", "1")) == 3
    row = cli.ok("task", "list", mails, "--failed", "-n", "1").splitlines()[2].split()
    assert row[2:6] == [*row[2:4], "ago", "1"]
    (one,) = cli.json_lines("task", "list", mails, "--failed", "--error", "TIME")
    assert one["headers"]["origin"] == mails
    found = [(each["tasks"], each["error"]) for each in cli.json_lines("task", "errors", mails)]
    assert found == [(2, "no user N"), (1, "timeout")]
    assert len(cli.json_lines("task", "errors", "mails.failed")) == 3
    assert "name it" in cli.fails("task", "list", "--failed")
    assert "name it" in cli.fails("task", "list", "m*", "--failed")


def test_the_flow_of_a_task_is_shown_as_a_table_or_a_diagram(cli: Cli, conn: Connection) -> None:
    conn.execute("select pgq_task.create_queue('work')")
    steps: list[dict[str, object]] = [
        {"queue": "work", "name": "load"},
        {"queue": "work", "name": "merge", "after": [1]},
    ]
    number = str(Tasks(conn).push_flow(steps))
    assert "waiting" in cli.ok("task", "flow", number)
    assert [step["state"] for step in cli.json_lines("task", "flow", number)] == [
        "available",
        "waiting",
    ]
    assert cli.ok("task", "flow", number, "--mermaid").splitlines() == [
        "flowchart LR",
        '  1["load<br>available"]',
        '  2["merge<br>waiting"]',
        "  1 --> 2",
    ]
    assert "there is no flow 999" in cli.fails("task", "flow", "999")


def test_failed_tasks_go_back_to_where_they_failed(cli: Cli, conn: Connection, mails: str) -> None:
    one = pushed(cli, mails, "1")
    fail(conn, mails)
    for queue, name in ((mails, "mails.failed"), ("mails.failed", "dead"), ("dead", "dead")):
        command = ("task", "retry", "--queue", queue, "--error", "TIME")
        assert cli.ok(*command, "--dry-run") == "1 task would be sent back\n"
        assert cli.ok(*command) == "sent back 1 task\n"
        assert (ops.task(conn, one) or {})["queue"] == mails
        cli.ok("task", "config", mails, "error_queue", name)
        fail(conn, mails)
    cli.ok("task", "retry", str(one))
    mend = ("task", "retry", str(one), "--set-payload", '{"to": "ann"}')
    assert "came from no other queue" in cli.fails(*mend)
    assert (ops.task(conn, one) or {})["payload"] == 1
    fail(conn, mails)
    assert cli.ok(*mend) == "sent back 1 task\n"
    mended = ops.task(conn, one) or {}
    assert (mended["queue"], mended["payload"]) == (mails, {"to": "ann"})
    whole = ("task", "retry", "--queue", mails, "--all", "--set-payload", "1")
    assert "by ids" in cli.fails(*whole, exit_code=2)


def test_a_task_is_finished_by_hand(cli: Cli, conn: Connection, mails: str) -> None:
    cli.ok("task", "config", mails, "keep", "1 day")
    one = pushed(cli, mails, "1")
    assert cli.ok("task", "finish", str(one), "--result", '"by hand"') == "finished 1 task\n"
    (row,) = cli.json_lines("task", "history", mails)
    assert (row["id"], row["result"], row["outcome"]) == (one, "by hand", "finished")
    two = pushed(cli, mails, "2")
    ops.claim(conn, mails)
    assert "is claimed by w" in cli.fails("task", "finish", str(two))


def test_changes_that_cannot_be_made_change_nothing(cli: Cli, conn: Connection, mails: str) -> None:
    one = pushed(cli, mails, "1")
    for arguments in ("", "--all", "17 --all", "--queue mails", "17 --queue mails"):
        assert "Give ids" in cli.fails("task", "remove", *arguments.split(), exit_code=2)
    for arguments in (f"move --queue {mails} --all nowhere", f"replay {mails} --all --to nowhere"):
        assert "'nowhere' does not exist" in cli.fails("task", *arguments.split())
    assert "there is no task 99" in cli.fails("task", "stop", str(one), "99")
    assert ops.statuses(conn) == {one: "available"}


# --- history


def test_finished_tasks_are_listed_and_replayed(cli: Cli, mails: str) -> None:
    cli.ok("task", "config", mails, "keep", "1 day")
    tasks = [pushed(cli, mails, f'{{"n": {n}}}') for n in range(3)]
    cli.ok("task", "finish", *map(str, tasks))
    assert len(cli.json_lines("task", "history", mails)) == 3
    (row,) = cli.json_lines("task", "history", mails, "--payload", '{"n": 1}')
    assert row["id"] == tasks[1]
    assert cli.ok("task", "history", mails, "--before", "2020-01-01").startswith("task queue mails")
    said = cli.ok("task", "replay", mails, str(tasks[0]), "--dry-run")
    assert said == "1 task would be pushed\n"
    assert cli.ok("task", "list", mails) == "no tasks\n"
    cli.ok("task", "create", "again")
    said = cli.ok("task", "replay", mails, "--all", "--to", "again")
    assert said == "pushed 3 tasks into again\n"
    assert len(cli.json_lines("task", "list", "again")) == 3
    assert "or --all" in cli.fails("task", "replay", mails, exit_code=2)


# --- limits


def test_limits_are_set_one_by_one_and_shown_with_what_is_used(
    cli: Cli, conn: Connection, mails: str
) -> None:
    assert cli.ok("task", "limits").startswith("no task queue has limits")
    said = cli.ok("task", "limit", mails, "--running", "20", "--running-per-key", "3")
    assert said == "task queue mails: at most 20 at a time, 3 at a time per key\n"
    said = cli.ok("task", "limit", mails, "--rate", "1000", "--period", "1h")
    assert said == "task queue mails: at most 20 at a time, 3 at a time per key, 1,000 in 1 h\n"
    pushed(cli, mails, "1")
    ops.claim(conn, mails)
    (limits,) = cli.json("task", "limits", mails)
    assert limits == {
        "queue": mails,
        "max_running": 20,
        "max_running_per_key": 3,
        "rate": 1000,
        "rate_per_key": None,
        "rate_period": 3600.0,
        "running": 1,
        "recent": 1,
    }
    row = cli.ok("task", "limits").splitlines()[-1]
    assert row.split("  ")[0] == mails
    assert "1 of 20" in row
    assert "1 of 1,000 in 1 h" in row
    said = cli.ok("task", "limit", mails, "--running", "none", "--rate", "none")
    assert said == "task queue mails: at most 3 at a time per key\n"
    assert cli.ok("task", "limit", mails, "--off") == "task queue mails has no limits\n"
    assert cli.ok("task", "limits", mails).startswith("task queue mails has no limits")


def test_limits_that_make_no_sense_say_why(cli: Cli, mails: str) -> None:
    for arguments, exit_code, said in (
        ([mails], 2, "Say which limits"),
        ([mails, "--off", "--rate", "1"], 2, "Say which limits"),
        ([mails, "--rate", "0"], 2, "is no number of tasks"),
        ([mails, "--running", "many"], 2, "is no number of tasks"),
        ([mails, "--running", "1", "--period", "1h"], 2, "--period is for"),
        ([mails, "--rate", "1", "--period", "-1 hour"], 1, "a period of"),
        ([mails, "--running", "20000"], 1, "more than 10000"),
        (["nosuch", "--rate", "1"], 1, "pgqpy task create"),
    ):
        assert said in cli.fails("task", "limit", *arguments, exit_code=exit_code)


# --- schedules


@pytest.mark.usefixtures("mails")
def test_schedules_are_listed_run_paused_and_dropped(cli: Cli, conn: Connection) -> None:
    assert cli.ok("task", "periodic", "list").startswith("there are no schedules")
    conn.execute(
        "select pgq_task.set_periodic('clean up', 'mails', '30 2 * * *', 'Europe/Berlin', '7'),"
        "       pgq_task.set_periodic('odd', 'mails', 'nonsense', 'UTC', '7')"
    )
    before = datetime.now(UTC)
    clean_up, odd = cli.json("task", "periodic", "list")
    shown = [clean_up[name] for name in ("name", "cron", "payload")]
    assert shown == ["clean up", "30 2 * * *", 7]
    assert before < datetime.fromisoformat(clean_up["next"])
    assert odd["next"] is None
    assert cli.ok("task", "periodic", "pause", "clean up") == "paused clean up\n"
    assert "paused" in cli.ok("task", "periodic", "list")
    task = int(cli.ok("task", "periodic", "run", "clean up").rpartition(" ")[2])
    assert (ops.task(conn, task) or {})["payload"] == 7
    cli.ok("task", "periodic", "resume", "clean up")
    assert "paused" not in cli.ok("task", "periodic", "list")
    assert cli.ok("task", "periodic", "drop", "clean up") == "dropped clean up\n"
    for command in ("run", "pause", "resume", "drop"):
        assert "pgqpy task periodic list" in cli.fails("task", "periodic", command, "clean up")


# --- progress and cancellation


def attend(conn: Connection, task: int, *said: object) -> None:
    conn.execute(
        "select * from pgq_task.heartbeat('w', array[%s], array[%s], array[%s::float8],"
        " array[%s::float8], array[%s])",
        [task, task, *said],
    )


def test_how_far_tasks_are_is_shown(cli: Cli, conn: Connection, mails: str) -> None:
    assert "has reported" in cli.ok("task", "progress")
    one, two = pushed(cli, mails, "1"), pushed(cli, mails, "2")
    ops.claim(conn, mails, number=2)
    attend(conn, one, 40, 100, "pages\x1b[31m")
    attend(conn, two, 2.5, None, None)
    first, second = cli.ok("task", "progress", mails).splitlines()[2:]
    assert "40 of 100 (40 %)" in first
    assert "pages" in first
    assert "\x1b" not in first
    assert "2.50" in second
    assert [each["done"] for each in cli.json("task", "progress")] == [40, 2.5]
    assert "progress      40 of 100 (40 %) pages" in cli.ok("task", "show", str(one))


def test_progress_is_watched_until_it_is_interrupted(
    cli: Cli, conn: Connection, mails: str, spawn: Spawn
) -> None:
    task = pushed(cli, mails, "1")
    ops.claim(conn, mails, lease="1 hour")
    attend(conn, task, 1, 2, None)
    watching = spawn("task", "progress", "--watch", "--every", "0.1", "--json")
    assert watching.stdout is not None
    assert '"done": 1.0' in watching.stdout.readline()
    attend(conn, task, 2, 2, None)
    while '"done": 2.0' not in watching.stdout.readline():
        pass
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=PATIENCE)
    assert "Traceback" not in said


def test_tasks_are_cancelled_whichever_worker_has_them(
    cli: Cli, conn: Connection, mails: str
) -> None:
    ids = [pushed(cli, mails, f'{{"n": {n}}}') for n in range(4)]
    ops.claim(conn, mails)
    said = cli.ok("task", "cancel", str(ids[0]), str(ids[1]), "--reason", "too late", "--dry-run")
    assert said == "1 task would be deleted\n1 task would be cancelled by the worker\n"
    assert len(ops.statuses(conn)) == 4
    said = cli.ok("task", "cancel", str(ids[0]), str(ids[1]), "--reason", "too late")
    assert said.startswith("1 task deleted\n1 task will be cancelled by the worker")
    assert "too late" in cli.ok("task", "progress")
    assert "cancelled     too late" in cli.ok("task", "show", str(ids[0]))
    said = cli.ok("task", "cancel", "--queue", mails, "--payload", '{"n": 2}')
    assert said == "1 task deleted\n"
    assert ops.statuses(conn).keys() == {ids[0], ids[3]}
    assert "there is no task" in cli.fails("task", "cancel", str(ids[3]), str(ids[1]))
    assert ops.statuses(conn).keys() == {ids[0], ids[3]}
    assert "Give ids" in cli.fails("task", "cancel", exit_code=2)


def test_a_task_that_is_cancelled_without_a_reason_has_none_in_the_error_queue(
    cli: Cli, conn: Connection, mails: str
) -> None:
    pushed(cli, mails, "1")
    ((task, version),) = ops.claim(conn, mails)
    cli.ok("task", "cancel", str(task))
    conn.execute("select pgq_task.fail('w', %s, %s, 'timeout')", [task, version])
    (failed,) = cli.json_lines("task", "list", mails, "--failed")
    assert failed["error"] == "cancelled\n\ntimeout"


HANGS = """
import asyncio, signal, time
def hang(task):
    before = signal.getsignal(signal.SIGINT)
    print("begun", flush=True)
    while signal.getsignal(signal.SIGINT) is before:
        time.sleep(0.01)
    print("told", flush=True)
    time.sleep(3600)

async def deaf(task):
    print("begun", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.parametrize("concurrency", ["1", "2"])
def test_a_second_interrupt_ends_a_worker_whose_handlers_do_not(
    cli: Cli, spawn: Spawn, mails: str, tmp_path: Path, concurrency: str
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    pushed(cli, mails, "1")
    worker = spawn(
        "task", "work", f"{tmp_path / 'hangs.py'}:hang", mails, "--concurrency", concurrency
    )
    assert worker.stdout is not None
    for line in ("begun\n", "told\n"):
        assert worker.stdout.readline() == line
        worker.send_signal(signal.SIGINT)
    _, said = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 130
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["hang", "deaf"])
def test_a_worker_ends_after_its_stop_timeout(
    cli: Cli, conn: Connection, spawn: Spawn, mails: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    pushed(cli, mails, "1")
    worker = spawn("task", "work", f"{tmp_path / 'hangs.py'}:{name}", mails, "--stop-timeout", "0")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begun\n"
    worker.terminate()
    _, said = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0
    assert "is released while it runs" in said
    assert list(ops.statuses(conn).values()) == ["available"]


# --- grants


def test_queues_are_restricted_to_granted_roles(cli: Cli, conn: Connection, mails: str) -> None:
    assert cli.ok("task", "grants") == "no task queue is restricted\n"
    cli.ok("task", "restrict", mails)
    cli.ok("task", "grant", mails, "pgq_reader", "claim", "read")
    [granted] = cli.json("task", "grants", mails)
    assert granted == {"queue_name": mails, "restricted": True} | {
        "role": "pgq_reader",
        "actions": ["claim", "read"],
    }
    cli.ok("task", "revoke", mails, "pgq_reader", "claim")
    assert "read" in cli.ok("task", "grants")
    cli.ok("task", "restrict", mails, "--off")
    assert "unknown" in cli.fails("task", "grant", mails, "unknown", "read")


# --- workers

CODE = """
from pgqpy.tasks import TaskWorker
from pgqpy.tasks import TaskApp

app = TaskApp("jobs")

@app.task(transaction=True)
def add(one: int, two: int) -> int:
    return one + two

@app.task
async def other() -> None: ...

class Mailer(TaskWorker):
    queues = "mails"

    def process_task(self, conn, task):
        conn.execute("insert into sent values (%s)", [task.payload])

def send(task):
    open(task.payload, "w").close()

class Nothing:
    pass
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    file = tmp_path / "shop_tasks.py"
    file.write_text(CODE)
    return str(file)


def test_classes_functions_and_applications_work_on_their_queues(
    cli: Cli, conn: Connection, mails: str, code: str, tmp_path: Path
) -> None:
    conn.execute("create table sent (nr int)")
    pushed(cli, mails, "7")
    cli.ok("task", "work", f"{code}:Mailer", "--until-empty", "--batch-size", "1")
    assert conn.execute("select nr from sent").fetchall() == [(7,)]
    assert cli.ok("task", "list") == "no tasks\n"

    pushed(cli, mails, f'"{tmp_path}/sent"')
    assert "Name the queues" in cli.fails("task", "work", f"{code}:send", exit_code=2)
    cli.ok("task", "work", f"{code}:send", mails, "--until-empty")
    assert (tmp_path / "sent").exists()

    cli.ok("task", "create", "jobs", "--set", "keep=1 day")
    shop = runpy.run_path(code, run_name="shop_tasks")
    shop["add"].push(conn, 1, 2)
    cli.ok("task", "work", f"{code}:app", "--until-empty")
    (row,) = cli.json_lines("task", "history", "jobs")
    assert row["result"] == 3

    broken = tmp_path / "broken.py"
    for program, error in (
        ("raise RuntimeError('no settings')", "RuntimeError: no settings"),
        ("def send(:", "SyntaxError"),
    ):
        broken.write_text(program)
        said = cli.fails("task", "work", f"{broken}:app")
        assert error in said
        assert "defect" not in said
    for name in ("Nothing", "nosuch"):
        assert f"has no worker named {name}" in cli.fails("task", "work", f"{code}:{name}")
    assert "write it as" in cli.fails("task", "work", "shop")


def test_a_worker_goes_on_until_sigterm(
    cli: Cli, conn: Connection, mails: str, code: str, tmp_path: Path, spawn: Spawn
) -> None:
    worker = spawn("task", "work", f"{code}:send", mails, "--log-format", "text")
    for name in ("one", "two"):
        pushed(cli, mails, f'"{tmp_path}/{name}"')
        eventually(conn, "select pgq_task.queue_is_empty(array['mails'])")
        assert (tmp_path / name).exists()
    worker.terminate()
    _, said = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0
    assert "stopped" in said
    assert "Traceback" not in said
