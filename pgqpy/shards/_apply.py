"""Bring the databases of a map, and its file, to what a map wants: the way in which keys move."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE
from time import sleep
from typing import Any

from pgqpy._runtime.database import Identity, identify
from pgqpy._runtime.fetch import fetch
from pgqpy._runtime.words import plural
from pgqpy.admin import Admin, GroupAdmin
from pgqpy.connection import Connection, connect
from pgqpy.errors import InvalidShardMap, QueueNotFound, comes_from
from pgqpy.shards._map import HASHES, Shard, ShardMap

#: Seconds between looks whether transactions have ended, or a tick was made.
_LOOK = 0.02

_LOST = (
    "Name the file that the last `pgqpy shards apply` has written; if it is lost, copy that of a"
    " producer or consumer. The first time, name one that does not exist."
)

Document = dict[str, Any]


def apply(wanted: Path, file: Path, say: Callable[[str], None]) -> ShardMap:
    """Give each shard the keys that the map in ``wanted`` says, and write ``file``, the map for
    producers and consumers, with versions and ticks.

    Each step may be the last one of a process that dies: the next call goes on. Reports what it
    does, and what is left to do. Raises InvalidShardMap, ConnectionFailed; before the first change,
    if possible.
    """
    new = _wanted(wanted)
    old = _written(file, wanted) if file.exists() else None
    with ExitStack() as stack:
        change = _Change(new, old, stack, say)
        change.prepare()
        change.remove_drained()
        change.stop_writers()
        change.copy_consumers()
        _write(file, change.document, like=file if file.exists() else wanted)
        change.let_write()
    return ShardMap.load(file)


def _wanted(path: Path) -> Document:
    if not path.exists():
        raise InvalidShardMap(
            f"there is no file {path}: write the map that you want there, and apply it again"
        )
    wanted = ShardMap.load(path)
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    if wanted.queue is None:
        raise InvalidShardMap(f'{path} has no queue: write queue = "..." at the top')
    for name, shard in document["shards"].items():
        if {"version", "after"} & shard.keys():
            raise InvalidShardMap(
                f"{path}: shard {name!r} has a version, or after",
                hint="Give the map that is wanted; these two are written into the other file.",
            )
    return document


def _written(file: Path, wanted: Path) -> Document:
    """Return the map that the last change has written. Any other file stays as it is."""
    if file.samefile(wanted):
        raise InvalidShardMap(
            f"{file} is the map that is wanted, and would be overwritten",
            hint=f"Name another file to write, as in: pgqpy shards apply {wanted} shards.toml",
        )
    ShardMap.load(file)
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    if not all("version" in shard for shard in document["shards"].values()):
        raise InvalidShardMap(
            f"{file} has shards without version: `pgqpy shards apply` has not written it",
            hint=_LOST,
        )
    return document


@dataclass(frozen=True, slots=True)
class _Place:
    """A shard's database, and what it says of itself."""

    conn: Connection
    version: int
    """0: it is no shard yet."""


