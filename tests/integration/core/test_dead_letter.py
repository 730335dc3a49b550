"""Dead letters: written with their batch, listed, replayed to one consumer, purged."""

from __future__ import annotations

import json

import psycopg
import pytest

from pgqpy import Admin, DeadLetterFilter, DeadLetters, PgqError, Producer, errors
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import AsRole, Connect, Connection

CONSUMER, OTHER = "consumer", "other"


@pytest.fixture(autouse=True)
def registered(conn: Connection, queue: str) -> None:
    for name in (CONSUMER, OTHER):
        ops.register(conn, queue, name)


GIVE_UP = "select pgq.event_dead_letter(%s, %s, 'bad')"
NEXT_BATCH = "select pgq_coop.next_batch(%s, 'group', %s)"


def give_up(conn: Connection, queue: str, *data: str, consumer: str = CONSUMER) -> list[int]:
    """Insert events, and let the consumer give up all it gets; their ids."""
    Producer(queue).insert_events(conn, [("t", each) for each in data])
    ops.tick(conn, queue)
    ids: list[int] = []
    while (batch := ops.value(conn, "select pgq.next_batch(%s, %s)", queue, consumer)) is not None:
        rows = ops.events(conn, batch)
        ids += [row[0] for row in rows]
        conn.execute(
            "select pgq.event_dead_letter_many(%s, %s, %s)",
            [batch, [row[0] for row in rows], [f"reason {row[5]}" for row in rows]],
        )
        ops.finish(conn, batch)
    return ids


def retried(conn: Connection, queue: str, consumer: str) -> list[tuple[int, str, int]]:
    """Ids, payloads and counts of what comes again to a consumer."""
    conn.execute("select pgq.maint_retry_events()")
    ops.tick(conn, queue)
    found = []
    while (batch := ops.value(conn, "select pgq.next_batch(%s, %s)", queue, consumer)) is not None:
        found += [(row[0], row[5], row[3]) for row in ops.events(conn, batch)]
        ops.finish(conn, batch)
    return found


@pytest.fixture
def letters(conn: Connection) -> DeadLetters:
    return DeadLetters(conn)


ALL = DeadLetterFilter()


def left(conn: Connection) -> list[str]:
    return [data for (data,) in conn.execute("select ev_data from pgq.dead_letter order by dl_id")]


def test_dead_letters_are_rolled_back_with_their_batch(conn: Connection, queue: str) -> None:
    ops.insert_ticked(conn, queue, "a")
    with conn.transaction(force_rollback=True):
        batch = ops.next_batch(conn, queue, CONSUMER)
        conn.execute(GIVE_UP, [batch, ops.events(conn, batch)[0][0]])
        ops.finish(conn, batch)
    assert left(conn) == []
    assert ops.drain(conn, queue, CONSUMER) == ["a"]


def test_a_dead_letter_is_its_consumers_and_comes_once_more_when_it_is_replayed(
    conn: Connection, queue: str, letters: DeadLetters
) -> None:
    first, _ = give_up(conn, queue, "a", "b")
    assert left(conn) == ["a", "b"]
    assert ops.drain(conn, queue, OTHER) == ["a", "b"]
    assert letters.replay(DeadLetterFilter(reason="REASON A")) == 1
    assert left(conn) == ["b"]
    assert retried(conn, queue, OTHER) == []
    assert retried(conn, queue, CONSUMER) == [(first, "a", 0)]
    assert retried(conn, queue, CONSUMER) == []


def test_one_comes_again_with_another_payload(
    conn: Connection, queue: str, letters: DeadLetters
) -> None:
    first, second = give_up(conn, queue, "a", "b")
    one, two = (letter.id for letter in letters.find(ALL)[::-1])
    with pytest.raises(errors.InvalidParameter, match="one payload for 2 dead letters"):
        letters.replay(ALL, data="x")
    assert letters.replay(DeadLetterFilter(ids=[one]), data="x") == 1
    assert letters.replay(DeadLetterFilter(ids=[one]), data="x") == 0
    assert retried(conn, queue, CONSUMER) == [(first, "x", 0)]
    # Not if it waits as it was: that would be lost.
    tick = ops.value(conn, "select min(tick_id) from pgq.tick")
    Admin(conn).register_consumer_at(queue, CONSUMER, tick)
    batch = ops.next_batch(conn, queue, CONSUMER)
    conn.execute("select pgq.event_retry(%s, %s, 0)", [batch, second])
    ops.finish(conn, batch)
    with pytest.raises(errors.InvalidParameter, match="waits for a retry already"):
        letters.replay(DeadLetterFilter(ids=[two]), data="x")
    assert left(conn) == ["b"]


