"""Another node becomes the root: planned, or because the root is dead.

Every step may be the last one: run again, the takeover goes on where the nodes are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from time import monotonic
from typing import Any

from pgqpy._runtime.words import duration
from pgqpy.cascade._manage import (
    NOTICED,
    change_provider,
    move_delayed,
    path_up,
    subscribe,
    wait_for,
    wait_for_tick,
)
from pgqpy.cascade._nodes import Node, NodeInfo, Nodes
from pgqpy.cascade._statements import PARTS
from pgqpy.cascade._status import fence_old_roots, newest_root
from pgqpy.dsn import redact
from pgqpy.errors import CascadeError, PgqError

#: The seconds within which a node must catch up, to be near enough to the root.
_NEAR = 1.0

#: Transactions that may still bring events, although the queue refuses inserts: each has a
#: snapshot, or runs a statement, from before that, or has inserted. The others of those that were
#: open see that it refuses. Without the right to see the state of a session, it counts as running.
#: Autovacuum, which has no user, and walsenders have snapshots, and insert nothing: both are known
#: without rights.
_WRITERS = """
    select a.pid, a.usename, pg_catalog.clock_timestamp() - a.xact_start as age
      from pg_catalog.pg_stat_activity a
     cross join (select pg_catalog.age(%s::pg_catalog.xid) as age) fence
      join pgq.queue q on q.queue_name = %s
     where a.datname = pg_catalog.current_database()
       and a.pid <> pg_catalog.pg_backend_pid()
       and a.usesysid is not null
       and a.pid not in (select pid from pg_catalog.pg_stat_replication)
       and (pg_catalog.age(a.backend_xmin) > fence.age
            or pg_catalog.age(a.backend_xid) > fence.age
               and (a.state is distinct from 'idle in transaction'
                    or exists (
                       select from pg_catalog.pg_locks l
                         join pg_catalog.generate_series(0, q.queue_ntables - 1) n
                           on l.relation = pg_catalog.to_regclass(q.queue_data_pfx || '_' || n)
                        where l.pid = a.pid
                          and l.mode = 'RowExclusiveLock')))
    union all
    select null, p.owner, pg_catalog.clock_timestamp() - p.prepared
      from pg_catalog.pg_prepared_xacts p
     where p.database = pg_catalog.current_database()
       and pg_catalog.age(p.transaction) > pg_catalog.age(%s::pg_catalog.xid)
"""
_FENCE = "select pg_catalog.pg_current_xact_id()::pg_catalog.xid::pg_catalog.text"

_BOUND = "select pg_catalog.set_config('lock_timeout', %s, true)"
_LOCKED = "55P03"

#: The answer of demote_root if an event came after the last tick.
_REST_CAME = 409

_REST = "select count(*) from pgq_node.get_rest_events(%s, %s)"

_TAKE_EVENTS = """
    update pgq.queue q
       set queue_disable_insert = false,
           queue_external_ticker = false
     where queue_name = %s
       and exists (select from pgq_node.node_info n
                    where n.queue_name = q.queue_name and n.node_type = 'root')
    returning queue_id
"""


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a takeover has done."""

    new_root: str
    old_root: str | None
    last_tick: int
    """The last tick that the new root has of the old one,"""
    last_tick_time: datetime | None
    """and when that was. Of a dead root, later events are lost until it is back."""
    paused: timedelta | None
    """For how long no node took events; None of a dead root, or if this was not the first run."""
    ahead: dict[str, int]
    """Leaves that have processed more ticks of a dead root, and their last ones."""
    left: tuple[str, ...]
    """Nodes that could not be asked, and follow whom they followed."""


Progress = Callable[[str], None]


def takeover(
    nodes: Nodes,
    new_root: str,
    *,
    timeout: float = 60,
    max_pause: float = 10,
    progress: Progress = lambda step: None,
) -> Takeover:
    """Make a branch the root; the old root becomes a branch below it.

    No event is lost or doubled. Inserts are refused while the last events are copied: if that takes
    ``max_pause`` seconds, the old root takes events again, and this raises CascadeError, as it does
    if the branch cannot catch up within ``timeout`` seconds.
    """
    nodes.node(new_root)
    fence_old_roots(nodes, nodes.infos())
    infos = nodes.infos()
    new = promotable(infos, new_root)
    root = newest_root(infos)
    if root is None:
        old = _interrupted(infos, new)
    else:
        roots = [name for name, each in infos.items() if each.type == "root" and not each.fenced_by]
        if len(roots) > 1:
            raise CascadeError(
                f"queue '{nodes.queue}' has two roots: {' and '.join(sorted(roots))}",
                hint="drop the one that is wrong: pgqpy node drop",
            )
        old = root.name
    check_restricted(nodes, infos, new, old)
    run = _Planned(nodes, old, new_root, timeout, max_pause, progress)
    if new.type == "root":
        run.take_events_again(new)
    else:
        run.take_over(demoted=root is None)
    return Takeover(
        new_root,
        None if old == new_root else old,
        run.last_tick,
        tick_time(nodes, new_root, run.last_tick),
        run.paused,
        {},
        tuple(sorted(nodes.locations.keys() - infos.keys())),
    )


