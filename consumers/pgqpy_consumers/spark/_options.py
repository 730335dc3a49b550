"""The options of ``format("pgq")``: names, values and checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_type_hints

from psycopg import sql
from pyspark.sql.types import StructField, StructType

import pgqpy
from pgqpy.dsn import parse as parse_dsn
from pgqpy.errors import PgqError

StartingPosition: TypeAlias = Literal["consumer", "earliest", "latest"] | int | datetime
"""Where a stream starts: at its consumer's position, an end of the queue, a tick or a time."""


class InvalidOption(PgqError, ValueError):
    """An option of the data source is unknown, missing, or has a value that makes no sense."""


# --- values of options: each function parses a text, or raises ValueError


def text(value: str) -> str:
    if not value:
        raise ValueError("it is empty")
    return value


def count(value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise ValueError("it must be a whole number, at least 1")
    return int(value)


def _flag(value: str) -> bool:
    try:
        return {"true": True, "false": False}[value.lower()]
    except KeyError:
        raise ValueError("it must be true or false") from None


def _time(value: str) -> datetime:
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("it must be a time such as 2026-03-29T01:30:00Z") from None
    if time.tzinfo is None:
        raise ValueError("it must have a time zone, such as the Z of 2026-03-29T01:30:00Z")
    return time


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("it must be names with commas between them, each once")
    return names


def _some_names(value: str) -> tuple[str, ...]:
    return _names(value) if value else ()


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"it must be one of {', '.join(choices)}")
        return value.lower()

    return parse


def _starting_position(value: str) -> StartingPosition:
    kind, _, place = value.partition(":")
    match kind.lower(), place:
        case ("consumer" | "earliest" | "latest") as end, "":
            return end
        case "tick", place:
            return count(place)
        case "time", place:
            return _time(place)
    raise ValueError("it must be consumer, earliest, latest, tick:NUMBER or time:TIME")


