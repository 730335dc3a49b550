"""Five nodes on five servers: servers and workers are killed, links fail, providers change, other
nodes take over and consumers move, a root is lost and comes back, at random, while producers write:
``--chaos 60`` or more."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psycopg
import pytest

from pgqpy.cascade import (
    CascadedConsumer,
    Nodes,
    change_provider,
    create_node,
    drop_node,
    take_over_dead_root,
    takeover,
)
from pgqpy.connection import Connection
from pgqpy.embedded import Server
from pgqpy.errors import PgqError
from pgqpy.event import Event
from pgqpy.schema import node_sql
from tests.faults.link import Link, link
from tests.fixtures.fix_client import PATIENCE, wait_until
from tests.fixtures.fix_ticker import StartTicker
from tests.fixtures.forked import Forked

pytestmark = pytest.mark.slow

QUEUE = "q"
NAMES = "abcde"
TABLES = """
create table app (data text primary key);
create table effect (consumer text, data text, at timestamptz default clock_timestamp());
"""
COPY = """
select ev_id, ev_time, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4
  from pgq.event_template order by ev_id
"""
FENCED = "select fenced_tick from pgq_node.root_epoch where fenced_by is not null"
WRITERS = "select pid from pg_stat_activity where backend_xid is not null"
REST = "select ev_data from pgq_node.get_rest_events('q', ({})) where ev_type = 't'"
TICKS = "select tick_id, tick_time, tick_event_seq from pgq.tick order by tick_id"
GONE = (psycopg.Error, PgqError)


class Effects(CascadedConsumer):
    """Writes each event down, in the database of its node."""

    queue = QUEUE
    poll_interval = 0.1
    backoff_cap = 1.0

    def process_remote_event(self, target: Connection, event: Event) -> None:
        if event.type == "t":
            target.execute("insert into effect values (%s, %s)", [self.consumer, event.data])


class Producer(threading.Thread):
    """Inserts numbered events wherever the root is, each with a row of its own."""

    def __init__(self, net: Net, key: str) -> None:
        super().__init__()
        self._net = net
        self._key = key
        self.done = 0

    def run(self) -> None:
        name = "a"
        for number in count():
            data = f"{self._key}:{number}"
            while not self._net.over:
                try:
                    with psycopg.connect(self._net.dsn(name)) as conn:
                        conn.execute("set local synchronous_commit = on")
                        conn.execute("insert into app values (%s)", [data])
                        conn.execute("select pgq.insert_event(%s, 't', %s)", [QUEUE, data])
                except psycopg.Error:
                    # It may have been committed; the next number is used in any case.
                    name = random.choice(NAMES)
                    sleep(0.05)
                else:
                    self.done += 1
                    sleep(0.005)
                break
            else:
                return


class Net:
    """The nodes, their links and processes."""

    def __init__(self, servers: dict[str, Server], links: dict[str, Link], folder: Path) -> None:
        self.servers = servers
        self.links = links
        self.over = False
        self.did: Counter[str] = Counter()
        #: What only roots had that were lost.
        self.rests: list[str] = []
        #: The newest event when such a root became a branch, which has those of before in part.
        self.remade: dict[str, Any] = {}
        self._folder = folder
        self._workers: dict[str, Forked] = {}

    def dsn(self, name: str) -> str:
        return self.servers[name].dsn

    def location(self, name: str) -> str:
        port = self.links[name].port
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?connect_timeout=3"

    def start_worker(self, name: str) -> None:
        config = self._folder / f"{name}.toml"
        config.write_text(f'nodes = ["{self.dsn(name)}"]\npoll_interval = 0.1\n')
        with (self._folder / f"{name}.log").open("a") as log:
            self._workers[name] = Forked(
                [sys.executable, "-m", "pgqpy", "run", "cascade", str(config)],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def kill_worker(self) -> None:
        name = random.choice(NAMES)
        self._workers[name].kill()
        self._workers[name].wait(30)
        self.start_worker(name)

    def stop_workers(self) -> None:
        for each in self._workers.values():
            each.terminate()
            each.wait(30)

    def kill_server(self) -> None:
        server = self.servers[random.choice(NAMES)]
        server.kill()
        sleep(random.uniform(0, 0.5))
        server.restart()

    def break_link(self) -> None:
        each = self.links[random.choice(NAMES)]
        each.turn(random.choice(["slow", "silent", "cut"]))
        sleep(random.uniform(0.1, 0.7))
        each.turn("up")

    def nodes(self) -> Nodes:
        return Nodes(QUEUE, self.dsn(random.choice(NAMES)))

    def change_provider(self) -> None:
        name, other = random.sample(NAMES, 2)
        with suppress(*GONE), self.nodes() as nodes:
            change_provider(nodes, name, other, wait=2)
            self.did["changed"] += 1

    def take_over(self) -> None:
        with suppress(*GONE), self.nodes() as nodes:
            takeover(nodes, random.choice(NAMES), timeout=5)
            self.did["taken over"] += 1

    def lose_root(self) -> None:
        """Kill the root's server, have another node take over, and let the old root come back: it
        is fenced by its worker, its rest is saved, and it becomes a branch."""
        old = self.heal()
        if old in "cd":  # it has the state of a consumer
            return
        new = random.choice([name for name in NAMES if name != old])
        # What it takes from now on is its rest.
        self.links[old].turn("cut")
        sleep(random.uniform(0, 0.5))
        self.servers[old].kill()
        self.links[old].turn("up")
        wait_until(partial(self._tried, lambda nodes: take_over_dead_root(nodes, new), new))
        sleep(random.uniform(0, 0.5))
        self.servers[old].restart()
        wait_until(lambda: bool(rows(self, old, FENCED)))
        wait_until(lambda: not rows(self, old, WRITERS))
        self.rests += [str(data) for (data,) in rows(self, old, REST.format(FENCED))]
        wait_until(partial(self._tried, lambda nodes: drop_node(nodes, old, force=True), new))
        make = partial(create_node, QUEUE, old, "branch", self.dsn(old), provider=self.dsn(new))
        wait_until(partial(self._tried, lambda _: make(location=self.location(old)), new))
        ((self.remade[old],),) = rows(self, new, "select max(ev_id) from pgq.event_template")
        self.did["lost the root"] += 1

    def _tried(self, act: Callable[[Nodes], object], at: str) -> bool:
        """Whether it succeeded."""
        try:
            with Nodes(QUEUE, self.dsn(at)) as nodes:
                act(nodes)
        except GONE as error:
            self.did[f"in vain: {error}"] += 1
            return False
        return True

    def heal(self) -> str:
        """Have one root; return its name."""
        deadline = monotonic() + PATIENCE
        for each in self.links.values():
            each.turn("up")
        while True:
            try:
                with Nodes(QUEUE, self.dsn("a")) as nodes:
                    infos = nodes.infos()
                    roots = [each.name for each in infos.values() if each.type == "root"]
                    wanted = roots[0] if len(roots) == 1 else random.choice(NAMES)
                    takeover(nodes, wanted)
                    return wanted
            except GONE:
                assert monotonic() < deadline
                sleep(0.2)


def rows(net: Net, name: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(net.dsn(name)) as conn:
        return conn.execute(statement.encode()).fetchall()


def consume(net: Net, name: str, stop: threading.Event) -> None:
    """Keep a consumer with effects at a node running, whatever happens."""
    while not stop.is_set():
        consumer = Effects(net.dsn(name), consumer=f"to_{name}")
        watch = threading.Thread(target=lambda made=consumer: (stop.wait(), made.stop()))
        watch.start()
        with suppress(*GONE):
            consumer.run(handle_signals=False)
        if not stop.is_set():
            net.did["consumer began again"] += 1
            sleep(0.1)


def move_consumer(net: Net) -> None:
    name = random.choice("cd")
    with suppress(*GONE):
        Effects(net.dsn(name), consumer=f"to_{name}").move(random.choice(NAMES))
        net.did["moved"] += 1


@pytest.fixture
def net(
    start_mortal: Callable[[], Server],
    start_ticker: StartTicker,
    tmp_path: Path,
    chaos_seconds: float,
) -> Iterator[Net]:
    if chaos_seconds < 20:
        pytest.skip("five servers, by chance: run it with --chaos 60 or more")
    with ExitStack() as stack:
        servers = {name: start_mortal() for name in NAMES}
        links = {
            name: stack.enter_context(link(each.socket_dir / ".s.PGSQL.5432"))
            for name, each in servers.items()
        }
        made = Net(servers, links, tmp_path)
        for name in NAMES:
            with psycopg.connect(made.dsn(name), autocommit=True) as conn:
                conn.execute(node_sql().encode())
                conn.execute(TABLES)
            create_node(
                QUEUE,
                name,
                "root" if name == "a" else "branch",
                made.dsn(name),
                provider=None if name == "a" else made.dsn("a"),
                location=made.location(name),
            )
        start_ticker(*map(made.dsn, NAMES))
        for name in NAMES:
            made.start_worker(name)
        stack.callback(made.stop_workers)
        yield made


def test_chaos_loses_and_doubles_nothing_and_copies_are_equal(
    net: Net, chaos_seconds: float
) -> None:
    for name in "cd":
        Effects(net.dsn(name), consumer=f"to_{name}").register()
    stop = threading.Event()
    readers = [threading.Thread(target=consume, args=(net, name, stop)) for name in "cd"]
    producers = [Producer(net, key) for key in ("x", "y")]
    for each in [*readers, *producers]:
        each.start()
    kinds: dict[Callable[[], None], int] = {
        net.kill_worker: 4,
        net.kill_server: 2,
        net.break_link: 6,
        net.change_provider: 4,
        net.take_over: 3,
        net.lose_root: 2,
        lambda: move_consumer(net): 4,
    }
    try:
        deadline = monotonic() + chaos_seconds
        while monotonic() < deadline:
            random.choices([*kinds], [*kinds.values()])[0]()
            sleep(random.uniform(0, 0.3))
        root = net.heal()
        # Events after all faults.
        before = [each.done for each in producers]
        wait_until(lambda: all(p.done > n + 5 for p, n in zip(producers, before, strict=True)))
        net.over = True
        for each in producers:
            each.join()
        committed = sorted(
            str(data) for name in NAMES for (data,) in rows(net, name, "select * from app")
        )
        kept = sorted({*committed} - {*net.rests})
        for name in "cd":
            wait_until(partial(arrived, net, name, kept))
    finally:
        net.over = True
        stop.set()
        for each in readers:
            each.join()
    print(f"{len(committed)} events, {len(net.rests)} in rests; {dict(net.did)}")
    newest = rows(net, root, TICKS)[-1]
    for name in NAMES:
        wait_until(partial(has_tick, net, name, newest))
    everything = rows(net, "c", COPY)
    for name in NAMES:
        copy, since = rows(net, name, COPY), net.remade.get(name, 0)
        assert {*copy} <= {*everything}, name
        assert {row for row in everything if row[0] > since} <= {*copy}, name
        ours, theirs = ({row[0]: row for row in rows(net, each, TICKS)} for each in (name, "c"))
        # Early ticks are forgotten.
        common = {
            tick
            for tick in {*ours} & {*theirs}
            if theirs[tick][2] > since and ours[tick][2] > net.remade.get("c", 0)
        }
        assert len(common) > (0 if since else 10)
        assert {ours[tick] for tick in common} == {theirs[tick] for tick in common}, name
    copied = sorted(str(row[4]) for row in everything if row[3] == "t")
    # Each is at all nodes, or in the rest of one root.
    assert copied == kept
    assert sorted([*kept, *net.rests]) == committed
    for name in "cd":
        found = effects(net, name)
        assert len({*found}) == len(found)
        # A consumer may have read the root that was lost.
        assert {*kept} <= {*found} <= {*committed}
        for key in ("x", "y"):
            mine = [int(data.partition(":")[2]) for data in found if data.startswith(key)]
            assert mine == sorted(mine)


def effects(net: Net, name: str) -> list[str]:
    return [str(data) for (data,) in rows(net, name, "select data from effect order by at")]


def arrived(net: Net, name: str, wanted: list[str]) -> bool:
    return {*wanted} <= {*effects(net, name)}


def has_tick(net: Net, name: str, tick: tuple[object, ...]) -> bool:
    return tick in rows(net, name, TICKS)