class _Change:
    """One change of a map."""

    def __init__(
        self, new: Document, old: Document | None, stack: ExitStack, say: Callable[[str], None]
    ) -> None:
        self.queue: str = new["queue"]
        self._say = say
        self._old = ShardMap.of_file(old) if old is not None else None
        self._new = ShardMap.of_file(new)
        #: The new file, of which versions and ticks are not final before they are known.
        self.document = _merged(new, old or {"shards": {}})
        self._moves = set(moves(self._old, self._new)) if self._old is not None else set()
        self._losers = sorted({loser for loser, _ in self._moves})
        self._places: dict[str, _Place] = {}
        #: The databases of shards that are drained, and what to say of those without keys.
        self._drained: list[Connection] = []
        self._removals: list[str] = []
        self._stack = stack

    def prepare(self) -> None:
        """Connect to all databases, and check that the change is possible."""
        if self._old is not None:
            self._old.check_queue(self.queue)
        known = {**(self._old.shards if self._old is not None else {}), **self._new.shards}
        for name in self.document["shards"]:
            self._places[name] = self._place(known[name])
        self._check_databases()
        self._leave_out_drained()
        shards = self.document["shards"]
        changed = {name for pair in self._moves for name in pair}
        for name, place in self._places.items():
            if name in changed or place.version > shards[name].get("version", 1):
                # More than its database has, also after a change that was left half done.
                shards[name]["version"] = max(place.version, shards[name].get("version", 1)) + 1
            shards[name].setdefault("version", 1)
        for loser, gainer in self._moves:
            if (gainer, loser) in self._moves:
                raise InvalidShardMap(
                    f"keys would move from shard {loser!r} to {gainer!r}, and others back",
                    hint=f"Move them in two steps: first apply a map in which {loser!r} loses keys"
                    f" to {gainer!r}, and none go back; when consumers have read it, this one.",
                )
            shards[gainer].setdefault("after", {})[loser] = 1
        self._break_cycles()

    def remove_drained(self) -> None:
        """Make queues of shards that are drained plain ones, and say what keeps the others."""
        for conn in self._drained:
            fetch(conn, _DROP, [self.queue])
        for each in self._removals:
            self._say(each)

    def stop_writers(self) -> None:
        """Refuse producers with the old map in shards that lose keys, and note the ticks up to
        which these keys are there."""
        for name in self._losers:
            self._set_shard(name)
        for name in self._losers:
            conn = self._places[name].conn
            writers = self._writers(conn)
            if writers:
                self._say(f"shard {name}: waiting for {plural(len(writers), 'writer')}")
            while writers & self._writers(conn):
                sleep(_LOOK)
            tick = self._tick(conn)
            self._say(f"shard {name}: the keys that it loses are before tick {tick}")
            for loser, gainer in self._moves:
                if loser == name:
                    self.document["shards"][gainer]["after"][loser] = tick

    def copy_consumers(self) -> None:
        """Register the consumers of a shard that loses keys with those that get them."""
        for loser, gainer in sorted(self._moves):
            source, target = self._places[loser].conn, self._places[gainer].conn
            groups = {
                each.group_name: each for each in GroupAdmin(source).get_group_info(self.queue)
            }
            there = {each.group_name for each in GroupAdmin(target).get_group_info(self.queue)}
            for name in groups.keys() - there:
                group = groups[name]
                GroupAdmin(target).create_group(
                    self.queue,
                    name,
                    key=group.key,
                    partitions=group.partitions,
                    lease=group.lease,
                    park_limit=group.park_limit,
                )
            members = {name for (name,) in fetch(source, _MEMBERS, [self.queue])}
            for consumer in Admin(source).get_consumer_info(self.queue):
                if consumer.consumer_name in members:
                    continue
                group_name, _, number = consumer.consumer_name.rpartition("#")
                if not (number.isdigit() and group_name in groups):
                    name, of_shard, _ = consumer.consumer_name.rpartition(f"@{loser}")
                    name = f"{name}@{gainer}" if of_shard else consumer.consumer_name
                    Admin(target).register_consumer(self.queue, name)

    def let_write(self) -> None:
        """Let producers with the new map write."""
        for name in self._places:
            # Also if it was left undone before: then it is no gainer now.
            self._set_shard(name, gains=bool(self.document["shards"][name].get("after")))
        self._say(f"queue {self.queue}: {plural(len(self._places), 'shard')}")

    def _place(self, shard: Shard) -> _Place:
        with comes_from(shard.dsn):
            conn = self._stack.enter_context(connect(shard.dsn, autocommit=True))
            try:
                Admin(conn).get_queue_info(self.queue)
            except QueueNotFound:
                raise InvalidShardMap(
                    f"the database of shard {shard.name!r} has no queue {self.queue!r}",
                    hint=f"Create it there: pgqpy queue create {self.queue} --dsn DSN",
                ) from None
            name, version = shard.name, 0
            for name, version in fetch(conn, _VERSION, [self.queue]):
                if name != shard.name:
                    raise InvalidShardMap(
                        f"the database of shard {shard.name!r} is that of shard {name!r} already",
                        hint="A database is one shard of a queue.",
                    )
                if self._old is None:
                    raise InvalidShardMap(
                        f"shard {name!r} has version {version} already, but there is no file of a"
                        " map with versions",
                        hint=_LOST,
                    )
        return _Place(conn, version)

    def _check_databases(self) -> None:
        names: dict[Identity, str] = {}
        for name, place in self._places.items():
            first = names.setdefault(identify(place.conn), name)
            if first != name:
                raise InvalidShardMap(
                    f"the database of shard {name!r} is that of shard {first!r} already",
                    hint="A database is one shard of a queue.",
                )

    def _leave_out_drained(self) -> None:
        """Leave out shards that have no keys and are read."""
        if self._old is None:
            return
        for name in sorted(self._old.shards.keys() - self._new.shards.keys()):
            shard, conn = self._old.shards[name], self._places[name].conn
            if shard.hashes or shard.keys:
                state = "it loses all keys; when it is drained, apply again"
            elif rest := self._rest(conn):
                state = f"not drained yet, it has events for {', '.join(rest)}; apply again later"
            else:
                state = "drained, and removed"
                self._drained.append(conn)
                del self.document["shards"][name], self._places[name]
                for each in self.document["shards"].values():
                    each.get("after", {}).pop(name, None)
            self._removals.append(f"shard {name}: {state}")

    def _rest(self, conn: Connection) -> list[str]:
        """Return the consumers and groups for which events are left: in the queue, parked, or to
        come later. Ticks without events do not count."""
        # Also before the tick: maintenance may move them into the queue, behind it.
        later = self._later(conn)
        tick = self._tick(conn)
        rest = []
        for each in Admin(conn).get_consumer_info(self.queue):
            # None: a member that has no batch.
            if each.last_tick is not None and each.last_tick < tick:
                values = [self.queue, each.consumer_name, each.last_tick, tick]
                ((events,),) = fetch(conn, _RANGE, values)
                some = f"select exists ({events.removesuffix(' order by 1')})"
                if fetch(conn, some.encode())[0][0]:
                    rest.append(each.consumer_name)
        groups = GroupAdmin(conn).get_group_info(self.queue)
        rest += [f"{each.group_name} (parked)" for each in groups if each.parked_events]
        later = max(later, self._later(conn))
        return [*rest, f"later ({later} delayed, or to be retried)"] if later else rest

    def _later(self, conn: Connection) -> int:
        ((later,),) = fetch(conn, _LATER, [self.queue])
        return int(later)

    def _break_cycles(self) -> None:
        """Leave out ticks that all consumers have finished, if shards waited for each other."""
        try:
            ShardMap.of_file(self.document)
        except InvalidShardMap:
            for gainer, shard in self.document["shards"].items():
                for loser, tick in [*shard.get("after", {}).items()]:
                    moves_now = (loser, gainer) in self._moves
                    if not moves_now and self._all_finished(self._places[loser].conn, tick):
                        del shard["after"][loser]
            try:
                ShardMap.of_file(self.document)
            except InvalidShardMap as error:
                raise InvalidShardMap(
                    f"keys would move back before all consumers have read them: {error.message}",
                    hint="Apply again when `pgqpy shards check` shows no waiting consumers.",
                ) from None

    def _set_shard(self, name: str, *, gains: bool = False) -> None:
        version = self.document["shards"][name]["version"]
        fetch(self._places[name].conn, _SET, [self.queue, name, version, gains])

    def _writers(self, conn: Connection) -> set[str]:
        return {writer for (writer,) in fetch(conn, _WRITERS, [self.queue])}

    def _tick(self, conn: Connection) -> int:
        """Return a tick that has all that is committed now."""
        admin = Admin(conn)
        ((now,),) = fetch(conn, b"select pg_catalog.txid_current()")
        while True:
            admin.force_tick(self.queue)
            admin.ticker(self.queue)
            for (tick,) in fetch(conn, _TICK, [self.queue, now]):
                return int(tick)
            sleep(_LOOK)  # another ticker has just made one

    def _all_finished(self, conn: Connection, tick: int) -> bool:
        admin, groups = Admin(conn), GroupAdmin(conn)
        found = admin.get_consumer_info(self.queue)
        # None: a member that has no batch.
        names = [each.consumer_name for each in found if each.last_tick is not None]
        names += [each.group_name for each in groups.get_group_info(self.queue)]
        return all(fetch(conn, _FINISHED, [self.queue, name, tick])[0][0] for name in names)


