"""Workers of task queues that cannot work are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pgqpy import errors
from pgqpy._runtime.io import Io
from pgqpy.sqlalchemy import ModelWorker, TaskColumns
from pgqpy.tasks import TableWorker, Task, TaskWorker
from tests.fixtures.fix_task_worker import Writer


async def _coroutine(task: Task) -> None: ...


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "must have one of a handler, process_task and process_batch"),
        ({"handler": 5}, "the handler 5 cannot be called"),
        ({"handler": _coroutine}, "classes of asyncio begin with Async"),
        ({"handler": lambda: None}, r"called with \(task\)"),
        ({"handler": print, "queues": []}, "Give the name of a task queue"),
        (
            {"handler": print, "batch_size": 0},
            "batch_size is 0; it must be a whole number, at least 1",
        ),
        ({"handler": print, "concurrency": -1}, "concurrency is -1"),
        ({"handler": print, "lease": 0}, "lease is 0"),
        ({"handler": print, "lease": "soon"}, "lease is 'soon'"),
        ({"handler": print, "retry_policy": lambda: 1}, "retry_policy cannot be called"),
    ],
)
def test_a_worker_that_cannot_work_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises((errors.InvalidConsumer, errors.InvalidTask), match=said):
        TaskWorker("", **({"queues": "work"} | settings)).run()


def test_a_worker_has_one_way_to_work() -> None:
    with pytest.raises(errors.InvalidConsumer, match="not handle_task and process_task"):
        Writer("", handler=print).run()


def test_a_part_of_a_sync_worker_that_awaits_something_itself_is_an_error() -> None:
    """Nothing would ever go on with it."""
    left: list[str] = []

    async def part() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            left.append("closed")

    with pytest.raises(RuntimeError, match="awaits something itself"):
        Io().run(part())
    assert left == ["closed"]


def test_a_setting_that_does_not_exist_is_refused() -> None:
    settings: Any = {"leese": 5}
    with pytest.raises(TypeError, match=r"TaskWorker\(\) has no setting 'leese'; did you mean"):
        TaskWorker("", "work", print, **settings)


def test_a_handler_of_rows_that_cannot_be_called_is_refused() -> None:
    class Base(DeclarativeBase):
        pass

    class Mail(TaskColumns, Base):
        __tablename__ = "mail"
        id: Mapped[int] = mapped_column(primary_key=True)

    handler: Any = lambda row: None  # noqa: E731
    with pytest.raises(errors.InvalidConsumer, match=r"called with \(conn, row\); it takes \(row"):
        TableWorker("", table="mail", handler=handler).run()
    with pytest.raises(errors.InvalidConsumer, match=r"called with \(session, obj\)"):
        ModelWorker("", model=Mail, handler=handler).run()


def test_a_setting_of_none_is_that_of_the_class() -> None:
    class Slow(TaskWorker):
        batch_size = 7

    assert Slow("", "work", print, batch_size=None).batch_size == 7
    assert Slow("", "work", print, batch_size=3).batch_size == 3
