"""Settings of classes: a misspelt one is refused, and constructors take what they are said to."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any, get_args, get_type_hints

import pytest

import pgqpy
from pgqpy._runtime.checks import check_names
from pgqpy.errors import InvalidConsumer
from pgqpy.sqlalchemy.worker import ModelWorker
from pgqpy.sqlalchemy.worker_async import AsyncModelWorker
from pgqpy.tasks import (
    AsyncPipelineWorker,
    AsyncTableWorker,
    AsyncTaskWorker,
    Pipeline,
    PipelineWorker,
    TableWorker,
    TaskApp,
    TaskWorker,
)
from pgqpy_consumers.email_sender.consumer import EmailSender
from pgqpy_consumers.events_to_tasks import EventsToTasks
from pgqpy_consumers.queue_mover import QueueMover
from pgqpy_consumers.queue_splitter import QueueSplitter
from pgqpy_consumers.replicate.consumer import Replicate
from pgqpy_consumers.row_counter import RowCounter
from pgqpy_consumers.spark.consumer import SparkConsumer
from pgqpy_consumers.table_loader.consumer import TableLoader
from pgqpy_consumers.webhook.consumer import Webhook

WORKERS = (TaskWorker, AsyncTaskWorker, TableWorker, AsyncTableWorker)
CLASSES: tuple[type[Any], ...] = (
    *(getattr(pgqpy, name) for name in dir(pgqpy) if name.endswith("Consumer")),
    *(SparkConsumer, QueueMover, QueueSplitter, EventsToTasks, RowCounter),
    *(Webhook, EmailSender, TableLoader, Replicate),
    *(*WORKERS, PipelineWorker, AsyncPipelineWorker, ModelWorker, AsyncModelWorker),
)


def settings(cls: type) -> list[str]:
    """The public attributes of a class that are neither methods nor its state."""
    no_settings = (FunctionType, property, classmethod, staticmethod, type)
    return [
        name
        for each in cls.__mro__
        for name, value in vars(each).items()
        if not (name.startswith("_") or name == "stopping" or isinstance(value, no_settings))
    ]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_misspelt_setting_of_a_subclass_is_refused_by_name(cls: type[Any]) -> None:
    names = [*settings(cls), *(name for name in dir(cls) if name.startswith(("on_", "process_")))]
    assert names
    for name in names:
        for wrong in {
            name[:3] + name[4:],
            name[:4] + name[3:],
            name.replace("_", "", 1),
            name.title(),
        }:
            if hasattr(cls, wrong) or len(name) < 7:
                continue
            with pytest.raises(InvalidConsumer, match=f"there is no {wrong}; did you mean"):
                check_names(type("Mine", (cls,), {wrong: 1}))
        check_names(type("Mine", (cls,), {name: getattr(cls, name)}))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_attributes_of_ones_own_are_free(cls: type[Any]) -> None:
    class Mixin:
        retries = 3
        tracker = None

    own = {"sent": 0, "table_name": "x", "logger": None, "Metrics": object, "_retry_polcy": 1}
    own |= {"settled": 0, "keys": (), "failed": 0, "batch": 1, "handled": 1, "errors": []}
    check_names(type("Mine", (Mixin, cls), own))


def test_a_spark_consumer_starts_where_it_says() -> None:
    made = type("Mine", (SparkConsumer,), {"queue": "q", "consumer": "c", "start": "first"})("")
    assert made._loop.start == "first"


WORK = {"queues": "work", "handle_task": lambda self, task: None}
CONSUMER = {"queue": "c", "consumer": "c", "process_event": lambda self, conn, event: None}


@pytest.mark.parametrize(
    ("cls", "members", "meant"),
    [
        (TaskWorker, WORK | {"retry_polcy": None}, "retry_policy"),
        (TaskWorker, WORK | {"on_task_failled": lambda *_: None}, "on_task_failed"),
        (pgqpy.Consumer, CONSUMER | {"batchsize": 3}, "batch_size"),
        (SparkConsumer, {"queue": "c", "consumer": "c", "showprogress": True}, "show_progress"),
        (
            TableWorker,
            {"table": "mail", "process_row": lambda *_: None, "poll_intervall": 3},
            "poll_interval",
        ),
    ],
)
def test_nothing_is_begun_with_a_misspelt_setting(
    cls: type[Any], members: dict[str, Any], meant: str
) -> None:
    with pytest.raises(InvalidConsumer, match=f"did you mean {meant}"):
        type("Mine", (cls,), members)("").run()


@pytest.mark.parametrize("cls", WORKERS, ids=lambda cls: cls.__name__)
def test_a_constructor_of_a_worker_takes_each_of_its_settings(cls: type[Any]) -> None:
    parameters = inspect.signature(cls, eval_str=True).parameters
    (typed,) = get_args(parameters["settings"].annotation)
    taken = {*parameters, *get_type_hints(typed)}
    for name in settings(cls):
        assert name in taken
        value = object()
        assert getattr(cls("", **{name: value}), name) is value


@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "asyncio"])
def test_those_that_pass_settings_on_take_them_too(awaited: bool) -> None:
    app = TaskApp("work")

    async def aside(*_: Any) -> None: ...

    app.task(name="job")(lambda: None)
    line = Pipeline("line", start="end")
    line.sink("end")(aside if awaited else lambda conn, task: None)
    made: list[Any]
    for name in {*settings(TaskWorker)} - {"queues"}:
        value = False if name == "periodic" else object()
        given: dict[str, Any] = {name: value}
        if awaited:
            made = [app.async_worker("", **given), AsyncPipelineWorker("", line, **given)]
        else:
            made = [app.worker("", **given), PipelineWorker("", line, **given)]
        assert [getattr(each, name) for each in made] == [value, value]
