"""Making a node: of a database that is none yet."""

from __future__ import annotations

import re
from contextlib import closing, suppress

import pgqpy.dsn
from pgqpy._runtime.database import identify
from pgqpy.cascade._location import usable
from pgqpy.cascade._manage import check_provider
from pgqpy.cascade._nodes import Node, NodeInfo, Nodes, NodeType, open_node, where
from pgqpy.errors import CascadeError, ConnectionFailed, InvalidDsn, comes_from

_SET_TICK = """
    update pgq.tick t
       set tick_time = %s, tick_event_seq = %s
      from pgq.queue q
     where q.queue_id = t.tick_queue
       and q.queue_name = %s
       and t.tick_id = %s
    returning t.tick_id
"""


def create_node(
    queue: str,
    name: str,
    node_type: NodeType,
    dsn: str | None = None,
    *,
    provider: str | None = None,
    location: str | None = None,
    worker: str | None = None,
    combined_queue: str | None = None,
) -> bool:
    """Make the database of ``dsn`` a node of the queue; return False if it was one already.

    ``provider`` is the DSN of the node from which a branch or leaf gets its events: those that
    nodes keep, and all later ones. ``location`` is the DSN by which other nodes find this one, by
    default ``dsn``. Raises CascadeError.
    """
    dsn = pgqpy.dsn.resolve(dsn)
    location = location or dsn
    _check_arguments(name, node_type, provider, location, combined_queue)
    worker = worker or f"{name}_worker"
    here = open_node(queue, dsn)
    with closing(here.conn):
        made = here.rows("select * from pgq_node.get_node_info(%s)", queue)[0]
        if made["node_name"] is not None:
            if (made["node_name"], made["node_type"]) == (name, node_type):
                if provider not in (None, made["provider_location"]):
                    _check_follows(queue, made, provider)
                return False
            raise CascadeError(
                f"{where(dsn)} is a node of queue '{queue}' already:"
                f" {made['node_type']} {made['node_name']}",
                hint="a database is one node of a queue; pgqpy node drop ends that",
            )
        _check_location(here, location)
        if provider is None:
            here.call("register_location", name, location, False)
            here.call("create_node", "root", name, worker, None, None, None)
            return True
        if combined_queue is not None:
            _check_combined(here, combined_queue)
        with Nodes(queue, provider) as nodes:
            _check_new(here, name, node_type, location, nodes)
            _join(here, nodes, name, node_type, location, worker, combined_queue)
    return True


def _check_follows(queue: str, made: dict[str, str], provider: str | None) -> None:
    """Raise if a node that exists gets its events from another node than this one."""
    with Nodes(queue, provider) as nodes:
        above = nodes.local.name
    if above != made["provider_node"]:
        raise CascadeError(
            f"node {made['node_name']} exists already, and follows {made['provider_node']}, not"
            f" {above}",
            hint=f"pgqpy node change-provider {queue} {made['node_name']} {above}",
        )


def _check_arguments(
    name: str, node_type: str, provider: str | None, location: str, combined_queue: str | None
) -> None:
    if not re.fullmatch(r"[^\s.][^\s]{0,199}", name):
        raise CascadeError(
            f"{name!r} cannot be the name of a node",
            hint="a name has up to 200 characters, no spaces, and no dot at its start",
        )
    if (node_type == "root") is not (provider is None):
        raise CascadeError(
            "a root has no provider"
            if provider
            else f"a {node_type} needs a provider: the DSN of a root or branch",
            hint="leave out --provider" if provider else "give it with --provider",
        )
    if combined_queue is not None and node_type != "leaf":
        raise CascadeError("only a leaf has a combined queue")
    if provider is not None:
        _check_dsn("provider", provider)
    _check_dsn("location", location)
    if not pgqpy.dsn.parse(usable(location)):
        raise CascadeError(
            "other nodes need the location of this one",
            hint="give the DSN by which they find it: --location",
        )


def _check_dsn(option: str, dsn: str) -> None:
    with suppress(InvalidDsn):
        pgqpy.dsn.parse(dsn)
        return
    raise CascadeError(
        f"the {option} is no connection string",
        hint=f"--{option} takes the DSN of the node's database, not its name",
    )