def moves(old: ShardMap, new: ShardMap) -> Iterator[tuple[str, str]]:
    """Yield the pairs of shards of which the second has keys that the first had."""
    edges = {0} | {
        edge
        for each in (old, new)
        for shard in each.shards.values()
        for pair in shard.hashes
        for edge in pair
    }
    keys = {key for each in (old, new) for shard in each.shards.values() for key in shard.keys}
    for before, after in (
        *((old.shard_of_hash(edge), new.shard_of_hash(edge)) for edge in edges - {HASHES}),
        *((old.shard_for(key), new.shard_for(key)) for key in keys),
    ):
        if before.name != after.name:
            yield before.name, after.name


def _merged(new: Document, old: Document) -> Document:
    """Return the wanted map with the versions and ticks of the old one. Shards that are gone stay,
    without keys."""
    shards: dict[str, Document] = {}
    for name, shard in new["shards"].items():
        before = old["shards"].get(name, {})
        shards[name] = shard | {key: before[key] for key in ("version", "after") if key in before}
    for name, shard in old["shards"].items():
        if name not in shards:
            shards[name] = shard | {"hashes": [], "keys": []}
    return {"queue": new["queue"], "shards": shards}


def _write(file: Path, document: Document, *, like: Path) -> None:
    """Replace the file at once: a reader has the old one or the new one. As it may have passwords,
    it can be read by those who can read the other file, at no time by others."""
    lines = [
        "# Written by `pgqpy shards apply`; change the map that it is given.",
        f"queue = {_toml(document['queue'])}",
    ]
    for name, shard in document["shards"].items():
        lines.append(f"\n[shards.{_toml(name)}]")
        lines += [f"{key} = {_toml(value)}" for key, value in shard.items() if value != {}]
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write("\n".join(lines) + "\n")
    temporary.chmod(S_IMODE(like.stat().st_mode))
    temporary.replace(file)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml(key)} = {each}' for key, each in value.items())} }}"
    # JSON's texts, numbers and arrays are TOML's, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


