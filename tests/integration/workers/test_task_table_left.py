"""Rows that a worker left in an attempt which came to no end."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

import psycopg
import pytest

import pgqpy
from pgqpy.retry import FixedDelay
from pgqpy.tasks import TableWorker
from tests.fixtures import task_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_mail_table import Row, insert, last_error, send, sent, states, work

HOUR = FixedDelay(3600, attempts=3)
Leave = Callable[[list[int]], None]


@pytest.fixture
def mail(mail: Connection) -> Connection:
    insert(mail, 1, 2, 3, 4, 5)
    return mail


DONE = dict.fromkeys(range(1, 6), ("succeeded", False, 1))


@pytest.fixture
def leave(connect: Connect) -> Leave:
    """``leave([1, 2])``: rows like those of a worker whose process is killed."""

    def leave_rows(ids: list[int]) -> None:
        lost = connect(autocommit=False)
        lost.execute("select from mail where id = any (%s) for no key update", [ids])
        ops.hang_up(lost, connect())

    return leave_rows


@pytest.mark.smoke
def test_the_attempt_counts_before_the_next(dsn: str, mail: Connection, leave: Leave) -> None:
    leave([1, 2])
    meanwhile = []
    own = []

    def look(conn: pgqpy.Connection, row: Row) -> None:
        send(conn, row)
        own.append(conn.execute("select status, attempts from mail where id < 3").fetchall())
        if row["id"] < 3:
            assert (row["status"], row["attempts"], row["last_error"]) == ("new", 0, None)
            meanwhile.append((states(mail)[row["id"]], last_error(mail, row["id"])[:8]))

    work(dsn, look, batch_size=10, retry_policy=HOUR)
    assert sent(mail) == [1, 2, 3, 4, 5]
    assert own[0] == [("new", 0)] * 2
    assert meanwhile == [(("failed", True, 1), "RowLost:")] * 2
    assert states(mail) == DONE
    assert mail.execute("select distinct last_error from mail").fetchall() == [(None,)]


def test_a_row_left_too_often_is_given_up(dsn: str, mail: Connection, leave: Leave) -> None:
    mail.execute("delete from mail where id > 1")
    mail.execute("update mail set attempts = 2, status = 'failed', last_error = 'before'")
    leave([1])
    found = []

    def look(conn: pgqpy.Connection, row: Row) -> None:
        found.append((states(mail), last_error(mail, 1)[:7], row["last_error"]))
        raise RuntimeError("no luck")

    work(dsn, look, retry_policy=HOUR)
    assert found[0] == ({1: ("failed", False, 3)}, "RowLost", "before")
    assert states(mail) == {1: ("failed", False, 3)}
    assert "no luck" in last_error(mail, 1)


def test_an_outage_does_not_count(dsn: str, mail: Connection, leave: Leave) -> None:
    leave([1, 2, 3, 4, 5])
    failures = iter([psycopg.OperationalError("away"), OSError("away"), None, OSError("away")])

    class Sender(TableWorker):
        table = "mail"
        batch_size = 3
        outages = (OSError,)
        backoff_first = 0.01
        retry_policy = HOUR

        def process_row(self, conn: pgqpy.Connection, row: Row) -> None:
            send(conn, row)
            if error := next(failures, None):
                raise error
            if row["id"] == 5:
                self.stop()

    Sender(dsn).run()
    assert sent(mail) == [1, 2, 3, 4, 5]
    assert states(mail) == DONE


def test_a_stop_leaves_rows_as_they_were(dsn: str, mail: Connection, leave: Leave) -> None:
    leave([1, 2, 3, 4, 5])
    others = "select status, attempts, next_attempt, last_error from mail where id > 1 order by id"
    before = mail.execute(others).fetchall()

    def stops(conn: pgqpy.Connection, row: Row) -> None:
        send(conn, row)
        worker.stop()

    worker = TableWorker(dsn, "mail", stops, batch_size=5, retry_policy=HOUR)
    worker.run()
    assert sent(mail) == [1]
    assert mail.execute(others).fetchall() == before


@pytest.mark.parametrize("changed", [False, True])
def test_a_worker_that_stops_in_an_outage_leaves_the_row_as_it_was_or_was_changed(
    dsn: str, mail: Connection, leave: Leave, changed: bool
) -> None:
    leave([1])

    class Sender(TableWorker):
        table = "mail"
        retry_policy = HOUR
        backoff_first = 0.01

        def process_row(self, conn: pgqpy.Connection, row: Row) -> None:
            raise psycopg.OperationalError

        def on_error(self, error: Exception) -> None:
            assert states(mail)[1] == ("failed", True, 1)
            if changed:
                mail.execute("update mail set next_attempt = null, attempts = 7 where id = 1")
            self.stop()

    Sender(dsn).run()
    assert states(mail)[1] == (("failed", False, 7) if changed else ("new", True, 0))


def test_once_works_also_on_what_was_left(dsn: str, mail: Connection, leave: Leave) -> None:
    leave([1, 2])
    worker = TableWorker(dsn, "mail", send, batch_size=2)
    assert worker.run_once()
    assert sent(mail) == [1]
    assert worker.run_once()
    assert worker.run_once()
    assert sent(mail) == [1, 2, 3]


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
    assert count_transactions(dsn, mail) == (1, 0)


def test_a_lock_rolled_back_is_a_trace(dsn: str, mail: Connection, connect: Connect) -> None:
    lost = connect(autocommit=False)
    lost.execute("select from mail for no key update")
    # For two lockers of one row PostgreSQL notes the id of a multixact.
    lost.execute("savepoint s; update mail set address = 'x'; release s")
    lost.rollback()
    assert count_transactions(dsn, mail) == (0, 5)


def count_transactions(dsn: str, conn: Connection) -> tuple[int, int]:
    """The number of batches with all five rows, and of batches with one row."""
    sizes = []

    class Sender(TableWorker):
        table = "mail"
        batch_size = 5

        def process_batch(self, conn: pgqpy.Connection, rows: list[Row]) -> None:
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
    work(dsn, send, batch_size=5, retry_policy=HOUR)
    assert sorted(sent(mail)) == [1, 2, 4, 5]
    assert states(mail)[3] == ("failed", True, 1)
    assert "not 3" in last_error(mail, 3)


def test_a_table_that_refuses_every_outcome_ends_the_worker(dsn: str, mail: Connection) -> None:
    mail.execute("alter table mail add check (status = 'new')")
    with pytest.raises(pgqpy.PgqError, match="check constraint"):
        work(dsn, send, retry_policy=HOUR)
    assert sent(mail) == []


def test_lanes_together_lose_nothing(dsn: str, mail: Connection, leave: Leave) -> None:
    insert(mail, *range(6, 201))
    leave([*range(1, 201, 3)])
    worker = TableWorker(dsn, "mail", send, batch_size=7, concurrency=4)
    worker.run(until_empty=True)
    assert sorted(sent(mail)) == [*range(1, 201)]
    assert set(states(mail).values()) == {("succeeded", False, 1)}


def test_one_lane_works_on_what_was_left(dsn: str, mail: Connection, leave: Leave) -> None:
    """If it kills the process the attempt counts for that row alone."""
    leave([1, 2, 3, 4, 5])
    in_advance = []

    def look(conn: pgqpy.Connection, row: Row) -> None:
        in_advance.append([each for each, state in states(mail).items() if state[0] == "failed"])
        sleep(0.1)
        send(conn, row)

    work(dsn, look, concurrency=4, retry_policy=HOUR)
    assert sorted(in_advance) == [[1], [2], [3], [4], [5]]
    assert sorted(sent(mail)) == [1, 2, 3, 4, 5]
