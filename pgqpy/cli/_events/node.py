"""``pgqpy node``: the nodes of cascaded queues, and which of them is the root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, LiteralString

import click

import pgqpy.dsn
from pgqpy._runtime.words import duration, plural
from pgqpy.cascade import (
    Nodes,
    NodeStatus,
    NodeType,
    Takeover,
    change_provider,
    create_node,
    drop_node,
    set_paused,
    status,
    take_over_dead_root,
    takeover,
)
from pgqpy.cli._base.arguments import TEXT, Name, queue_argument
from pgqpy.cli._base.command import Group, options, seconds_option, watch_options
from pgqpy.cli._base.database import interruptible
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import (
    Columns,
    console,
    json_option,
    make_table,
    print_items,
    print_json,
    say,
    show,
    shown,
    wants_json,
)

_NAMES: LiteralString = "select node_name from pgq_node.node_location where queue_name = %s"

#: Messages for the steps of a takeover.
STEPS = {
    "catch up": "waiting until {new} has almost caught up",
    "writers": "waiting for open transactions",
    "gather": "giving other nodes {new} as their provider",
    "pause": "writes are paused",
    "hold": "pausing the workers",
    "promote": "{new} becomes the root",
}

#: The characters of a worker's error in the tree; --json has it in full.
MOST_OF_AN_ERROR = 90

NODE = Name(
    "node",
    lambda admin, typed: (
        name for (name,) in admin.conn.execute(_NAMES, [typed.get("queue")]).fetchall()
    ),
)
node_arguments = options(queue_argument, click.argument("name", metavar="NODE", type=NODE))
timeout_option = seconds_option("--timeout", 60, "How long to wait until a node has caught up.")


@click.group(cls=Group)
def node() -> None:
    """Cascaded queues: exact copies in other databases, and which is the root.

    A queue has one root, which takes events; branches and leaves get them from it or from another
    branch, by a worker: `pgqpy run cascade`. --dsn is the database of any node.
    """


@contextmanager
def _nodes(queue: str, dsn: str) -> Iterator[Nodes]:
    with interruptible(), Nodes(queue, dsn) as nodes:
        yield nodes


@node.command("create", role="pgq_admin")
@queue_argument
@click.argument("node_type", metavar="TYPE", type=click.Choice(["root", "branch", "leaf"]))
@click.argument("name", metavar="NODE", type=TEXT)
@click.option("--provider", type=TEXT, metavar="DSN", help="The node to get events from.")
@click.option(
    "--location", type=TEXT, metavar="DSN", help="How other nodes find it; default: --dsn."
)
@click.option("--worker", type=TEXT, help="Its worker's name as consumer; NODE_worker.")
@click.option("--combined-queue", type=TEXT, help="Of a leaf: the queue that its events go into.")
def create(
    dsn: str, queue: str, node_type: NodeType, name: str, location: str | None, **how: Any
) -> None:
    """Make the database a node of a queue.

    A root takes events; its queue may exist already. A branch is a copy of the queue, with the
    events that nodes keep; it may become the root, and others may get their events from it. A leaf
    processes events and keeps none. Run it again if it was interrupted.

    The provider is given as the DSN of its database.

    Examples:
      pgqpy node create orders root a --dsn 'host=a.example dbname=shop'
      pgqpy node create orders branch b --dsn service=b --provider 'host=a.example dbname=shop'
    """
    with interruptible():
        made = create_node(queue, name, node_type, dsn, location=location, **how)
    if not made:
        say(f"node {name} of queue {queue} exists already")
        return
    if node_type == "root":
        say(f"made {name} the root of queue {queue}")
    else:
        keeps = "" if node_type == "leaf" else "; its worker copies the events"
        say(f"made {node_type} {name} of queue {queue}{keeps}")
    say("`pgqpy run cascade` runs its worker: if its file lacks this database, add to `nodes`")
    say(f"    {json.dumps(_shareable(location or dsn), ensure_ascii=False)},")


def _shareable(dsn: str) -> str:
    """Return the connection string as it is, or without its password."""
    secret = any("password" in key for key in pgqpy.dsn.parse(dsn))
    return pgqpy.dsn.redact(dsn) if secret else dsn


@node.command("status", role="pgq_reader")
@queue_argument
@watch_options
@json_option
def show_status(dsn: str, queue: str, watch: bool, every: float) -> None:
    """Show the nodes as a tree.

    Each is below its provider, and is asked, wherever it is, how far behind the root it is. An old
    root that is back after another one took over is fenced: it refuses events from then on.

    The exit code is 1 if a node cannot be asked, has no root or has failed.

    Examples:
      pgqpy node status orders --watch
    """
    with interruptible():
        draw = partial(make_table, columns=COLUMNS)
        found = show(lambda: _read(queue, dsn), draw, every=every if watch else None)
    if any(each.problem or each.error for each in found):
        click.get_current_context().exit(1)


def _read(queue: str, dsn: str) -> list[NodeStatus]:
    with _nodes(queue, dsn) as nodes:
        return status(nodes)


def _state(node: NodeStatus) -> str:
    if node.type is None:
        return f"{'dead' if node.dead else 'cannot be asked'}: {node.problem}"
    words = [
        "paused" if node.paused else None,
        "marked dead" if node.dead else None,
        node.problem,
        None if node.rest is None else f"{plural(node.rest, 'event')} nowhere else",
        None if node.error is None else f"failed: {_in_short(node.error)}",
    ]
    return "; ".join(word for word in words if word) or "ok"


def _in_short(error: str) -> str:
    """Return what a worker failed at, without its class, libpq's host and port, and hints."""
    text = error.partition(" DETAIL: ")[0].partition(" HINT: ")[0]
    kind, _, said = text.partition(": ")
    if said and kind.isidentifier():
        text = said
    if kind == "ConnectionFailed":
        text = text.rpartition("failed: ")[2].removeprefix("FATAL:").strip()
    return text if len(text) <= MOST_OF_AN_ERROR else f"{text[: MOST_OF_AN_ERROR - 3].rstrip()}..."