_VERSION = b"select shard_name, shard_version from pgq.get_shard_info(%s)"
_SET = b"select pgq.set_shard(%s, %s, %s, %s)"
_DROP = b"select pgq.drop_shard(%s)"
_WRITERS = b"select * from pgq.shard_writers(%s)"
_FINISHED = b"select pgq.has_finished(%s, %s, %s)"
#: Members of cooperating consumers, which have the consumer's sub_id.
_MEMBERS = b"""
select c.co_name
  from pgq.registration r
  join pgq.queue q on q.queue_id = r.sub_queue
  join pgq.consumer c on c.co_id = r.sub_consumer
 where q.queue_name = %s
   and exists (
       select from pgq.registration main
        where main.sub_id = r.sub_id
          and main.reg_id < r.reg_id)
"""
_LATER = b"select delayed_events + retry_events from pgq.get_delayed_info(%s)"
_RANGE = b"""
select pgq.snapshot_range_sql(queue, last, pgq.get_tick_snapshot(queue, last),
                              tick, pgq.get_tick_snapshot(queue, tick), name)
  from (values (%s, %s, %s::bigint, %s::bigint)) v (queue, name, last, tick)
"""
_TICK = b"""
select t.tick_id
  from pgq.tick t
  join pgq.queue q on q.queue_id = t.tick_queue
 where q.queue_name = %s
   and pg_catalog.txid_visible_in_snapshot(%s, t.tick_snapshot)
 order by t.tick_id
 limit 1
"""