def test_all_come_again_with_their_payloads_changed(
    conn: Connection, queue: str, letters: DeadLetters
) -> None:
    give_up(conn, queue, '{"a": 1, "b": {"c": 2, "d": 3}, "e": 4}', '{"b": 5}', "[6]")
    assert letters.replay(ALL, patch={"b": {"c": None, "f": 7}, "e": None, "g": None}) == 3
    found = [json.loads(data) for _, data, _ in retried(conn, queue, CONSUMER)]
    assert found == [{"a": 1, "b": {"d": 3, "f": 7}}, {"b": {"f": 7}}, {"b": {"f": 7}}]


def test_a_change_that_is_impossible_replays_nothing(
    conn: Connection, queue: str, letters: DeadLetters
) -> None:
    give_up(conn, queue, "{}", "no JSON")
    for patch, problem in (("[1]", "a patch is a JSON object"), ({"a": 1}, "2 is not JSON")):
        with pytest.raises(errors.InvalidParameter, match=problem):
            letters.replay(ALL, patch=patch)
    with pytest.raises(ValueError, match="or a patch"):
        letters.replay(ALL, data="x", patch={})
    assert left(conn) == ["{}", "no JSON"]


@pytest.mark.parametrize("waits", [False, True])
def test_two_dead_letters_of_an_event_or_one_of_an_event_that_waits_make_it_come_once(
    conn: Connection, queue: str, letters: DeadLetters, waits: bool
) -> None:
    tick = ops.value(conn, "select max(tick_id) from pgq.tick")
    (first,) = give_up(conn, queue, "a")
    Admin(conn).register_consumer_at(queue, CONSUMER, tick)
    if waits:
        batch = ops.next_batch(conn, queue, CONSUMER)
        conn.execute("select pgq.event_retry(%s, %s, 0)", [batch, first])
        ops.finish(conn, batch)
    else:
        give_up(conn, queue)
    assert left(conn) == ["a"] * (1 if waits else 2)
    letters.replay(ALL)
    assert left(conn) == []
    assert [(event, data) for event, data, _ in retried(conn, queue, CONSUMER)] == [(first, "a")]


