"""The shard map: which database has which part of a logical queue."""

from __future__ import annotations

import os
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from pgqpy import dsn as dsns
from pgqpy.errors import InvalidDsn, InvalidShardMap, translate_errors

#: The number of hashes: 0 to 65535.
HASHES = 65_536

_KEYS = ("dsn", "hashes", "keys", "version", "after")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")

#: Hashes from the first to the last, which is exclusive.
Range = tuple[int, int]


def shard_hash(key: str) -> int:
    """Return the hash of a key: the first two bytes of the SHA-256 of its UTF-8."""
    return int.from_bytes(sha256(key.encode()).digest()[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A database with a part of the queue."""

    name: str
    dsn: str = field(repr=False)
    """The connection string."""
    hashes: tuple[Range, ...] = ()
    """The ranges of hashes whose keys it has. None: only ``keys``, or it is being drained."""
    keys: frozenset[str] = frozenset()
    """Keys that it has whatever their hash."""
    version: int = 1
    """Counts the changes of what it has. Its database refuses producers that have another."""
    after: Mapping[str, int] = field(default_factory=dict)
    """Names of shards, each with a tick: a consumer finishes these ticks there before it reads
    this shard."""


@dataclass(frozen=True)
class ShardMap:
    """The shards of a logical queue. Each key belongs to exactly one.

    Raises InvalidShardMap if that is not so, or if anything else in it makes no sense.
    """

    shards: Mapping[str, Shard]
    """By name."""
    queue: str | None = None
    """The name that the queue has in each of the databases. None: it is a map for any queue, in
    which no shard may have ``after``, since ticks are a queue's."""

    def __post_init__(self) -> None:
        if not self.shards:
            raise InvalidShardMap("a shard map needs a shard")
        self._check_keys()
        self._check_hashes()
        self._check_after()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a map from a TOML file."""
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidShardMap(
                f"cannot read {path}: {error.strerror}",
                hint=f"pgqpy shards apply WANTED {path} writes it.",
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidShardMap(f"{path} is not valid TOML: {error}") from error
        try:
            return cls.of_file(document)
        except InvalidShardMap as error:
            raise InvalidShardMap(f"{path}: {error.message}", hint=error.hint) from None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Read a map from a dict like that of a file: ``{"shards": {"a": {"dsn": ...}}}``.

        Environment variables are filled in only in files: others may have written the dict.
        """
        return cls._parse(document, _no_variables)

    @classmethod
    def of_file(cls, document: Mapping[str, Any]) -> Self:
        """Read a map from what was in a file, with environment variables filled in."""
        return cls._parse(document, _fill)

    @classmethod
    def _parse(cls, document: Mapping[str, Any], fill: Callable[[str, str], str]) -> Self:
        _refuse_unknown("a shard map", document, ("queue", "shards"))
        shards, queue = document.get("shards", {}), document.get("queue")
        if not isinstance(shards, Mapping):
            raise InvalidShardMap("shards must be tables: [shards.NAME]")
        if not (queue is None or (isinstance(queue, str) and queue)):
            raise InvalidShardMap(f"queue must be a text, not {queue!r:.80}")
        return cls({name: _shard(name, each, fill) for name, each in shards.items()}, queue)

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]], *, queue: str | None = None) -> Self:
        """Read a map from rows with ``name``, ``dsn``, and the other keys of a shard, or some of
        them; None is like a missing one."""
        shards: dict[str, Any] = {}
        for row in rows:
            given = {key: value for key, value in row.items() if value is not None}
            name = given.pop("name", None)
            if not isinstance(name, str) or name in shards:
                raise InvalidShardMap(f"a row's name must be a text of its own, not {name!r:.80}")
            if isinstance(dsn := given.get("dsn"), str) and (refused := _astray(dsn)):
                raise InvalidShardMap(
                    f"shard {name!r}: the dsn of a row may not set {refused}",
                    hint="Files and credentials are set by each program's environment, such as"
                    " PGSSLCERT; or read the map from a file.",
                )
            shards[name] = given
        return cls.parse({"shards": shards} | ({} if queue is None else {"queue": queue}))

    @classmethod
    def from_table(
        cls, conn: psycopg.Connection[Any], table: str, *, queue: str | None = None
    ) -> Self:
        """Read a map from a table of a database: ``name text, dsn text, hashes int[], keys
        text[], version int, after jsonb``, of which only the first two are necessary. A ``dsn`` has
        no environment variables: a role that may write the table would read those of this process.
        """
        name = sql.Identifier(*table.split("."))
        with translate_errors(), conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute(sql.SQL("select * from {} order by name").format(name))
            return cls.from_rows(cursor.fetchall(), queue=queue)

    def shard_for(self, key: str) -> Shard:
        """Return the shard to which a key belongs."""
        named = self._by_key.get(key)
        if named is not None:
            return named
        return self.shard_of_hash(shard_hash(key))

    def shard_of_hash(self, number: int) -> Shard:
        """Return the shard of the keys with this hash, of those that no shard names."""
        starts, shards = self._by_hash
        return shards[bisect_right(starts, number) - 1]

    def check_queue(self, queue: str) -> None:
        """Raise InvalidShardMap if the map is another queue's."""
        if self.queue not in (None, queue):
            raise InvalidShardMap(
                f"the shard map is of queue {self.queue!r}, not of {queue!r}",
                hint="Each queue has a map of its own.",
            )

    @cached_property
    def _by_key(self) -> dict[str, Shard]:
        return {key: each for each in self.shards.values() for key in each.keys}

    @cached_property
    def _by_hash(self) -> tuple[list[int], list[Shard]]:
        """The starts of all ranges, in order, and their shards."""
        ranges = self._ranges()
        return [start for start, _, _ in ranges], [self.shards[name] for _, _, name in ranges]

    def _ranges(self) -> list[tuple[int, int, str]]:
        return sorted(
            (*each, shard.name) for shard in self.shards.values() for each in shard.hashes
        )

    def _check_keys(self) -> None:
        owners: dict[str, str] = {}
        for shard in self.shards.values():
            for key in shard.keys:
                if key in owners:
                    raise InvalidShardMap(
                        f"key {key!r:.80} is in shard {owners[key]!r} and in {shard.name!r}",
                        hint="Leave it in one of them.",
                    )
                owners[key] = shard.name

    def _check_hashes(self) -> None:
        end, before = 0, ""
        for start, stop, name in [*self._ranges(), (HASHES, HASHES, "")]:
            if start < end:
                raise InvalidShardMap(
                    f"hashes {start} to {min(end, stop)} are in shard {before!r} and in {name!r}",
                    hint="The last number of a range is not included: the next one begins with it.",
                )
            if start > end:
                raise InvalidShardMap(
                    f"no shard has the hashes {end} to {start}",
                    hint=f"The ranges of all shards together are 0 to {HASHES}.",
                )
            end, before = stop, name

    def _check_after(self) -> None:
        for shard in self.shards.values():
            for name in shard.after:
                if name not in self.shards:
                    raise InvalidShardMap(
                        f"shard {shard.name!r} is after {name!r}, which is no shard of the map",
                        hint="Leave a shard in the map, with hashes = [], until it is drained.",
                    )
            if shard.after and self.queue is None:
                raise InvalidShardMap(
                    f"shard {shard.name!r} has after, but the map has no queue",
                    hint='Ticks are those of a queue: write queue = "..." at the top.',
                )
        try:
            TopologicalSorter({name: each.after for name, each in self.shards.items()}).prepare()
        except CycleError as error:
            raise InvalidShardMap(
                f"shards wait for each other: {' after '.join(error.args[1][::-1])}",
                hint="Leave out the ticks that all consumers have finished.",
            ) from None


