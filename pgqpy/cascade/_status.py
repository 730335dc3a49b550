"""The state of all nodes of a queue, as a tree; an old root that is found is fenced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from pgqpy.cascade._manage import move_delayed
from pgqpy.cascade._nodes import NodeInfo, Nodes, NodeType, asked
from pgqpy.dsn import redact
from pgqpy.errors import PermissionDenied, PgqError

#: The ticks of a new root that are compared with those of an old one, from the newest back.
_COMPARED = 100_000

_PENDING = """
    select pending_events from pgq.get_consumer_info(%s, %s)
"""
#: Times of ticks are copied with them, so clocks that differ do not matter.
_LAG = """
    select n.tick_id, newest.tick_time - t.tick_time as lag
      from unnest(%s::bigint[]) n (tick_id)
      join pgq.queue q on q.queue_name = %s
      join pgq.tick t on t.tick_queue = q.queue_id and t.tick_id = n.tick_id
     cross join lateral (select tick_time from pgq.tick
                          where tick_queue = q.queue_id
                          order by tick_id desc limit 1) newest
"""
_TICKS = """
    select t.tick_id, t.tick_time
      from pgq.tick t
      join pgq.queue q on q.queue_id = t.tick_queue
     where q.queue_name = %s
       and t.tick_id <= %s
     order by t.tick_id desc limit %s
"""
_NEWEST_COMMON = """
    select max(t.tick_id)
      from pgq.tick t
      join pgq.queue q on q.queue_id = t.tick_queue
      join unnest(%s::bigint[], %s::timestamptz[]) n (tick_id, tick_time)
        on n.tick_id = t.tick_id and n.tick_time = t.tick_time
     where q.queue_name = %s
"""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The state of a node; what it cannot tell is None."""

    name: str
    location: str
    """Its DSN, without secrets."""
    depth: int
    """How many nodes are above it."""
    type: NodeType | None = None
    provider: str | None = None
    last_tick: int | None = None
    lag: timedelta | None = None
    """The time between its last tick and the root's; 0 if it lacks no event."""
    events_behind: int | None = None
    watermark: int | None = None
    """The lowest tick of it and of the nodes and consumers below it."""
    paused: bool = False
    dead: bool = False
    rest: int | None = None
    """Events of an old root that no other node has."""
    problem: str | None = None
    error: str | None = None
    """What its worker failed at last."""


def status(nodes: Nodes) -> list[NodeStatus]:
    """Return the state of all nodes, each below its provider. Fences old roots."""
    look = nodes.look()
    rests = fence_old_roots(nodes, asked(look))
    if rests:
        look = nodes.look()
    infos = asked(look)
    root = newest_root(infos)
    lags = _lags(nodes, root, infos)
    behind: dict[str, int | None] = {}
    result = []
    for name, depth in _tree(look):
        info, location = look[name], nodes.locations[name]
        address = redact(location.dsn)
        if not isinstance(info, NodeInfo):
            found = NodeStatus(name, address, depth, dead=location.dead, problem=info)
        else:
            behind[name] = 0 if info is root else _behind(nodes, info, behind)
            found = NodeStatus(
                name,
                address,
                depth,
                info.type,
                info.provider,
                info.last_tick,
                _lag(info, lags, behind[name]),
                behind[name],
                info.watermark,
                info.paused,
                location.dead,
                rests.get(name),
                _problem(info, root, infos, behind[name], rests),
                info.error,
            )
        result.append(found)
    return result


def newest_root(infos: dict[str, NodeInfo]) -> NodeInfo | None:
    """Return the root that is not fenced; of two the one with the higher epoch."""
    roots = [info for info in infos.values() if info.type == "root" and info.fenced_by is None]
    return max(roots, key=lambda info: info.epoch, default=None)


def fence_old_roots(nodes: Nodes, infos: dict[str, NodeInfo]) -> dict[str, int | None]:
    """Fence each root that is older than another one; return the rests of all fenced roots.

    An old root is one that was dead when another took over. A role that may not fence gets None.
    """
    root = newest_root(infos)
    rests: dict[str, int | None] = {}
    for name, info in infos.items():
        if root is None or info.type != "root" or info.epoch >= root.epoch:
            continue
        old = nodes.node(name)
        try:
            last = info.fenced_tick or newest_common_tick(nodes, name, root.name)
            answer = old.call("fence_root", root.name, root.epoch, last, allow=(301, 405))
            rests[name] = answer["rest"]
            move_delayed(old, nodes.node(root.name))
        except PermissionDenied:
            rests[name] = None
    return rests


