"""Rows that a worker left in an attempt which came to no end."""

from __future__ import annotations

from time import sleep
from typing import Any

import psycopg
import pytest

import pgqpy
from pgqpy.retry import FixedDelay
from pgqpy.tasks import TableWorker
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_db import Connect, Connection

HOUR = FixedDelay(3600, attempts=3)


@pytest.fixture
def mail(conn: Connection) -> Connection:
    conn.execute("create table mail (id int primary key, address text)")
    conn.execute("create table sent (id int)")
    conn.execute("select pgq_task.add_columns('mail')")
    conn.execute("insert into mail select n from generate_series(1, 5) n")
    return conn


def leave(connect: Connect, ids: list[int]) -> None:
    """Leave rows like a worker whose process is killed."""
    lost = connect(autocommit=False)
    lost.execute("select from mail where id = any (%s) for no key update", [ids])
    ops.hang_up(lost, connect())


def states(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute(
        "select id, status, next_attempt is not null, attempts, last_error from mail order by id"
    ).fetchall()


def sent(conn: Connection) -> list[int]:
    return [each for (each,) in conn.execute("select id from sent order by ctid")]


def send(conn: pgqpy.Connection, row: dict[str, Any]) -> Any:
    conn.execute("insert into sent (id) values (%s)", [row["id"]])


@pytest.mark.smoke
def test_the_attempt_counts_before_a_row_that_was_left_is_tried_again(
    dsn: str, mail: Connection, connect: Connect
) -> None:
    leave(connect, [1, 2])
    meanwhile = []
    own = []

    def look(conn: pgqpy.Connection, row: dict[str, Any]) -> None:
        send(conn, row)
        own.append(conn.execute("select status, attempts from mail where id < 3").fetchall())
        if row["id"] < 3:
            assert (row["status"], row["attempts"], row["last_error"]) == ("new", 0, None)
            meanwhile.append(states(mail)[row["id"] - 1])

    TableWorker(dsn, "mail", look, batch_size=10, retry_policy=HOUR).run(until_empty=True)
    assert sent(mail) == [1, 2, 3, 4, 5]
    assert own[0] == [("new", 0)] * 2
    for number, state in zip((1, 2), meanwhile, strict=True):
        assert state[:4] == (number, "failed", True, 1)
        assert state[4].startswith("RowLost: ")
    assert states(mail) == [(number, "succeeded", False, 1, None) for number in range(1, 6)]


def test_a_row_that_was_left_too_often_is_given_up(
    dsn: str, mail: Connection, connect: Connect
) -> None:
    mail.execute("delete from mail where id > 1")
    mail.execute("update mail set attempts = 2, status = 'failed', last_error = 'before'")
    leave(connect, [1])
    found = []

    def look(conn: pgqpy.Connection, row: dict[str, Any]) -> None:
        found.append((states(mail), row["last_error"]))
        raise RuntimeError("no luck")

    TableWorker(dsn, "mail", look, retry_policy=HOUR).run(until_empty=True)
    (((_, status, waits, attempts, error),), before) = found[0]
    assert (status, waits, attempts, before) == ("failed", False, 3, "before")
    assert error.startswith("RowLost")
    assert states(mail)[0][:4] == (1, "failed", False, 3)
    assert "no luck" in states(mail)[0][4]


def test_an_outage_does_not_count_for_a_row_that_was_left(
    dsn: str, mail: Connection, connect: Connect
) -> None:
    leave(connect, [1, 2, 3, 4, 5])
    failures = iter([psycopg.OperationalError("away"), OSError("away"), None, OSError("away")])

    class Sender(TableWorker):
        table = "mail"
        batch_size = 3
        outages = (OSError,)
        backoff_first = 0.01
        retry_policy = HOUR

        def process_row(self, conn: pgqpy.Connection, row: dict[str, Any]) -> None:
            send(conn, row)
            if error := next(failures, None):
                raise error
            if row["id"] == 5:
                self.stop()

    Sender(dsn).run()
    assert sent(mail) == [1, 2, 3, 4, 5]
    assert states(mail) == [(number, "succeeded", False, 1, None) for number in range(1, 6)]


def test_a_worker_that_stops_leaves_rows_as_they_were(
    dsn: str, mail: Connection, connect: Connect
) -> None:
    leave(connect, [1, 2, 3, 4, 5])
    before = mail.execute("select id, next_attempt from mail where id > 1 order by id").fetchall()
    worker: TableWorker

    def stops(conn: pgqpy.Connection, row: dict[str, Any]) -> None:
        send(conn, row)
        worker.stop()

    worker = TableWorker(dsn, "mail", stops, batch_size=5, retry_policy=HOUR)
    worker.run()
    assert sent(mail) == [1]
    assert states(mail)[1:] == [(number, "new", True, 0, None) for number in range(2, 6)]
    assert (
        mail.execute("select id, next_attempt from mail where id > 1 order by id").fetchall()
        == before
    )


def test_a_worker_that_stops_in_an_outage_leaves_the_row_as_it_was(
    dsn: str, mail: Connection, connect: Connect
) -> None:
    leave(connect, [1])

    class Sender(TableWorker):
        table = "mail"
        retry_policy = HOUR
        backoff_first = 0.01

        def process_row(self, conn: pgqpy.Connection, row: dict[str, Any]) -> None:
            raise psycopg.OperationalError

        def on_error(self, error: Exception) -> None:
            assert states(mail)[0][:4] == (1, "failed", True, 1)
            self.stop()

    Sender(dsn).run()
    assert states(mail)[0] == (1, "new", True, 0, None)


def test_once_works_also_on_what_was_left(dsn: str, mail: Connection, connect: Connect) -> None:
    leave(connect, [1, 2])
    worker = TableWorker(dsn, "mail", send, batch_size=2)
    assert worker.run_once()
    assert sent(mail) == [1]
    assert worker.run_once()
    assert worker.run_once()
    assert sent(mail) == [1, 2, 3]


def test_what_the_application_changes_meanwhile_stays(
    dsn: str, mail: Connection, connect: Connect
) -> None:
    leave(connect, [1])

    class Sender(TableWorker):
        table = "mail"
        retry_policy = HOUR
        backoff_first = 0.01

        def process_row(self, conn: pgqpy.Connection, row: dict[str, Any]) -> None:
            raise psycopg.OperationalError

        def on_error(self, error: Exception) -> None:
            mail.execute("update mail set next_attempt = null, attempts = 7 where id = 1")
            self.stop()

    Sender(dsn).run()
    assert states(mail)[0][:4] == (1, "failed", False, 7)


@pytest.mark.parametrize("way", ["locked", "referenced", "savepoint"])
def test_a_lock_that_was_committed_is_no_trace(
    dsn: str, mail: Connection, connect: Connect, way: str
) -> None:
    mail.execute("create table line (mail_id int references mail)")
    other = connect(autocommit=False)
    if way == "locked":
        other.execute("select from mail for update")
    elif way == "referenced":
        other.execute("insert into line select id from mail")
    else:
        other.execute("savepoint s; insert into line select id from mail; release s")
    other.commit()
    worked = count_transactions(dsn, mail)
    assert worked == (1, 0)


def test_a_lock_that_was_rolled_back_is_a_trace(
    dsn: str, mail: Connection, connect: Connect
) -> None:
    lost = connect(autocommit=False)
    lost.execute("select from mail for no key update")
    # For two lockers of one row PostgreSQL notes the id of a multixact.
    lost.execute("savepoint s; update mail set address = 'x'; release s")
    lost.rollback()
    worked = count_transactions(dsn, mail)
    assert worked == (0, 5)


def count_transactions(dsn: str, conn: Connection) -> tuple[int, int]:
    """The number of batches with all five rows, and of batches with one row."""
    sizes = []

    class Sender(TableWorker):
        table = "mail"
        batch_size = 5

        def process_batch(self, conn: pgqpy.Connection, rows: list[dict[str, Any]]) -> None:
            sizes.append(len(rows))

    Sender(dsn).run(until_empty=True)
    assert sum(sizes) == 5
    return sizes.count(5), sizes.count(1)


def test_a_row_that_is_only_refused_at_the_commit_fails_alone(dsn: str, mail: Connection) -> None:
    mail.execute("alter table sent add unique (id)")
    mail.execute(
        "create function late() returns trigger language plpgsql as $$ begin if"
        " new.status = 'succeeded' and new.id = 3 then raise 'not 3'; end if; return null; end $$"
    )
    mail.execute(
        "create constraint trigger late after update on mail deferrable initially deferred"
        " for each row execute function late()"
    )
    TableWorker(dsn, "mail", send, batch_size=5, retry_policy=HOUR).run(until_empty=True)
    assert sorted(sent(mail)) == [1, 2, 4, 5]
    assert states(mail)[2][:4] == (3, "failed", True, 1)
    assert "not 3" in states(mail)[2][4]


def test_a_table_that_refuses_every_outcome_ends_the_worker(dsn: str, mail: Connection) -> None:
    mail.execute("alter table mail add check (status = 'new')")
    with pytest.raises(pgqpy.PgqError, match="check constraint"):
        TableWorker(dsn, "mail", send, retry_policy=HOUR).run(until_empty=True)
    assert sent(mail) == []


def test_lanes_together_lose_nothing_of_what_was_left(
    dsn: str, mail: Connection, connect: Connect
) -> None:
    mail.execute("insert into mail select n from generate_series(6, 200) n")
    leave(connect, [*range(1, 201, 3)])
    worker = TableWorker(dsn, "mail", send, batch_size=7, concurrency=4)
    worker.run(until_empty=True)
    assert sorted(sent(mail)) == [*range(1, 201)]
    assert {state[1:] for state in states(mail)} == {("succeeded", False, 1, None)}


def test_one_lane_at_a_time_works_on_what_was_left(
    dsn: str, mail: Connection, connect: Connect
) -> None:
    """If it kills the process the attempt counts for that row alone."""
    leave(connect, [1, 2, 3, 4, 5])
    in_advance = []

    def look(conn: pgqpy.Connection, row: dict[str, Any]) -> None:
        in_advance.append([state[0] for state in states(mail) if state[1] == "failed"])
        sleep(0.1)
        send(conn, row)

    TableWorker(dsn, "mail", look, concurrency=4, retry_policy=HOUR).run(until_empty=True)
    assert sorted(in_advance) == [[1], [2], [3], [4], [5]]
    assert sorted(sent(mail)) == [1, 2, 3, 4, 5]
