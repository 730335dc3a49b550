"""queue_mover and queue_splitter: a queue's events in queues of another database, once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

import pgqpy
from pgqpy import Event, NewEvent, Producer, errors
from pgqpy_consumers.queue_mover import QueueMover
from pgqpy_consumers.queue_splitter import QueueSplitter
from pgqpy_consumers.settings import ConfigError, build
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import Tick
from tests.fixtures.fix_db import Connection

FIELDS = "ev_time, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
EVENTS: list[tuple[str | None, ...]] = [
    ("plain", "data"),
    ("all", "of", "the", "fields", "are", "there"),
    (None, None),
    ("", "", "", "", "", ""),
    ("\N{SNOWMAN}", "tab\t, line\n, \\., \\N, \"'", None, "x" * 100_000),
]


@dataclass
class Sides:
    """A queue with events, and a database with queues that they go to."""

    conn: Connection
    target: Connection
    dsn: str
    target_dsn: str
    queue: str
    tick: Tick

    def create(self, *queues: str) -> None:
        for queue in queues:
            self.target.execute("select pgq.create_queue(%s)", [queue])

    def send(self, *events: Any) -> None:
        Producer(self.queue).insert_events(self.conn, events)
        self.tick()

    def mover(self, kind: type[QueueMover] = QueueMover, /, **settings: Any) -> QueueMover:
        """One that has moved what there was."""
        made: QueueMover = self._run(kind, {"target_queue": "copied"} | settings)
        return made

    def splitter(
        self, kind: type[QueueSplitter] = QueueSplitter, /, **settings: Any
    ) -> QueueSplitter:
        """One that has split what there was."""
        made: QueueSplitter = self._run(kind, settings)
        return made

    def _run(self, kind: Any, settings: dict[str, Any]) -> Any:
        config = {"dsn": self.dsn, "queue": self.queue, "target_dsn": self.target_dsn}
        made = kind.from_config(build(kind.Config, config | settings))
        made.backoff_first = 0.01
        made.run(until_empty=True)
        return made

    def data(self, conn: Connection | None = None) -> dict[str, list[str]]:
        """The events of each queue of the target, in order."""
        rows = (conn or self.target).execute(
            "select queue_name, array_agg(ev_data order by ev_id)"
            " from pgq.queue q join pgq.event e"
            "   on ev_slot >= queue_slot0 and ev_slot < queue_slot0 + queue_ntables"
            " group by 1"
        )
        return dict(rows.fetchall())

    def same(self, order: str = "ev_id") -> None:
        """All events of the target are those of the source."""
        rows = f"select {FIELDS} from pgq.event order by {order}".encode()
        assert self.target.execute(rows).fetchall() == self.conn.execute(rows).fetchall()


@pytest.fixture
def sides(
    conn: Connection, target: Connection, dsn: str, target_dsn: str, queue: str, tick: Tick
) -> Sides:
    return Sides(conn, target, dsn, target_dsn, queue, tick)


class Converts(QueueMover):
    def convert(self, event: Event) -> NewEvent | None:
        return super().convert(event)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", [QueueMover, Converts], ids=["copied", "converted"])
def test_events_keep_all_their_fields_their_times_and_their_order(
    sides: Sides, kind: type[QueueMover]
) -> None:
    sides.create("copied")
    ops.register(sides.target, "copied", "reader")
    mover = sides.mover(kind)
    # A small batch and a large one.
    for copies in (1, 60):
        for _ in range(copies):
            Producer(sides.queue).insert_events(sides.conn, EVENTS)
        sides.tick()
        mover.run(until_empty=True)
        sides.same()
        # They are events there, like any others.
        ops.tick(sides.target, "copied")
        batch = ops.next_batch(sides.target, "copied", "reader")
        assert len(ops.events(sides.target, batch)) == copies * len(EVENTS)
        ops.finish(sides.target, batch)


def test_a_copy_that_fails_on_the_way_leaves_nothing_and_is_done_again(sides: Sides) -> None:
    sides.create("copied")
    mover = sides.mover()
    sides.send(*(("t", "x" * 1000 + str(number)) for number in range(3000)))
    sides.target.execute(
        "create function fail() returns trigger language plpgsql as"
        " $$ begin if new.ev_data like '%x2000' then raise 'no'; end if; return new; end $$"
    )
    table = ops.value(sides.target, "select pgq.current_event_table('copied')")
    sides.target.execute(
        f"create trigger fail before insert on {table} for each row"
        " execute function fail()".encode()
    )
    with pytest.raises(pgqpy.PgqError, match="no"):
        mover.run_once()
    assert sides.data() == {}
    sides.target.execute(f"drop trigger fail on {table}".encode())
    mover.run(until_empty=True)
    sides.same()


def test_types_may_be_chosen_and_a_subclass_changes_and_leaves_out(sides: Sides) -> None:
    class Upper(QueueMover):
        def convert(self, event: Event) -> NewEvent | None:
            return None if event.data == "b" else NewEvent("upper", str(event.data).upper())

    sides.create("copied")
    chosen = sides.mover(event_types=["a"])
    upper = sides.mover(Upper, consumer="upper")
    sides.send(*[("a", "1"), ("b", "2"), (None, "3"), ("a", "4")] * 50, ("t", "b"), ("t", "c"))
    chosen.run(until_empty=True)
    assert sides.data() == {"copied": ["1", "4"] * 50}
    sides.target.execute("truncate pgq.event")
    upper.run(until_empty=True)
    assert sides.data() == {"copied": ["1", "2", "3", "4"] * 50 + ["C"]}
    assert sides.target.execute("select distinct ev_type from pgq.event").fetchall() == [("upper",)]


def test_a_queue_that_is_missing_is_named_before_anything_happens_or_created(sides: Sides) -> None:
    with pytest.raises(errors.QueueNotFound, match="copied"):
        sides.mover()
    mover = sides.mover(create_queue=True)
    sides.send(("t", "a"))
    mover.run(until_empty=True)
    sides.same()
    sides.mover(create_queue=True)


def test_to_another_queue_of_the_same_database_but_not_into_itself(sides: Sides) -> None:
    mover = sides.mover(target_dsn=sides.dsn, create_queue=True)
    events = [str(number) for number in range(200)]
    sides.send(*(("t", data) for data in events))
    mover.run(until_empty=True)
    mover.run(until_empty=True)
    assert sides.data(sides.conn) == {sides.queue: events, "copied": events}
    itself = QueueMover(
        sides.dsn, target_dsn=f"{sides.dsn}&application_name=x", queue=sides.queue, consumer="other"
    )
    itself.target_queue = sides.queue
    with pytest.raises(errors.InvalidParameter, match="into itself"):
        itself.run(until_empty=True)


# --- the splitter


def events(to: Iterable[tuple[str, str | None]]) -> list[NewEvent]:
    """Events whose data and extra1 are these."""
    return [NewEvent("t", data, extra1) for data, extra1 in to]


def test_events_go_where_extra1_says_as_they_are(sides: Sides) -> None:
    sides.create("a", "b")
    splitter = sides.splitter()
    some = [*events([("1", "a"), ("2", "b"), ("3", "a"), ("", "b")])]
    some[0] = NewEvent("t", "1", "a", extra4="x")
    # A small batch and a large one.
    for copies in (1, 60):
        sides.send(*some * copies)
        splitter.run(until_empty=True)
        splitter.run(until_empty=True)
        assert sides.data() == {"a": ["1", "3"] * copies, "b": ["2", ""] * copies}
        sides.same("1, 2, 3, 4")
        for conn in (sides.conn, sides.target):
            conn.execute("truncate pgq.event")


def test_by_another_field_with_names_for_its_values(sides: Sides) -> None:
    with pytest.raises(errors.QueueNotFound, match="no queue orders; the settings name it"):
        sides.splitter(queues={"o": "orders"})
    sides.create("orders", "plain")
    splitter = sides.splitter(field="type", queues={"o": "orders"})
    sides.send(NewEvent("o", "1"), NewEvent("plain", "2"))
    splitter.run(until_empty=True)
    assert sides.data() == {"orders": ["1"], "plain": ["2"]}


def test_an_event_for_an_unknown_queue_is_an_error_until_the_queue_is_there(sides: Sides) -> None:
    sides.create("a")
    splitter = sides.splitter()
    sides.send(*events([("1", "a"), ("2", "missing")]))
    with pytest.raises(errors.QueueNotFound) as refused:
        splitter.run(until_empty=True)
    assert "there is no queue missing; event 2 has it as extra1" in str(refused.value)
    assert "pgqpy queue create missing" in str(refused.value)
    assert sides.data() == {}
    sides.create("missing")
    splitter.run(until_empty=True)
    assert sides.data() == {"a": ["1"], "missing": ["2"]}


def test_events_for_no_queue_are_errors_or_go_to_the_default(sides: Sides) -> None:
    sides.create("a", "rest")
    splitter = sides.splitter()
    sides.send(*events([("1", "a"), ("2", None), ("3", "?"), ("4", "")]))
    with pytest.raises(pgqpy.PgqError, match="event 2 has no extra1"):
        splitter.run(until_empty=True)
    sides.splitter(default_queue="rest")
    assert sides.data() == {"a": ["1"], "rest": ["2", "3", "4"]}


def test_queues_are_created_if_that_is_wanted(sides: Sides) -> None:
    splitter = sides.splitter(create_queues=True, default_queue="rest")
    queues = sides.target.execute("select queue_name from pgq.queue").fetchall()
    assert queues == [("rest",)]
    sides.send(*events([("1", "new"), ("2", None), ("3", "new")]))
    splitter.run(until_empty=True)
    assert sides.data() == {"new": ["1", "3"], "rest": ["2"]}


@pytest.mark.parametrize("create_queues", [False, True])
def test_no_value_stops_a_splitter_with_a_default_queue(sides: Sides, create_queues: bool) -> None:
    ops.value(sides.conn, "select pgq.create_queue('rest')")
    settings = {"create_queues": create_queues, "default_queue": "rest"}
    splitter = sides.splitter(target_dsn=sides.dsn, **settings)
    sides.send(*events([("1", sides.queue), ("2", "x" * 300), ("3", "rest")]))
    splitter.run(until_empty=True)
    assert sides.data(sides.conn)["rest"] == ["1", "2", "3"]


@pytest.mark.parametrize("create_queues", [False, True])
def test_nothing_goes_into_the_queue_that_is_read_but_into_one_of_its_name_elsewhere(
    sides: Sides, create_queues: bool
) -> None:
    same = {"target_dsn": sides.dsn, "create_queues": create_queues}
    splitter = sides.splitter(**same)
    sides.create(sides.queue)
    elsewhere = sides.splitter(consumer="elsewhere")
    ops.value(sides.conn, "select pgq.create_queue('a')")
    sides.send(*events([("0", "a")]))
    splitter.run(until_empty=True)
    assert sides.data(sides.conn) == {sides.queue: ["0"], "a": ["0"]}
    sides.send(*events([("1", sides.queue)]))
    with pytest.raises(errors.InvalidParameter, match="into itself"):
        splitter.run(until_empty=True)
    with pytest.raises(errors.InvalidParameter, match="into itself"):
        sides.splitter(**same, default_queue=sides.queue)
    sides.create("a")
    elsewhere.run(until_empty=True)
    assert sides.data() == {"a": ["0"], sides.queue: ["1"]}


def test_large_batches_are_written_in_pieces_where_a_subclass_chooses(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ByLength(QueueSplitter):
        def choose(self, event: Event) -> str | None:
            return "long" if len(event.data or "") > 1 else "short"

    monkeypatch.setattr("pgqpy_consumers.queue_splitter._PIECE", 7)
    sides.create("long", "short")
    splitter = sides.splitter(ByLength)
    sides.send(*events((str(number), None) for number in range(100)))
    splitter.run(until_empty=True)
    datas = [str(number) for number in range(100)]
    assert sides.data() == {"short": datas[:10], "long": datas[10:]}


def test_settings_that_make_no_sense_are_refused() -> None:
    usual = {"queue": "q", "target_dsn": "postgresql:///x"}
    with pytest.raises(ConfigError, match=r"field .* must be one of type, extra1"):
        build(QueueSplitter.Config, usual | {"field": "data"})
    with pytest.raises(ConfigError, match="batch_size must be at least 1"):
        build(QueueSplitter.Config, usual | {"batch_size": 0})