def promotable(infos: dict[str, NodeInfo], name: str) -> NodeInfo:
    info = infos[name]
    if info.type == "leaf":
        raise CascadeError(
            f"node {name} is a leaf: it has no copy of the queue, and cannot be the root",
            hint="choose a branch",
        )
    if info.fenced_by is not None:
        raise CascadeError(
            f"node {name} is an old root, fenced by {info.fenced_by}",
            hint="save its rest (pgqpy node rest), drop it, and make it anew as a branch",
        )
    return info


def check_restricted(
    nodes: Nodes, infos: dict[str, NodeInfo], new: NodeInfo, old: str | None
) -> None:
    """Raise if the queue is open at the new root, and not at the old one."""
    known = [infos[old]] if old in infos else infos.values()
    if new.type != "root" and not new.restricted and any(each.restricted for each in known):
        dsn = redact(nodes.location(new.name).dsn)
        raise CascadeError(
            f"the queue is restricted, and open at node {new.name}: every writer could insert",
            hint=f"restrict it: pgqpy queue restrict {nodes.queue} --dsn '{dsn}'; and grant rights"
            " there, they are not copied",
        )


def _interrupted(infos: dict[str, NodeInfo], new: NodeInfo) -> str:
    """Return the old root of a takeover that was killed between demotion and promotion."""
    path, above = path_up(infos, new.name)
    if above != new.name:
        raise CascadeError(
            f"the root above {new.name} cannot be asked"
            if above not in infos
            else f"node {new.name} has no root above it",
            hint="if the root is dead: --dead"
            if above not in infos
            else f"a takeover of {above} was killed: run it again",
        )
    return path[-1]