#: The columns of the tree.
COLUMNS: Columns = {
    "Node": lambda node: f"{'  ' * node.depth}{node.name}",
    "Type": lambda node: node.type or "?",
    "Tick": "last_tick",
    "Behind": "events_behind",
    "Lag": "lag",
    "Watermark": "watermark",
    "State": _state,
}


@node.command("pause", role="pgq_admin")
@node_arguments
def pause(dsn: str, queue: str, name: str) -> None:
    """Pause the worker of a node.

    It copies nothing until it is resumed. Nodes below it get no events meanwhile, and all nodes
    keep their events for it. Pausing the root stops no producer and no copy: the root only tells
    the other nodes no longer which events they need not keep.

    Examples:
      pgqpy node pause orders b
    """
    _set_paused(dsn, queue, name, paused=True)


@node.command("resume", role="pgq_admin")
@node_arguments
def resume(dsn: str, queue: str, name: str) -> None:
    """Have the worker of a node go on.

    It copies what has come meanwhile, from the tick at which it was paused.

    Examples:
      pgqpy node resume orders b
    """
    _set_paused(dsn, queue, name, paused=False)


def _set_paused(dsn: str, queue: str, name: str, *, paused: bool) -> None:
    with _nodes(queue, dsn) as nodes:
        noticed = set_paused(nodes, name, paused)
        is_root = nodes.node(name).info().type == "root"
    word = "paused" if paused else "resumed"
    say(f"{word} node {name}" + ("" if noticed else "; its worker is not running, it seems"))
    if paused and is_root:
        say("it is the root: producers and copies go on; all nodes keep their events meanwhile")


@node.command("change-provider", role="pgq_admin")
@node_arguments
@click.argument("provider", type=NODE)
@click.option("--consumer", type=TEXT, help="Not the node's worker, but this cascaded consumer.")
@timeout_option
def provide(
    dsn: str, queue: str, name: str, provider: str, consumer: str | None, timeout: float
) -> None:
    """Have a node get its events from another.

    It goes on at its tick, which the new provider must have: if it is behind, it is waited for.

    Examples:
      pgqpy node change-provider orders c b
    """
    with _nodes(queue, dsn) as nodes:
        changed = change_provider(nodes, name, provider, consumer=consumer, wait=timeout)
    what = f"consumer {consumer} of node {name}" if consumer else f"node {name}"
    say(f"{what} {'now gets' if changed else 'already gets'} its events from {provider}")


