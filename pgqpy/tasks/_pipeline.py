"""Pipelines: stations that tasks pass through, declared and checked."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from pgqpy.errors import InvalidPipeline
from pgqpy.retry import DeadLetter, Retry, RetryPolicy
from pgqpy.tasks._outcome import KEEP, Move
from pgqpy.tasks._values import Task

Function = TypeVar("Function", bound=Callable[[Any, Task], Any])

Kind: TypeAlias = Literal["direct", "choice", "fork", "sink"]


#: Tells the server of stations, for those that draw them; it writes what is new.
SET_STATIONS = b"""
select pgq_task.set_station(s.queue, %s, s.is_start, s.leads_to)
  from jsonb_to_recordset(%s::jsonb) s (queue text, is_start boolean, leads_to text[])
"""


class To(Move):
    """The result of a choice, and an item of a fork's: the station to which a task goes, and how.

    Without a payload it keeps its own. For the rest see `Move`, which takes a queue.
    """

    @property
    def station(self) -> str:
        """The station's name."""
        return str(self.change["queue"])


@dataclass(frozen=True, slots=True)
class Station:
    """A place where a function takes tasks from a queue, and sends them on to its ``targets``."""

    name: str
    kind: Kind
    function: Callable[[Any, Task], Any]
    targets: tuple[str, ...]
    retry_policy: RetryPolicy | None


