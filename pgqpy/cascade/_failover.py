"""A branch becomes the root in place of one that is dead."""

from __future__ import annotations

from pgqpy.cascade._manage import cascaded, change_provider, path_up, set_paused, wait_for_tick
from pgqpy.cascade._nodes import NodeInfo, Nodes
from pgqpy.cascade._status import fence_old_roots, newest_root
from pgqpy.cascade._takeover import (
    Progress,
    Takeover,
    check_restricted,
    complete,
    promotable,
    tick_time,
)
from pgqpy.errors import CascadeError

#: How many ids of ticks, and of events, a new root leaves out: the dead one may have given them.
_GAP = 100_000_000

_STORE_TICK = """
    select pgq.ticker(q.queue_name, %s, pg_catalog.now(), t.tick_event_seq + %s)
      from pgq.queue q
     cross join lateral (select tick_event_seq from pgq.tick
                          where tick_queue = q.queue_id
                          order by tick_id desc limit 1) t
     where q.queue_name = %s
"""

_KNOWN = """
    select max(t.tick_id)
      from pgq.queue q
      join pgq.tick t on t.tick_queue = q.queue_id
     where q.queue_name = %s
       and t.tick_id <= %s
"""


def take_over_dead_root(
    nodes: Nodes,
    new_root: str,
    *,
    without: tuple[str, ...] = (),
    timeout: float = 60,
    progress: Progress = lambda step: None,
) -> Takeover:
    """Make a branch the root, because the root is dead; the others follow it.

    If another branch has more, the new root first gets that from it. All other nodes must be
    asked, for they may have more, too: but for those in ``without``. Events that had not left the
    root are lost until it is back: then it is fenced, and its rest is counted. Raises CascadeError.
    """
    nodes.node(new_root)
    for name in without:
        nodes.location(name)
    fence_old_roots(nodes, nodes.infos())
    infos = nodes.infos()
    new = promotable(infos, new_root)
    dead = nodes.locations.keys() - infos.keys()
    root = newest_root(infos)
    if root is not None and root.name != new_root:
        raise CascadeError(
            f"node {root.name} is the root, and it works",
            hint="take over without --dead; no event is lost then",
        )
    old = _dead_root(nodes, infos, new, dead)
    check_restricted(nodes, infos, new, old)
    unknown = {name for name in dead - {old, *without} if not nodes.locations[name].dead}
    if unknown and root is None:
        raise CascadeError(
            f"{', '.join(sorted(unknown))} cannot be asked, and may have more events",
            hint="wait for them; or --without NODE leaves one out",
        )
    orphans = [name for name, info in infos.items() if _is_orphan(info, infos, new_root)]
    ahead: dict[str, int] = {}
    last_tick = new.last_tick
    if root is None:
        progress("hold")
        for name in {new_root, *orphans}:
            # Its worker may be copying from a root that only this program cannot reach.
            set_paused(nodes, name, True)
        _catch_up(nodes, new_root, timeout, progress)
        ahead = _pass_leaves(nodes, new_root, progress)
        last_tick = nodes.node(new_root).info().last_tick
        _leave_gap(nodes, new_root, progress)
        progress("promote")
        nodes.node(new_root).call("promote_branch", allow=(301,))
    _gather(nodes, new_root, old, progress)
    complete(nodes, new_root, progress)
    return Takeover(
        new_root,
        old,
        last_tick,
        tick_time(nodes, new_root, last_tick),
        None,
        ahead,
        tuple(sorted(dead)),
    )


def _is_orphan(info: NodeInfo, infos: dict[str, NodeInfo], new_root: str) -> bool:
    """Whether a node's provider cannot give it events any more."""
    provider = infos.get(info.provider or "")
    return (
        info.name != new_root
        and info.type != "root"
        and (provider is None or provider.fenced_by is not None)
    )


def _dead_root(
    nodes: Nodes, infos: dict[str, NodeInfo], new: NodeInfo, dead: set[str]
) -> str | None:
    """Return the node above the new root that cannot be asked; None if it is the root already."""
    path, above = path_up(infos, new.name)
    if new.type == "root":
        return None
    if above not in dead:
        raise CascadeError(
            f"no node above {new.name} is dead: {' <- '.join([*path, above or '?'])}",
            hint="a takeover may have been killed: run that again",
        )
    return above


def _catch_up(nodes: Nodes, new_root: str, timeout: float, progress: Progress) -> None:
    """Have the new root get what the newest branch has more than it."""
    infos = nodes.infos()
    newest = max(
        (info for info in infos.values() if info.type == "branch"), key=lambda info: info.last_tick
    )
    if newest.last_tick <= infos[new_root].last_tick:
        return
    progress("catch up")
    change_provider(nodes, new_root, newest.name)
    set_paused(nodes, new_root, False, wait=0)
    node = nodes.node(new_root)
    if not wait_for_tick(node, newest.last_tick, timeout):
        raise CascadeError(
            f"node {newest.name} is newer than {new_root}, which did not get its events in time:"
            f" tick {newest.last_tick}, {new_root} has tick {node.info().last_tick}",
            hint=f"is the worker of {new_root} running? Or take over with {newest.name}",
        )


def _pass_leaves(nodes: Nodes, new_root: str, progress: Progress) -> dict[str, int]:
    """Give the new root the last tick of leaves that have more than it, so that they can follow."""
    infos = nodes.infos()
    last = infos[new_root].last_tick
    ahead = {name: info.last_tick for name, info in infos.items() if info.last_tick > last}
    if ahead:
        progress("pass leaves")
        nodes.node(new_root).rows(_STORE_TICK, max(ahead.values()), 0, nodes.queue)
    return ahead


def _leave_gap(nodes: Nodes, new_root: str, progress: Progress) -> None:
    """Leave out ids: those of the dead root's rest must not mean other ticks and events here."""
    progress("leave a gap")
    node = nodes.node(new_root)
    tick = node.info().last_tick + _GAP
    node.rows(_STORE_TICK, tick, _GAP, nodes.queue)
    stored = node.tick(tick)
    assert stored is not None
    for name, other in nodes.reachable():
        if other.is_ours and nodes.infos()[name].type != "leaf":
            other.rows(
                "select pgq_node.leave_gap(%s, %s, %s)", nodes.queue, stored["tick_event_seq"], _GAP
            )


def _gather(nodes: Nodes, new_root: str, old: str | None, progress: Progress) -> None:
    """Have the nodes whose provider is dead follow the new root, and all workers go on."""
    infos = nodes.infos()
    for name, info in infos.items():
        if _is_orphan(info, infos, new_root):
            progress("gather")
            change_provider(nodes, name, new_root)
            set_paused(nodes, name, False, wait=0)
        for consumer, state in cascaded(nodes.node(name), but=info.worker).items():
            if state["provider_node"] in infos:
                continue
            # It may have read more of the dead root; what the new one took comes after that.
            known = nodes.node(new_root).value(_KNOWN, nodes.queue, state["last_tick_id"])
            if known is not None and known < state["last_tick_id"]:
                nodes.node(name).call("set_consumer_completed", consumer, known)
            change_provider(nodes, name, new_root, consumer=consumer)
    progress("mark")
    if old is not None:
        for _, node in nodes.reachable():
            node.call("register_location", old, None, True)
    set_paused(nodes, new_root, False, wait=0)
