"""Pausing, moving and dropping nodes. Each can be run again if it was killed half way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, LiteralString

from pgqpy._runtime.words import plural
from pgqpy.cascade._nodes import Location, Node, NodeInfo, Nodes, where
from pgqpy.errors import CascadeError, TickNotFound

#: The seconds between looks at a node that is waited for.
PAUSE = 0.02

#: The seconds in which a running worker notices that it was paused or resumed.
NOTICED = 5.0


# No more at once than an array of jsonb holds, 256 MB; but at least one.
_DELAYED: LiteralString = """
    select coalesce(pg_catalog.jsonb_agg(found.h), '[]')::text
      from (select h, sum(pg_catalog.octet_length(h::text)) over (
                       order by h.ev_id rows between unbounded preceding and 1 preceding) as before
              from pgq_node.handed_over h
             where h.queue_name = %s and not h.taken
             order by h.ev_id
             limit 1000) found
     where found.before < 16777216 is not false
"""
_UNREGISTER: LiteralString = "select pgq.unregister_consumer(%s, %s)"
_REST: LiteralString = """
    select count(*) from pgq_node.get_rest_events(%s, %s) where (ev_type like 'pgq.%%') is not true
"""
_FORGET_DELAYED: LiteralString = """
    delete from pgq_node.handed_over h
     using pg_catalog.jsonb_populate_recordset(null::pgq_node.handed_over, %s) known
     where h.queue_name = %s
       and h.ev_id = known.ev_id
       and not h.taken
    returning h.ev_id
"""


def check_provider(provider: NodeInfo) -> None:
    """Raise if a node cannot give others events."""
    if provider.type == "leaf":
        raise CascadeError(
            f"node {provider.name} is a leaf: it keeps no events for others",
            hint="choose a root or a branch as provider",
        )
    if provider.fenced_by is not None:
        raise CascadeError(
            f"node {provider.name} is an old root, fenced by {provider.fenced_by}",
            hint=f"choose {provider.fenced_by}, or a node below it, as provider",
        )


def set_paused(nodes: Nodes, name: str, paused: bool, *, wait: float | None = None) -> bool:
    """Pause a node's worker, or resume it; return whether it has noticed that in time."""
    node = nodes.node(name)
    node.call("set_consumer_paused", node.info().worker, paused)
    return wait_for(lambda: node.info().uptodate, NOTICED if wait is None else wait)


def wait_for(condition: Callable[[], Any], seconds: float) -> bool:
    """Wait until a condition is true; return False if it does not come true in time."""
    deadline = monotonic() + seconds
    while not condition():
        if monotonic() >= deadline:
            return False
        sleep(PAUSE)
    return True


def change_provider(
    nodes: Nodes, name: str, provider: str, *, consumer: str | None = None, wait: float = 10
) -> bool:
    """Have a node, or a cascaded ``consumer`` of it, get its events from another node.

    It goes on at its tick. The provider may be behind: then wait until it has this tick. Returns
    False if it was the provider already, and knew the node. Raises CascadeError, and nothing has
    changed.
    """
    infos = nodes.infos()
    for each in (name, provider):
        nodes.node(each)
    info, above = infos[name], infos[provider]
    is_worker = consumer is None or consumer == info.worker
    consumer = consumer or info.worker
    if is_worker and info.type == "root":
        raise CascadeError(
            f"node {name} is the root: it gets its events from no other node",
            hint="pgqpy node takeover makes another node the root",
        )
    check_provider(above)
    if is_worker:
        _check_no_cycle(infos, name, provider)
    changed = _move(nodes, name, consumer, provider, is_worker=is_worker, wait=wait)
    if is_worker and changed:
        # Until then its worker may register itself once more.
        wait_for(lambda: nodes.node(name).info().uptodate, NOTICED)
    for other, node in nodes.reachable():
        if other in (name, provider):
            continue
        if changed and is_worker and infos[other].type == "root" and name not in _names(node):
            # It had been dropped as dead.
            node.call("register_location", name, nodes.location(name).dsn, False)
        if infos[other].type != "leaf":
            if is_worker:
                node.call("unregister_subscriber", name, allow=(304,))
            node.rows(_UNREGISTER, nodes.queue, consumer)
    return changed


def _check_no_cycle(infos: dict[str, NodeInfo], name: str, provider: str) -> None:
    if name == provider:
        raise CascadeError(
            f"node {name} cannot follow itself", hint="choose another root or branch as provider"
        )
    path, _ = path_up(infos, provider)
    if name in path:
        below = path[: path.index(name)]
        raise CascadeError(
            f"node {name} cannot follow {provider}: that would be a cycle,"
            f" {' <- '.join([name, *below, name])}",
            hint=f"first have {below[-1]} follow another node",
        )