@dataclass(slots=True)
class _Planned:
    """A takeover of a root that works."""

    nodes: Nodes
    old: str
    new: str
    timeout: float
    max_pause: float
    progress: Progress
    deadline: float = 0.0
    last_tick: int = 0
    moved: bool = False
    paused: timedelta | None = None

    def take_over(self, *, demoted: bool) -> None:
        nodes, old, new = self.nodes, self.nodes.node(self.old), self.nodes.node(self.new)
        if demoted:
            self.last_tick = new.info().last_tick
        else:
            resumed = old.info().refuses_events
            self.catch_up()
            if not resumed:
                self.wait_for_writers(self.timeout)
            self.gather()
            began = monotonic()
            self.pause_and_demote()
            if (provider := old.info().provider) != self.new:
                raise CascadeError(f"another takeover was faster: {self.old} follows {provider}")
        self.progress("promote")
        new.call("promote_branch", allow=(301,))
        if not demoted and not resumed:
            self.paused = timedelta(seconds=monotonic() - began)
        complete(nodes, self.new, self.progress)

    def catch_up(self) -> None:
        """Wait until the new root is so near that what is left takes little time."""
        self.progress("catch up")
        nodes = self.nodes
        old, new = nodes.node(self.old), nodes.node(self.new)
        change_provider(nodes, self.new, self.old, wait=self.timeout)
        if new.info().paused:
            raise CascadeError(
                f"node {self.new} is paused", hint="first resume it: pgqpy node resume"
            )
        deadline = monotonic() + self.timeout
        while not wait_for_tick(new, old.info().last_tick, _NEAR):
            if monotonic() > deadline:
                raise CascadeError(
                    f"node {self.new} is behind: it has tick {new.info().last_tick},"
                    f" {self.old} has tick {old.info().last_tick}",
                    hint="is its worker running? pgqpy node status shows what it failed at",
                )

    def wait_for_writers(self, seconds: float) -> None:
        """Wait for the transactions that are open now and may insert without a check."""
        self.progress("writers")
        old = self.nodes.node(self.old)
        fence = old.value(_FENCE)

        def writers() -> list[str]:
            rows = old.rows(_WRITERS, fence, self.nodes.queue, fence)
            return [
                (f"pid {each['pid']}" if each["pid"] else "a prepared transaction")
                + f" of {each['usename']}"
                + (f", {duration(each['age'])}" if each["age"] else "")
                for each in rows
            ]

        if not wait_for(lambda: not writers(), seconds):
            raise CascadeError(
                f"transactions at {self.old} have been open for too long: {', '.join(writers())}",
                hint="wait until they end, or end them; nothing has changed",
            )

    def gather(self) -> None:
        """Have the other nodes below the old root follow the new one."""
        for name, info in self.nodes.infos().items():
            if info.type == "branch":
                # A takeover may have been killed: a new root would take what the old one has.
                move_delayed(self.nodes.node(name), self.nodes.node(self.old))
            if info.provider == self.old and name != self.new:
                self.progress("gather")
                self.moved = True
                change_provider(self.nodes, name, self.new, wait=self.timeout)

    def pause_and_demote(self) -> None:
        """Have the old root refuse events, and be a branch when the new one has all of them."""
        nodes, old, new = self.nodes, self.nodes.node(self.old), self.nodes.node(self.new)
        self.deadline = monotonic() + self.max_pause
        try:
            self.pause_and_copy()
            self.progress("subscribe")
            worker = old.info().worker
            with self.bound_locks(new):
                subscribe(new, nodes.location(self.old), worker, self.last_tick)
            self.progress("demote")
            while self.demote(3, allow=(301, 409))["ret_code"] == _REST_CAME:
                self.pause_and_copy()
        except (Exception, KeyboardInterrupt) as error:
            _take_events(old)
            if isinstance(error, PgqError) and error.sqlstate == _LOCKED:
                raise CascadeError(
                    f"transactions hold locks for longer than {self.max_pause} s: {error.message}",
                    hint=f"wait until they end, or end them; {self.old} is the root as before",
                ) from error
            raise

    def left(self) -> float:
        """Return the seconds until the old root is to take events again."""
        return max(self.deadline - monotonic(), 0.001)

    @contextmanager
    def bound_locks(self, node: Node) -> Iterator[None]:
        """Have a transaction not wait for locks for longer; any other one may hold them."""
        with node.conn.transaction():
            node.rows(_BOUND, f"{ceil(self.left() * 1000)}ms")
            yield

    def demote(self, step: int, *, allow: tuple[int, ...] = ()) -> dict[str, Any]:
        old = self.nodes.node(self.old)
        with self.bound_locks(old):
            return old.call("demote_root", step, self.new, allow=allow)

    def pause_and_copy(self) -> None:
        """Have the old root refuse events, and wait until the new one has all of them."""
        old, new = self.nodes.node(self.old), self.nodes.node(self.new)
        self.progress("pause")
        self.demote(1)
        self.wait_for_writers(self.left())
        rest = True
        while rest:
            self.progress("last tick")
            self.last_tick = tick = self.demote(2)["last_tick"]
            self.progress("copy")
            if not wait_for_tick(new, tick, self.left()):
                raise CascadeError(
                    f"node {self.new} did not get the last events within {self.max_pause} s",
                    hint=f"is its worker running? {self.old} is the root as before"
                    + (f"; other nodes follow {self.new} now: run it again" * self.moved),
                )
            rest = old.is_ours and old.value(_REST, self.nodes.queue, tick) > 0
        self.compare_parts()

    def compare_parts(self) -> None:
        """Raise unless the queues that are merged into this one go on where they have stopped."""
        stopped, goes_on = (
            {each["queue_name"]: each["last_tick_id"] for each in node.rows(PARTS, node.queue)}
            for node in (self.nodes.node(self.old), self.nodes.node(self.new))
        )
        for part, tick in stopped.items():
            if goes_on.get(part) != tick:
                found = f"is at tick {goes_on[part]}" if part in goes_on else "is missing"
                raise CascadeError(
                    f"queue {part} was merged at {self.old} up to tick {tick}, its leaf at"
                    f" {self.new} {found}: events would be lost or come twice",
                    hint="make this leaf anew, and wait until a tick was merged and copied"
                    if part in goes_on
                    else f"make it: pgqpy node create {part} leaf NODE --combined-queue",
                )

    def take_events_again(self, root: NodeInfo) -> None:
        """Complete the takeover of a node that is the root already, or give up another's."""
        self.last_tick = root.last_tick
        if root.refuses_events:
            _take_events(self.nodes.node(root.name))
        complete(self.nodes, root.name, self.progress)


def _take_events(root: Node) -> None:
    root.rows(_TAKE_EVENTS, root.queue)
    # Delayed events had left the queue.
    root.rows("select pgq_node.maint_watermark(%s)", root.queue)


def complete(nodes: Nodes, root: str, progress: Progress) -> None:
    """Tell all nodes of the new root; none of them keeps events for it any more."""
    progress("tell")
    node, infos = nodes.node(root), nodes.infos()
    for name in infos:
        if nodes.node(name).is_ours:
            nodes.node(name).call("learn_epoch", infos[root].epoch)
    progress("leave")
    # Until then its worker may register itself once more.
    wait_for(lambda: node.info().uptodate, NOTICED)
    for name, info in infos.items():
        if name != root and info.type != "leaf":
            other = nodes.node(name)
            other.call("unregister_subscriber", root, allow=(304,))
            other.rows("select pgq.unregister_consumer(%s, %s)", nodes.queue, infos[root].worker)
            move_delayed(other, node)


def tick_time(nodes: Nodes, name: str, tick: int) -> datetime | None:
    found = nodes.node(name).tick(tick)
    return None if found is None else found["tick_time"]