class Pipeline:
    """Stations and the ways of tasks between them: forks and loops included.

    Declare each station with the function that works on its tasks. Functions are called like
    `TaskWorker.process_task`: with the connection of the transaction in which the task leaves
    the station, and with the task::

        orders = Pipeline("orders", start="check")

        @orders.choice("check", to=["pack", "refuse"])
        def check(conn, task):
            return "pack" if task.payload["paid"] else To("refuse", {"why": "not paid"})

        @orders.direct("pack", to="send")
        def pack(conn, task):
            return task.payload | {"parcel": 7}

    Each station has a queue of its own, ``orders.pack``; `PipelineWorker` serves them.
    """

    def __init__(self, name: str, *, start: str | Iterable[str]) -> None:
        """``start``: the station that tasks are pushed to, or several."""
        _check_name(name, "a pipeline", hint='Give it a text: Pipeline("orders", start="check").')
        self.name = name
        self.start = (start,) if isinstance(start, str) else tuple(start)
        self._stations: dict[str, Station] = {}

    # --- stations

    def direct(
        self, station: str, *, to: str, retry_policy: RetryPolicy | None = None
    ) -> Callable[[Function], Function]:
        """Declare a station from which all tasks go to one other.

        The function returns their new payload; None: the old one; or a `To`, for other options such
        as a delay.
        """
        return self._declare("direct", station, (to,), retry_policy)

    def choice(
        self, station: str, *, to: Sequence[str], retry_policy: RetryPolicy | None = None
    ) -> Callable[[Function], Function]:
        """Declare a station whose function chooses one of several targets for each task.

        It returns a station's name, or `To` with a new payload; or an empty list: the task ends
        here.
        """
        return self._declare("choice", station, _several(station, to), retry_policy)

    def fork(
        self, station: str, *, to: Sequence[str], retry_policy: RetryPolicy | None = None
    ) -> Callable[[Function], Function]:
        """Declare a station at which a task becomes several, each at one of other stations.

        The function returns a list of station names, or of `To` with new payloads, in which a
        station may occur more than once. All these tasks appear, and the old one is removed, when
        the transaction commits. They are new tasks, with ids of their own; by default priority,
        headers and order_key are copied from the old one, but they have no unique_key. An empty
        list makes no task: the task ends here.
        """
        return self._declare("fork", station, _several(station, to), retry_policy)

    def sink(
        self, station: str, *, retry_policy: RetryPolicy | None = None
    ) -> Callable[[Function], Function]:
        """Declare a station at which tasks are finished; the function returns their results."""
        return self._declare("sink", station, (), retry_policy)

    def _declare(
        self, kind: Kind, name: str, targets: tuple[str, ...], retry_policy: RetryPolicy | None
    ) -> Callable[[Function], Function]:
        for given in (name, *targets):
            hint = f"Write @{self.name}.{kind}({_CALLS[kind]}), with texts as names."
            _check_name(given, "a station", hint=hint)
        if name in self._stations:
            raise InvalidPipeline(f"station {name!r} is declared twice in pipeline {self.name!r}")

        def declare(function: Function) -> Function:
            if not callable(function):
                raise InvalidPipeline(
                    f"{function!r:.80} of station {name!r} cannot be called",
                    hint="A station is declared with the function that works on its tasks.",
                )
            self._stations[name] = Station(name, kind, function, targets, retry_policy)
            return function

        return declare

    # --- queues

    @property
    def stations(self) -> Mapping[str, Station]:
        """The stations by their names."""
        return self._stations

    @property
    def queues(self) -> list[str]:
        """The names of all queues."""
        return [self.queue(name) for name in self._stations]

    def queue(self, station: str) -> str:
        """The name of a station's queue. Raises InvalidPipeline if there is no such station."""
        if station not in self._stations:
            raise self._unknown(f"there is no station {station!r}")
        return f"{self.name}.{station}"

    def station_of(self, task: Task) -> Station:
        """Return the station of a task."""
        return self._stations[task.queue.removeprefix(f"{self.name}.")]

    def described(self, queues: Collection[str]) -> str:
        """Return the stations of these queues as JSON, for `SET_STATIONS`."""
        found = {self.queue(each.name): each for each in self._stations.values()}
        return json.dumps(
            [
                {"queue": queue, "is_start": each.name in self.start, "leads_to": each.targets}
                for queue, each in found.items()
                if queue in queues
            ]
        )

    # --- outcomes

    def outcome(self, station: Station, value: Any) -> Any:
        """Turn the value of a station's function into a result of `TaskWorker.process_task`.

        Not for forks, see `branches`. Raises InvalidPipeline if it chose none of the station's
        targets.
        """
        if isinstance(value, Retry | DeadLetter):
            return value
        if station.kind == "choice" and isinstance(value, list) and not value:
            return value
        if station.kind == "choice" or (station.kind == "direct" and isinstance(value, To)):
            chosen = self._chosen(station, value)
            move = Move(chosen["queue"])
            move.change = chosen
            return move
        if isinstance(value, Move):
            raise InvalidPipeline(
                f"station {station.name!r} returned a {type(value).__name__}",
                hint="Return a To with one of its targets; a sink has none.",
            )
        if station.kind == "sink":
            return value
        return Move(self.queue(station.targets[0]), KEEP if value is None else value)

    def branches(self, station: Station, value: Any, task: Task) -> list[dict[str, Any]]:
        """Return the tasks of a fork's result, as inserts of `pgqpy.tasks.Tasks.modify`.

        Raises InvalidPipeline if they are not for its targets.
        """
        if not isinstance(value, list | tuple):
            raise InvalidPipeline(
                f"station {station.name!r} returned {value!r:.80}",
                hint=f"Return a list of {_listed(station.targets)}, or of To(station, payload).",
            )
        inherited = {
            name: getattr(task, name) for name in ("payload", "headers", "priority", "order_key")
        }
        # A new task has neither attempts nor an error.
        fresh = {"attempts", "error"}
        changes = [self._chosen(station, each) for each in value]
        return [inherited | {k: v for k, v in each.items() if k not in fresh} for each in changes]

    def _chosen(self, station: Station, value: Any) -> dict[str, Any]:
        """Return the changes of a task that goes to one of a station's targets."""
        to = To(value) if isinstance(value, str) else value
        if not isinstance(to, To):
            raise InvalidPipeline(
                f"station {station.name!r} returned {value!r:.80}",
                hint=f"Return one of {_listed(station.targets)}, or To(station, payload).",
            )
        if to.station not in station.targets:
            raise InvalidPipeline(
                f"station {station.name!r} chose {to.station!r}",
                hint=f"It was declared to lead to {_listed(station.targets)}.",
            )
        return to.change | {"queue": self.queue(to.station)}

    # --- checks

    def check(self) -> None:
        """Raise InvalidPipeline unless each task has a way through the pipeline.

        All named stations must be declared, each must be reached from a start, and from each a sink
        must be reached: a loop needs a choice, or a fork, that leads out of it.
        """
        for name in self.start:
            if name not in self._stations:
                raise self._unknown(f"it starts at {name!r}, which is no station")
        if not self.start:
            raise InvalidPipeline(f"pipeline {self.name!r} has no start", hint="Name a station.")
        for station in self._stations.values():
            for target in station.targets:
                if target not in self._stations:
                    raise self._unknown(
                        f"station {station.name!r} leads to {target!r}, which is no station"
                    )
        targets = {name: set(station.targets) for name, station in self._stations.items()}
        missed = targets.keys() - _reached(self.start, targets)
        if missed:
            raise InvalidPipeline(
                f"no task ever comes to {_listed(missed)} of pipeline {self.name!r}",
                hint="Lead there from another station, or name it as a start.",
            )
        sources = {name: {each for each in targets if name in targets[each]} for name in targets}
        sinks = [name for name in targets if not targets[name]]
        trapped = targets.keys() - _reached(sinks, sources)
        if trapped:
            raise InvalidPipeline(
                f"no task that comes to {_listed(trapped)} ever leaves pipeline {self.name!r}",
                hint="Make one of them a choice or a fork that leads out as well, or a sink.",
            )

    def check_function(self, station: str, *, awaited: bool) -> None:
        """Raise InvalidPipeline if an async worker, or a sync one, cannot call the function."""
        self.queue(station)
        function = self._stations[station].function
        call = getattr(function, "__call__", None)  # noqa: B004
        if any(map(inspect.iscoroutinefunction, (function, call))) != awaited:
            raise InvalidPipeline(
                f"the function of station {station!r} is {'no' if awaited else 'an'} `async def`",
                hint="PipelineWorker calls plain functions, AsyncPipelineWorker those of asyncio.",
            )
        # Some functions written in C have no signature.
        with suppress(ValueError):
            signature = inspect.signature(function)
            try:
                signature.bind(None, None)
            except TypeError:
                raise InvalidPipeline(
                    f"the function of station {station!r} takes {signature}",
                    hint="It is called with the connection and the task.",
                ) from None

    def _unknown(self, what: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"pipeline {self.name!r}: {what}",
            hint=f"Its stations are {_listed(self._stations) or 'none yet'}.",
        )


#: The declaration of each kind of station, for hints.
_CALLS: dict[Kind, str] = {
    "direct": "station, to=station",
    "choice": "station, to=[station, ...]",
    "fork": "station, to=[station, ...]",
    "sink": "station",
}


def _check_name(name: object, of: str, *, hint: str) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidPipeline(f"{name!r:.80} is no name of {of}", hint=hint)


def _several(station: str, to: Sequence[str]) -> tuple[str, ...]:
    if isinstance(to, str) or not to:
        raise InvalidPipeline(
            f"station {station!r} leads to {to!r}", hint="Give a list of stations, or use `direct`."
        )
    return tuple(to)


def _reached(start: Iterable[str], ways: Mapping[str, set[str]]) -> set[str]:
    """Return all stations reached from the start, itself included."""
    reached: set[str] = set()
    ahead = set(start)
    while ahead:
        reached |= ahead
        ahead = set[str]().union(*(ways[name] for name in ahead)) - reached
    return reached


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