def path_up(infos: dict[str, NodeInfo], name: str) -> tuple[list[str], str | None]:
    """Return a node and those above it that can be asked, and what is above the last of them: a
    node that cannot be asked, one of them if that is a cycle, or None."""
    path, above = [name], infos[name].provider
    while above in infos and above not in path:
        path.append(above)
        above = infos[above].provider
    return path, above


def _move(
    nodes: Nodes, name: str, consumer: str, provider: str, *, is_worker: bool, wait: float
) -> bool:
    """Register the consumer at its new provider, and have it read there, at its tick."""
    node, above = nodes.node(name), nodes.node(provider)
    state = node.call("get_consumer_state", consumer, allow=(404,))
    if state["completed_tick"] is None:
        raise _no_consumer(node, name, consumer)
    _wait_for_provider(above, provider, name, state["completed_tick"], wait)
    with node.conn.transaction():
        # The worker's batch commits before this, or after the change.
        tick = node.value(
            "select last_tick_id from pgq_node.local_state"
            " where queue_name = %s and consumer_name = %s for update",
            nodes.queue,
            consumer,
        )
        _wait_for_provider(above, provider, name, tick, wait)
        changed = bool(provider != state["provider_node"])
        if is_worker:
            changed |= subscribe(above, nodes.location(name), consumer, tick)
        else:
            above.rows("select pgq.register_consumer_at(%s, %s, %s)", nodes.queue, consumer, tick)
        if provider != state["provider_node"]:
            if provider not in _names(node):
                # The event about it was not copied before the root died.
                found = nodes.location(provider)
                node.call("register_location", provider, found.dsn, found.dead)
            node.call("change_consumer_provider", consumer, provider)
    return changed


def _no_consumer(node: Node, name: str, consumer: str) -> CascadeError:
    """Return the error for a consumer that has no state at a node."""
    return CascadeError(
        f"node {name} has no cascaded consumer {consumer}: it has {', '.join(cascaded(node))}",
        hint=f"`pgqpy consumer list {node.queue}` lists all others that read a node's queue;"
        " to move one, register it at its tick: `pgqpy consumer register --tick`",
    )


def subscribe(above: Node, location: Location, worker: str, tick: int) -> bool:
    """Register a node at its provider, at this tick; return False if it was registered there."""
    known = {each.name: each for each in above.locations()}.get(location.name)
    if known is None or known.dsn != location.dsn:  # a root tells all nodes, if it takes events
        above.call("register_location", location.name, location.dsn, location.dead)
    if above.subscribers().get(location.name) == worker:
        above.rows("select pgq.register_consumer_at(%s, %s, %s)", above.queue, worker, tick)
        return False
    above.call("unregister_subscriber", location.name, allow=(304,))
    above.call("register_subscriber", location.name, worker, tick)
    return True


def _names(node: Node) -> set[str]:
    """Return the nodes that a node knows."""
    return {each.name for each in node.locations()}


def wait_for_tick(node: Node, tick: int, seconds: float) -> bool:
    """Wait until a node has a tick; return False if it does not get it in time."""
    return wait_for(lambda: node.info().last_tick >= tick, seconds)


def _wait_for_provider(above: Node, provider: str, name: str, tick: int, wait: float) -> None:
    if not wait_for_tick(above, tick, wait):
        raise CascadeError(
            f"node {provider} is behind {name}: it has tick {above.info().last_tick},"
            f" {name} has tick {tick}",
            hint=f"wait until {provider} has caught up; is its worker running?",
        )
    if above.tick(tick) is None:
        raise CascadeError(
            f"node {provider} does not have tick {tick}, at which {name} is",
            hint="let it copy more from its provider; else drop the node and make it anew",
        )


def move_delayed(old: Node, new: Node) -> None:
    """Give a root the delayed events that have left the queue of an old one."""
    if not (old.is_ours and new.is_ours):
        return
    while (events := old.value(_DELAYED, old.queue)) != "[]":
        new.call("take_delayed", events)
        # More may have come meanwhile.
        old.rows(_FORGET_DELAYED, events, old.queue)