def _check_location(here: Node, location: str) -> None:
    """Raise unless the location leads to the database that the node is made in."""
    if not _leads_to(here, open_node(here.queue, location)):
        raise CascadeError(
            f"the location leads to another database: {where(location)}",
            hint="give the DSN by which other nodes find the database of --dsn",
        )


def _leads_to(here: Node, there: Node) -> bool:
    """Whether a connection, which is closed, leads to the database that the node is made in."""
    with closing(there.conn), comes_from(there.dsn):
        return identify(there.conn) == identify(here.conn)


def _check_combined(here: Node, queue: str) -> None:
    if here.value("select node_type from pgq_node.get_node_info(%s)", queue) is None:
        raise CascadeError(
            f"{where(here.dsn)} has no node of the combined queue '{queue}'",
            hint=f"make it first: pgqpy node create {queue} root NODE",
        )


def _check_new(here: Node, name: str, node_type: str, location: str, nodes: Nodes) -> None:
    """Raise unless a node with this name and location can be added below the provider."""
    check_provider(nodes.local)
    for each in nodes.locations.values():
        try:
            is_here = each.dsn == location or _leads_to(here, nodes.connect(usable(each.dsn)))
        except (ConnectionFailed, CascadeError):
            is_here = False
        if is_here and each.name != name:
            raise CascadeError(
                f"{where(location)} is known as node {each.name} already",
                hint=f"make it with this name, or drop that: pgqpy node drop {nodes.queue}"
                f" {each.name} --dead",
            )
        if each.name == name and not is_here:
            raise CascadeError(
                f"queue '{nodes.queue}' has a node {name} already: {where(each.dsn)}",
                hint="choose another name, or drop that node: pgqpy node drop",
            )
    if node_type != "leaf" and here.rows("select * from pgq.get_queue_info(%s)", nodes.queue):
        raise CascadeError(
            f"{where(here.dsn)} has a queue '{nodes.queue}' of its own",
            hint="a branch makes its queue itself; drop this one, or choose another database",
        )
    versions = [each.value("select pgq_node.version()") for each in (here, nodes.here)]
    ours, theirs = ((each or "").split(".")[0] for each in versions)
    if ours != theirs:
        raise CascadeError(
            f"the versions of pgq_node differ: {versions[0]} here, {versions[1]} at the provider",
            hint="upgrade the older one: pgqpy migrate --node",
        )


def _join(
    here: Node,
    nodes: Nodes,
    name: str,
    node_type: str,
    location: str,
    worker: str,
    combined_queue: str | None,
) -> None:
    """Register the node above it, from the root down, and make it."""
    provider, root = nodes.local.name, _root_above(nodes, nodes.local)
    at_root = nodes.node(root)
    for above in {id(each): each for each in (at_root, nodes.here)}.values():
        above.call("register_location", name, location, False)
    if name in nodes.here.subscribers():
        # From an attempt that was killed; its position may be too old by now.
        nodes.here.call("unregister_subscriber", name)
    start = nodes.here.call("register_subscriber", name, worker, None)["global_watermark"]
    here.call("register_location", name, location, False)
    for each in at_root.locations():
        here.call("register_location", each.name, each.dsn, each.dead)
    with here.conn.transaction():
        here.call("create_node", node_type, name, worker, provider, start, combined_queue)
        if node_type == "branch" and (tick := nodes.here.tick(start)):
            # It may take over before it has copied another tick that the old root has.
            here.rows(_SET_TICK, *tick.values(), nodes.queue, start)
        if nodes.local.restricted and node_type == "branch":
            # Before it has events.
            here.rows("select pgq.restrict_queue(%s)", nodes.queue)
    if here.is_ours:
        here.call("learn_epoch", nodes.node(root).info().epoch)


def _root_above(nodes: Nodes, info: NodeInfo) -> str:
    """Return the root above a node. Raises CascadeError for a cycle."""
    path = [info.name]
    while info.type != "root":
        if info.provider is None or info.provider in path:
            circle = " <- ".join([*path, info.provider or info.name])
            raise CascadeError(
                f"node {path[0]} has no root above it: {circle}",
                hint="a takeover may have been killed: run it again",
            )
        info = nodes.node(info.provider).info()
        path.append(info.name)
    return info.name