def fence_if_replaced(nodes: Nodes) -> tuple[NodeInfo, int | None]:
    """Fence the root here if a node that it knows is a newer one; return what it is then, and its
    rest.

    Only what a root says of itself counts. A branch may have heard of its epoch, or of the place of
    a node, by an event, and events can be forged.
    """
    here = nodes.local
    for name in nodes.locations.keys() - {here.name}:
        with suppress(PgqError):
            rests = fence_old_roots(nodes, {here.name: here, name: nodes.node(name).info()})
            if here.name in rests:
                return nodes.here.info(), rests[here.name]
    return here, None


def newest_common_tick(nodes: Nodes, old: str, new: str) -> int:
    """Return the last tick of an old root that a new one has; 0 if it has none any more."""
    last = nodes.node(old).info().last_tick
    ticks = nodes.node(new).rows(_TICKS, nodes.queue, last, _COMPARED)
    ids, times = [each["tick_id"] for each in ticks], [each["tick_time"] for each in ticks]
    return nodes.node(old).value(_NEWEST_COMMON, ids, times, nodes.queue) or 0


def _lags(nodes: Nodes, root: NodeInfo | None, infos: dict[str, NodeInfo]) -> dict[int, timedelta]:
    if root is None:
        return {}
    ticks = [info.last_tick for info in infos.values()]
    rows = nodes.node(root.name).rows(_LAG, ticks, nodes.queue)
    return {each["tick_id"]: each["lag"] for each in rows}


def _lag(info: NodeInfo, lags: dict[int, timedelta], behind: int | None) -> timedelta | None:
    """Return a node's lag: 0 if it lacks only ticks without events."""
    if info.fenced_by is not None:
        return None
    return lags.get(info.last_tick) if behind != 0 else timedelta(0)


def _behind(nodes: Nodes, info: NodeInfo, behind: dict[str, int | None]) -> int | None:
    """Return how many events its provider has for it, and those above have for that."""
    above = behind.get(info.provider or "")
    if above is None or info.provider is None:
        return None
    pending = nodes.node(info.provider).value(_PENDING, nodes.queue, info.worker)
    return None if pending is None else above + int(pending)


def _tree(look: dict[str, NodeInfo | str]) -> list[tuple[str, int]]:
    """Return all names in the order of the tree, each with its depth."""
    below: dict[str | None, list[str]] = {}
    for name, info in sorted(look.items()):
        provider = info.provider if isinstance(info, NodeInfo) else None
        below.setdefault(provider if provider in look else None, []).append(name)
    order: list[tuple[str, int]] = []

    def visit(name: str, depth: int) -> None:
        if all(name != each for each, _ in order):
            order.append((name, depth))
            for each in below.get(name, []):
                visit(each, depth + 1)

    for name in [*below.get(None, []), *sorted(look)]:  # those in a cycle come last
        visit(name, 0)
    return order


def _problem(
    info: NodeInfo,
    root: NodeInfo | None,
    infos: dict[str, NodeInfo],
    behind: int | None,
    rests: dict[str, int | None],
) -> str | None:
    if info.fenced_by is not None:
        counted = "" if rests.get(info.name) is not None else "; its rest cannot be counted"
        return f"an old root, fenced by {info.fenced_by}{counted}"
    if root is None:
        return "no root: run the takeover again, or take over from a dead one"
    if info.type == "root":
        if info.name in rests:
            return f"an older root than {root.name}; a pgq_admin's status fences it"
        if info is not root:
            return f"two roots: {info.name} and {root.name}"
        return "refuses events: a takeover is not complete" if info.refuses_events else None
    provider = infos.get(info.provider or "")
    if provider is None:
        return f"its provider {info.provider} cannot be asked"
    if provider.fenced_by is not None:
        return f"its provider {provider.name} is an old root: give it another one"
    if behind is None:
        return f"not registered at {provider.name}"
    if info.type == "branch" and root.restricted and not info.restricted:
        return f"its queue is open, and restricted at {root.name}"
    return None