def _astray(dsn: str) -> str:
    with suppress(InvalidDsn):  # that is an error of its own
        return dsns.astray(dsn)
    return ""


def _shard(name: str, given: object, fill: Callable[[str, str], str]) -> Shard:
    what = f"shard {name!r}"
    if not isinstance(given, Mapping):
        raise InvalidShardMap(f"{what} must be a table: [shards.{name}]")
    _refuse_unknown(what, given, _KEYS)
    if not name or not isinstance(given.get("dsn"), str):
        raise InvalidShardMap(f"{what} has no dsn" if name else "a shard has no name")
    keys, version, after = (
        given.get(key, no) for key, no in (("keys", []), ("version", 1), ("after", {}))
    )
    if not isinstance(keys, list | tuple) or not all(isinstance(each, str) for each in keys):
        raise InvalidShardMap(f"{what}: keys must be an array of texts")
    if not _is_count(version):
        raise InvalidShardMap(f"{what}: version must be a number from 1 on, not {version!r:.80}")
    if not isinstance(after, Mapping) or not all(_is_count(tick) for tick in after.values()):
        raise InvalidShardMap(f"{what}: after must be names of shards with ticks: {{ a = 4711 }}")
    dsn = fill(given["dsn"], what)
    try:
        dsns.parse(dsn)
    except InvalidDsn as error:
        raise InvalidShardMap(f"{what}: {error.message}", hint=error.hint) from None
    return Shard(
        name=name,
        dsn=dsn,
        hashes=_hashes(given.get("hashes", []), what),
        keys=frozenset(keys),
        version=version,
        after=dict(after),
    )


def _fill(dsn: str, what: str) -> str:
    """Return the connection string with environment variables in place of ``${NAME}``."""

    def variable(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if not value:
            state = "not set" if value is None else "empty"
            raise InvalidShardMap(
                f"{what} needs the environment variable {match[1]}, which is {state}",
                hint=f"Set it for this process, as in: export {match[1]}=...",
            )
        return value

    return _VARIABLE.sub(variable, dsn)


def _no_variables(dsn: str, what: str) -> str:
    if found := _VARIABLE.search(dsn):
        raise InvalidShardMap(
            f"{what}: environment variables, as {found[0]}, are filled in only in files",
            hint="Put the value in its place, or leave passwords to PGPASSWORD or ~/.pgpass.",
        )
    return dsn


def _hashes(given: object, what: str) -> tuple[Range, ...]:
    """Return ranges: ``[0, 100]`` is one, ``[[0, 100], [200, 300]]`` are two."""
    if isinstance(given, list | tuple):
        pairs = [given] if given and all(isinstance(each, int) for each in given) else given
        if all(map(_is_range, pairs)):
            return tuple((start, stop) for start, stop in pairs)
    raise InvalidShardMap(
        f"{what}: hashes must be a range within 0 to {HASHES}, or several: [0, {HASHES // 2}]",
        hint="The first number is included, the last one is not.",
    )


def _is_range(given: object) -> bool:
    return (
        isinstance(given, list | tuple)
        and len(given) == 2
        and all(isinstance(each, int) and not isinstance(each, bool) for each in given)
        and 0 <= given[0] < given[1] <= HASHES
    )


def _is_count(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 1


def _refuse_unknown(what: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            close = get_close_matches(key, known, 1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise InvalidShardMap(f"{what} has an unknown key {key!r}: {advice}")