def test_of_two_replays_at_once_one_has_the_event(
    conn: Connection, connect: Connect, queue: str, letters: DeadLetters
) -> None:
    give_up(conn, queue, "a")
    (letter,) = letters.find(ALL)
    second = connect()
    with conn.transaction():
        assert letters.replay(DeadLetterFilter(ids=[letter.id])) == 1
        second.execute("set lock_timeout = '10ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            second.execute("select pgq.replay_dead_letters(%s)", [[letter.id]])
    assert DeadLetters(second).replay(DeadLetterFilter(ids=[letter.id])) == 0
    assert len(retried(conn, queue, CONSUMER)) == 1


def test_dead_letters_outlive_their_consumer_and_wait_for_it(
    conn: Connection, queue: str, letters: DeadLetters
) -> None:
    (first,) = give_up(conn, queue, "a")
    Admin(conn).unregister_consumer(queue, CONSUMER)
    with pytest.raises(errors.ConsumerNotRegistered) as info:
        letters.replay(ALL)
    assert info.value.hint
    assert left(conn) == ["a"]
    ops.register(conn, queue, CONSUMER)
    assert letters.replay(ALL) == 1
    assert retried(conn, queue, CONSUMER) == [(first, "a", 0)]


def test_the_dead_letter_of_a_worker_is_its_groups_and_replayed_to_any_worker(
    conn: Connection, queue: str, letters: DeadLetters
) -> None:
    for name in ("first", "second"):
        conn.execute("select pgq_coop.register_subconsumer(%s, 'group', %s)", [queue, name])
    ops.insert_ticked(conn, queue, "a")
    batch = ops.value(conn, NEXT_BATCH, queue, "first")
    conn.execute(GIVE_UP, [batch, 1])
    conn.execute("select pgq_coop.finish_batch(%s)", [batch])
    conn.execute("select pgq_coop.unregister_subconsumer(%s, 'group', 'first', 0)", [queue])
    (letter,) = letters.find(ALL)
    assert letter.consumer == "group"
    assert letters.replay(DeadLetterFilter(consumer="group")) == 1
    conn.execute("select pgq.maint_retry_events()")
    ops.tick(conn, queue)
    assert ops.payloads(conn, ops.value(conn, NEXT_BATCH, queue, "second")) == ["a"]


def test_a_queue_is_not_dropped_with_dead_letters_unless_forced_and_made_anew_it_has_none(
    conn: Connection, queue: str
) -> None:
    give_up(conn, queue, "a")
    Admin(conn).create_queue("another")
    ops.register(conn, "another", CONSUMER)
    give_up(conn, "another", "b")
    for name in (CONSUMER, OTHER):
        Admin(conn).unregister_consumer(queue, name)
    with pytest.raises(errors.QueueInUse, match="1 dead letter"):
        Admin(conn).drop_queue(queue)
    Admin(conn).drop_queue(queue, force=True)
    Admin(conn).create_queue(queue)
    assert left(conn) == ["b"]


FILTERS = [
    (ALL, ["a", "b", "c"]),
    (DeadLetterFilter(queue="another"), ["c"]),
    (DeadLetterFilter(queue="another", consumer=OTHER), []),
    (DeadLetterFilter(consumer=OTHER), ["b"]),
    (DeadLetterFilter(event_type="none"), []),
    (DeadLetterFilter(event_type="t"), ["a", "b", "c"]),
    (DeadLetterFilter(reason="son A"), ["a"]),
    (DeadLetterFilter(reason="%"), []),
    (DeadLetterFilter(ids=[]), []),
    (DeadLetterFilter(older_than="1 day"), ["a"]),
]


def test_a_filter_says_which(
    conn: Connection, queue: str, letters: DeadLetters, subtests: pytest.Subtests
) -> None:
    Admin(conn).create_queue("another")
    ops.register(conn, "another", CONSUMER)
    give_up(conn, queue, "a")
    conn.execute("update pgq.dead_letter set dl_time = now() - interval '25 hours'")
    give_up(conn, "another", "c")
    ops.drain(conn, queue, OTHER)
    give_up(conn, queue, "b", consumer=OTHER)
    for which, expected in FILTERS:
        with subtests.test(repr(which)), conn.transaction(force_rollback=True):
            assert sorted(str(each.event.data) for each in letters.find(which)) == expected
            assert letters.count(which) == len(expected)
            assert letters.purge(which) == len(expected)
            assert sorted(left(conn)) == sorted({"a", "b", "c"} - set(expected))


NONSENSE = [
    ("0, array[{id}], array['r']", "PQ004"),
    ("null, array[{id}], array['r']", "PQ004"),
    ("{batch}, array[{id}, 0], array['r', 'r']", "PQ005"),
    ("{batch}, array[{id}, null], array['r', 'r']", "PQ005"),
    ("{batch}, null, null", "PQ005"),
    ("{batch}, array[{id}], array[null]", "PQ011"),
    ("{batch}, array[{id}], array['r', 's']", "PQ011"),
    ("{batch}, array[{id}], null", "PQ011"),
    ("{batch}, array[{id}], array['r'], array['t', 'u']", "PQ011"),
]


def test_what_makes_no_sense_is_refused(
    conn: Connection, queue: str, subtests: pytest.Subtests
) -> None:
    batch = ops.open_batch(conn, queue, CONSUMER, "a")
    event = ops.events(conn, batch)[0][0]
    for arguments, sqlstate in NONSENSE:
        call = f"pgq.event_dead_letter_many({arguments.format(batch=batch, id=event)})"
        with subtests.test(arguments), ops.refused(sqlstate):
            conn.execute(f"select {call}".encode())
    assert left(conn) == []


def test_readers_see_dead_letters_and_make_them_and_only_administrators_replay_and_purge(
    conn: Connection, queue: str, as_role: AsRole
) -> None:
    give_up(conn, queue, "a")
    reader, writer, admin = (as_role(name) for name in ("pgq_reader", "pgq_writer", "pgq_admin"))
    assert DeadLetters(reader).count(ALL) == 1
    for user in (reader, writer):
        for change in (DeadLetters(user).replay, DeadLetters(user).purge):
            with pytest.raises(errors.PermissionDenied):
                change(ALL)
    with pytest.raises(errors.PermissionDenied):
        DeadLetters(writer).find(ALL)
    for statement in ("delete from pgq.dead_letter", "update pgq.dead_letter set dl_batch = 0"):
        for user in (reader, writer, admin):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                user.execute(statement.encode())
    ops.drain(conn, queue, OTHER)
    give_up(conn, queue, "b")
    assert DeadLetters(admin).replay(DeadLetterFilter(reason="reason a")) == 1
    assert DeadLetters(admin).purge(ALL) == 1


# --- the command line


@pytest.mark.any_pg
def test_commands_list_show_replay_and_purge(cli: Cli, conn: Connection, queue: str) -> None:
    assert cli.ok("dead-letter", "list") == "no dead letters\n"
    give_up(conn, queue, "a", "b\x1b[1m", "c", "d")
    shown = cli.ok("dead-letter", "list", "-n", "3")
    assert "reason b\\x1b[1m" in shown
    assert "reason a" not in shown
    assert shown.endswith("and 1 more\n")
    assert shown.split("\n")[0].split() == ["Id", "Age", "Queue", "Consumer", "Attempts", "Reason"]
    rows = cli.json_lines("dead-letter", "list", "--queue", queue, "--consumer", CONSUMER)
    assert [(row["id"], row["reason"], row["event"]["data"]) for row in rows][2:] == [
        (2, "reason b\x1b[1m", "b\x1b[1m"),
        (1, "reason a", "a"),
    ]
    assert "reason       reason a" in cli.ok("dead-letter", "show", "1")
    cli.fails("dead-letter", "replay", "1", "--patch", "{}", "--data", "x", exit_code=2)
    assert cli.ok("dead-letter", "replay", "1") == "replayed 1 event\n"
    assert cli.ok("dead-letter", "purge", "--reason", "reason b") == "purged 1 dead letter\n"
    assert left(conn) == ["c", "d"]
    assert cli.ok("dead-letter", "purge", "--all") == "purged 2 dead letters\n"
    assert len(retried(conn, queue, CONSUMER)) == 1


@pytest.mark.any_pg
def test_a_shown_event_can_be_inserted_anew(cli: Cli, conn: Connection, queue: str) -> None:
    give_up(conn, queue, "a")
    ops.drain(conn, queue, OTHER)
    (row,) = cli.json_lines("dead-letter", "show", "1")
    cli.ok("event", "insert", queue, "--file", "-", stdin=json.dumps(row["event"]))
    ops.tick(conn, queue)
    assert ops.drain(conn, queue, OTHER) == ["a"]


@pytest.mark.any_pg
def test_commands_that_change_want_to_be_told_which(cli: Cli, conn: Connection, queue: str) -> None:
    give_up(conn, queue, "a", "b")
    for command in ("replay", "purge"):
        for which in ([], ["1", "--all"], ["1", "--queue", queue]):
            cli.fails("dead-letter", command, *which, exit_code=2)
        assert "no dead letter 3" in cli.fails("dead-letter", command, "1", "3")
        assert "interval" in cli.fails("dead-letter", command, "--older-than", "soon")
    for command in ("replay", "purge", "list"):
        said = cli.fails("dead-letter", command, "--queue", "x")
        assert "queue 'x' does not exist" in said
        assert "`pgqpy queue list`" in said
    assert left(conn) == ["a", "b"]


def test_a_filter_with_a_text_that_cannot_be_is_refused(conn: Connection) -> None:
    with pytest.raises(PgqError, match="NUL"):
        DeadLetters(conn).find(DeadLetterFilter(reason="\0"))


def test_dead_letters_are_not_chosen_by_a_list(conn: Connection) -> None:
    with pytest.raises(TypeError, match=r"by a DeadLetterFilter, not \[1\]"):
        DeadLetters(conn).purge([1])  # type: ignore[arg-type]