def drop_node(nodes: Nodes, name: str, *, dead: bool = False, force: bool = False) -> None:
    """Drop a node: its queue and events, its registration at its provider, and its location.

    ``dead`` drops one that cannot be reached; ``force`` also one that has consumers, cascaded ones
    included, or events that no other node has. Raises CascadeError, and nothing has changed.
    """
    location = nodes.location(name)
    look, infos = nodes.look(), nodes.infos()
    info = look[name]
    if not isinstance(info, NodeInfo):
        if not dead:
            raise CascadeError(
                f"node {name} cannot be asked, {where(location.dsn)}: {info}",
                hint="if it will not come back, --dead drops it",
            )
    elif info.type == "root" and info.fenced_by is None and (others := look.keys() - {name}):
        raise CascadeError(
            f"node {name} is the root, and {', '.join(sorted(others))}"
            f" {'follow' if len(others) > 1 else 'follows'} it",
            hint="pgqpy node takeover makes another node the root; or drop the others first",
        )
    _check_readers(nodes, name, look)
    if isinstance(info, NodeInfo):
        node = nodes.node(name)
        _check_parts(node, name)
        consumers = cascaded(node, but=info.worker)
        if not force:
            _check_losses(node, info, consumers)
        providers = {each: state["provider_node"] for each, state in consumers.items()}
        readers = [each for each in providers.items() if each[1] in infos]
        for consumer, provider in readers:  # which keeps events for it
            nodes.node(provider).rows(_UNREGISTER, nodes.queue, consumer)
        node.call("drop_node", name)
        for consumer, provider in readers:
            if provider != name:
                # If it runs, it may have registered once more before.
                nodes.node(provider).rows(_UNREGISTER, nodes.queue, consumer)
        nodes.forget(name)
    # The root last: its event tells the nodes that could not be asked.
    rest = [each for each in infos.values() if each.name != name]
    for each in sorted(rest, key=lambda info: info.type == "root" and info.fenced_by is None):
        nodes.node(each.name).call("drop_node", name)
    del nodes.locations[name]


def _check_readers(nodes: Nodes, name: str, look: dict[str, NodeInfo | str]) -> None:
    """Raise if other nodes, or their consumers, get their events from a node."""
    infos = nodes.infos()
    below = {each.name for each in infos.values() if each.provider == name}
    if name in infos and infos[name].fenced_by is None:
        # A node that can be asked, and has another provider, was one before this node came back.
        below |= nodes.node(name).subscribers().keys() & (look.keys() - infos.keys())
    if below:
        raise CascadeError(
            f"node {name} has subscribers: {', '.join(sorted(below))}",
            hint="first give each another provider: pgqpy node change-provider",
        )
    readers = [
        f"{consumer} of {each.name}"
        for each in infos.values()
        if each.name != name
        for consumer, state in cascaded(nodes.node(each.name), but=each.worker).items()
        if state["provider_node"] == name
    ]
    if readers:
        raise CascadeError(
            f"consumers of other nodes read node {name}: {', '.join(readers)}",
            hint="first give each another provider: pgqpy node change-provider --consumer",
        )


def cascaded(node: Node, *, but: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the states of a node's cascaded consumers, by name; ``but`` is the worker, if it is to
    be left out."""
    rows = node.rows("select * from pgq_node.get_consumer_info(%s)", node.queue)
    return {each["consumer_name"]: each for each in rows if each["consumer_name"] != but}


def _check_parts(node: Node, name: str) -> None:
    """Raise if leaves merge their queues into this one: their positions mean nothing without it."""
    rows = node.rows(
        "select queue_name from pgq_node.node_info where combined_queue = %s order by 1", node.queue
    )
    if rows:
        raise CascadeError(
            f"queues are merged into that of node {name}:"
            f" {', '.join(each['queue_name'] for each in rows)}",
            hint="first drop their leaves in this database: pgqpy node drop",
        )


def _check_losses(node: Node, info: NodeInfo, cascaded: Iterable[str]) -> None:
    """Raise if events, or the positions of consumers, would be lost with a node."""
    own = {*cascaded}
    if info.type != "leaf":
        subscribers = node.subscribers()
        nodes_own = {f".{each}.watermark" for each in subscribers} | {".global_watermark"}
        rows = node.rows("select consumer_name from pgq.get_consumer_info(%s)", node.queue)
        known = {each["consumer_name"] for each in rows}
        own |= known - nodes_own - {info.worker, *subscribers.values()}
    names = ", ".join(sorted(own))
    rest = 0 if info.fenced_by is None else _count_rest(node, info)
    if rest != 0:
        events = "events" if rest is None else plural(rest, "event")
        also = f", and the positions of its consumers: {names}" if own else ""
        raise CascadeError(
            f"node {info.name} is an old root: {events} that no other node has would be lost"
            f" with it{also}",
            hint=f"save them: pgqpy node rest {node.queue} {info.name} --json; --force drops it"
            " then",
        )
    if own:
        raise CascadeError(
            f"node {info.name} has consumers: {names}",
            hint="move them to another node; --force drops them, with their positions",
        )


def _count_rest(node: Node, info: NodeInfo) -> int | None:
    """Return how many events only an old root has; None if that is not known."""
    with suppress(TickNotFound):
        return int(node.value(_REST, node.queue, info.fenced_tick))
    return None