# --- the ways to use the data source; the name of an option is its field's in camelCase


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every use of the data source: the queue, and how to connect."""

    purpose: ClassVar[str] = "the data source pgq"
    """The use, for error messages."""
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Spark's own options that are passed along; in lower case."""

    queue: Annotated[str, text]
    dsn: Annotated[str | None, str] = field(default=None, repr=False)
    password: Annotated[str | None, str] = field(default=None, repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Read and check options; names are case-insensitive. Raises InvalidOption."""
        known = [_camel_case(option.name) for option in fields(cls)]
        accepted = cls.ignored.union(map(str.lower, known))
        for name in given:
            if name.lower() not in accepted:
                raise InvalidOption(
                    f"there is no option {name!r} for {cls.purpose}", hint=_hint(name, known)
                )
        return cls.pick(given)

    @classmethod
    def pick(cls, given: Mapping[str, str]) -> Self:
        """Read like `parse`, but only the options of this class."""
        texts = {name.lower(): text for name, text in given.items()}
        parsers = get_type_hints(cls, include_extras=True)
        values = {}
        for option in fields(cls):
            name = _camel_case(option.name)
            if name.lower() in texts:
                (parse,) = parsers[option.name].__metadata__
                values[option.name] = _parsed(name, parse, texts[name.lower()])
            elif option.default is MISSING:
                raise InvalidOption(
                    f"{cls.purpose} needs option {name}",
                    hint=f'Give it: .option("{name}", ...). Spark gives the options of a table in'
                    " its catalog to no writer, and to readers only if the table was made without"
                    " a list of columns.",
                )
        return cls(**values)

    def connect(self, application_name: str, dsn: str | None = None) -> pgqpy.Connection:
        """Open a connection in autocommit: to ``dsn``, or by the options or the environment."""
        settings = {} if self.password is None else {"password": self.password}
        # No prepared statements: a pooler in between may not know them, and few are run twice.
        return pgqpy.connect(
            dsn or self.dsn,
            autocommit=True,
            prepare_threshold=None,
            application_name=application_name[:63],
            **settings,
        )


@dataclass(frozen=True, kw_only=True)
class EventOptions(Options):
    """Options for turning events into rows, in batch reads and in streams."""

    read_dsn: Annotated[str | None, text] = field(default=None, repr=False)
    """A standby of the queue's server, on which events are read; None: on the server itself."""
    shards: Annotated[str | None, text] = None
    """The file with the shard map, instead of a DSN."""
    on_shard_down: Annotated[str, one_of("fail", "wait")] = "fail"
    num_partitions: Annotated[int | None, count] = None
    """The maximum number of slices to read a range in."""
    columns: Annotated[tuple[str, ...] | None, _names] = None
    """The columns of the events to fetch."""
    where: Annotated[str | None, text] = None
    """The events to fetch: a condition in SQL over their columns."""
    payload: Annotated[str | None, one_of("json", "urlencoded", "row")] = None
    malformed: Annotated[str, one_of("fail", "drop", "column")] = "fail"
    optional: Annotated[tuple[str, ...] | None, _some_names] = None
    """Columns that a payload may lack; ``*``: any. None: any, unless it is a table's row."""
    contract: Annotated[str | None, text] = None
    """The events of this type, with the columns of their contract."""
    contract_version: Annotated[int | None, count] = None
    """The version of the contract; None: the newest."""

    def __post_init__(self) -> None:
        self._exclude("shards", "dsn", "read_dsn")
        if self.contract is None:
            if self.contract_version is not None:
                raise InvalidOption(
                    "option contractVersion needs option contract",
                    hint="Give the type of the events as contract.",
                )
            return
        # A captured table's contract has the name that its events have in ev_extra1.
        of_type = sql.SQL(
            "(ev_type = {0} or ev_extra1 = {0} and pg_catalog.left(ev_type, 6) = '{{\"op\":')"
        ).format(sql.Literal(self.contract))
        condition = of_type.as_string(None)
        if self.where is not None:
            condition = f"({self.where}) and {condition}"
        object.__setattr__(self, "where", condition)
        object.__setattr__(self, "payload", self.payload or "json")

    @property
    def waits(self) -> bool:
        """Whether to wait for a shard that cannot be reached."""
        return self.shards is not None and self.on_shard_down == "wait"

    @contextmanager
    def standby(self, application_name: str) -> Iterator[pgqpy.Connection | None]:
        """Open a connection to the standby, if there is one."""
        if self.read_dsn is None:
            yield None
            return
        with self.connect(application_name, self.read_dsn) as conn:
            yield conn

    def with_values(self, **values: object) -> Self:
        """A copy in which these fields are others; without the checks, which were made."""
        made = copy(self)
        vars(made).update(values)
        return made

    def _exclude(self, name: str, *others: str) -> None:
        for other in others:
            if getattr(self, name) is not None and getattr(self, other) is not None:
                raise InvalidOption(
                    f"options {_camel_case(name)} and {_camel_case(other)} exclude each other",
                    hint="Give one of them.",
                )


@dataclass(frozen=True, kw_only=True)
class ReadOptions(EventOptions):
    """Options of ``spark.read``."""

    purpose = "reading a queue"

    start_tick: Annotated[int | None, count] = None
    end_tick: Annotated[int | None, count] = None
    start_time: Annotated[datetime | None, _time] = None
    end_time: Annotated[datetime | None, _time] = None
    consumer: Annotated[str | None, text] = None
    """The consumer whose pending events to read: those after the last tick that it has finished."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._exclude("consumer", "start_tick", "end_tick", "start_time", "end_time")
        self._exclude("start_tick", "start_time")
        self._exclude("end_tick", "end_time")
        if self.shards is not None:
            # A tick is one database's.
            self._exclude("shards", "start_tick", "end_tick")
            # Streams have a consumer, too, and are not to wait for a range.
            if self.consumer is not None and self.waits:
                raise InvalidOption(
                    "option onShardDown is wait, which reading with a consumer cannot",
                    hint="Read with startTime, or stream.",
                )


@dataclass(frozen=True, kw_only=True)
class StreamOptions(EventOptions):
    """Options of ``spark.readStream``."""

    purpose = "streaming from a queue"

    consumer: Annotated[str, text]
    starting_position: Annotated[StartingPosition, _starting_position] = "consumer"
    max_ticks_per_trigger: Annotated[int | None, count] = None
    max_events_per_trigger: Annotated[int | None, count] = None
    fail_on_data_loss: Annotated[bool, _flag] = True
    forget_shards: Annotated[tuple[str, ...] | None, _names] = None
    """The shards that have left the map, and whose rest is given up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shards is not None and isinstance(self.starting_position, int):
            raise InvalidOption(
                "option startingPosition is a tick, which is one database's, not all shards'",
                hint="Give consumer, earliest, latest or time:TIME.",
            )


@dataclass(frozen=True, kw_only=True)
class WriteOptions(Options):
    """Options of ``df.write``."""

    purpose = "writing to a queue"


@dataclass(frozen=True, kw_only=True)
class StreamWriteOptions(Options):
    """Options of ``df.writeStream``."""

    purpose = "streaming to a queue"
    ignored = frozenset({"checkpointlocation", "queryname"})

    writer: Annotated[str, text]
    """The writer's name: micro-batches of one writer are told apart by their numbers."""


def _hint(unknown: str, known: list[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(unknown.lower(), by_lower, 1)
    return "".join(f"Is it {by_lower[name]}? " for name in near) + f"There are: {', '.join(known)}."


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _parsed(name: str, parse: Callable[[str], Any], value: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidOption(f"option {name} is {value!r}: {error}") from None


# --- tables of Spark's catalog: create table ... using pgq options (...)
#
# Spark passes a table's options to the data source when it asks for the schema, which is when the
# table is created, and never again: the reader of the table is given the schema and no options. So
# the options are stored in the schema, as metadata of its first column.

_GIVEN = "option."
"""Spark's prefix for the options given by the user, among all of a table; in lower case."""
_METADATA = "pgq"
_SECRET = ("password", "secret")
"""How libpq's names of secrets end: password, sslpassword, oauth_client_secret."""


def options_of_table(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of the table being created; None if no table is created."""
    given = {name: text for name, text in options.items() if name.lower().startswith(_GIVEN)}
    return {name[len(_GIVEN) :]: text for name, text in given.items()} or None


def check_no_password(options: Options) -> None:
    """Raises InvalidOption if the options have a password, which a table must not keep."""
    dsns = options.dsn, getattr(options, "read_dsn", None)
    names = [name for dsn in dsns for name in parse_dsn(dsn or "")]
    if options.password is not None or any(name.endswith(_SECRET) for name in names):
        raise InvalidOption(
            "a table's options have a password, which Spark would keep in its catalog and show",
            hint="Name a service in dsn, or keep the password in .pgpass or PGPASSWORD.",
        )


def carrying(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema to be stored for a table, with its options."""
    first, *others = schema
    metadata = {_METADATA: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def carried(schema: StructType) -> tuple[StructType, dict[str, str]]:
    """The schema given to a reader, without its stored options; and those options."""
    columns, options = [], dict[str, str]()
    for column in schema:
        metadata = dict(column.metadata)
        options |= json.loads(metadata.pop(_METADATA, "{}"))
        columns.append(StructField(column.name, column.dataType, column.nullable, metadata))
    return StructType(columns), options