@node.command("takeover", role="pgq_admin")
@queue_argument
@click.argument("name", metavar="NEW_ROOT", type=NODE)
@click.option("--dead", is_flag=True, help="The root is dead, and cannot be asked.")
@click.option(
    "--without",
    type=NODE,
    multiple=True,
    metavar="NODE",
    help="With --dead: do not ask this node either. May be given several times.",
)
@seconds_option("--max-pause", 10, "Give up if writes would be paused for longer.")
@timeout_option
@json_option
def take_over(
    dsn: str,
    queue: str,
    name: str,
    dead: bool,
    without: tuple[str, ...],
    max_pause: float,
    timeout: float,
) -> None:
    """Make a branch the root.

    The other nodes follow it. Planned, no event is lost or doubled: writes are paused while the
    last events are copied, and producers then write to the new root. With --dead, the newest branch
    gives its events to NEW_ROOT first; events that had not left the old root are lost until it is
    back. Run it again if it was interrupted. With the present root as NEW_ROOT, an interrupted
    takeover is given up.

    Examples:
      pgqpy node takeover orders b
      pgqpy node takeover orders b --dead --dsn 'host=b.example dbname=shop'
    """
    if without and not dead:
        raise click.UsageError("--without is for --dead.")

    def progress(step: str) -> None:
        if step in STEPS and not wants_json():
            console(stderr=True).print(STEPS[step].format(new=name))

    with _nodes(queue, dsn) as nodes:
        if dead:
            done = take_over_dead_root(
                nodes, name, without=without, timeout=timeout, progress=progress
            )
        else:
            done = takeover(nodes, name, timeout=timeout, max_pause=max_pause, progress=progress)
    if wants_json():
        print_json(done)
    else:
        _tell(queue, done, dead)


def _tell(queue: str, done: Takeover, dead: bool) -> None:
    after = "" if done.old_root is None else f" after {done.old_root}"
    paused = "" if done.paused is None else f"; writes were paused for {duration(done.paused)}"
    say(f"{done.new_root} is the root of queue {queue}{after}{paused}")
    if dead and done.old_root is not None:
        made = shown(done.last_tick_time)
        say(
            f"its last tick of {done.old_root} is {done.last_tick}, made {made}; later events are"
            f" there only: `pgqpy node status {queue}` counts them when {done.old_root} is back"
        )
    for leaf, tick in done.ahead.items():
        say(f"leaf {leaf} has processed up to tick {tick}, which no branch had")
    if done.left:
        say(f"not told, for they cannot be asked: {', '.join(done.left)}")


@node.command("drop", role="pgq_admin")
@node_arguments
@click.option("--dead", is_flag=True, help="It cannot be asked, and will not come back.")
@click.option("--force", is_flag=True, help="Also if consumers, or events, are lost with it.")
def drop(dsn: str, queue: str, name: str, dead: bool, force: bool) -> None:
    """Drop a node, with its copy of the queue.

    Its provider does not keep events for it any more. A node from which others get their events is
    not dropped, nor is the root while there are others.

    Examples:
      pgqpy node drop orders c
      pgqpy node drop orders c --dead
    """
    with _nodes(queue, dsn) as nodes:
        drop_node(nodes, name, dead=dead, force=force)
    say(f"dropped node {name} of queue {queue}")


@node.command("rest", role="pgq_admin")
@node_arguments
@json_option
def rest(dsn: str, queue: str, name: str) -> None:
    """List what only an old root has.

    These are the events that it took after the last tick that the new root has of it.

    With --json one object a line, which `pgqpy event insert --file` takes.

    Examples:
      pgqpy node rest orders a --json > rest.jsonl
    """
    with _nodes(queue, dsn) as nodes:
        found, info = nodes.node(name), nodes.node(name).info()
        if info.fenced_by is None:
            raise CliError(
                f"node {name} is not an old root that was fenced",
                f"pgqpy node status {queue} shows the nodes, and fences old roots",
            )
        rows = found.rows(
            "select ev_id as id, ev_time as time, ev_type as type, ev_data as data,"
            " ev_extra1 as extra1, ev_extra2 as extra2, ev_extra3 as extra3, ev_extra4 as extra4"
            " from pgq_node.get_rest_events(%s, %s) where (ev_type like 'pgq.%%') is not true",
            queue,
            info.fenced_tick,
        )
    print_items(
        rows,
        {"Id": "id", "Time": "time", "Type": "type", "Data": "data"},
        empty=f"the other nodes have all events of {name}",
        each_a_line=True,
    )
