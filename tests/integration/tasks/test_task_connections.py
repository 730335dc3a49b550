"""Tasks are pushed into connections of other libraries, in their transactions."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from pgqpy import errors
from pgqpy.tasks import AsyncTasks, TaskApp, Tasks
from tests.fixtures.fix_db import Connection

pytestmark = pytest.mark.any_pg

LATER = datetime(2100, 1, 2, tzinfo=UTC)
KINDS = ["psycopg", "asyncpg"]


@pytest.fixture
def app() -> TaskApp:
    return TaskApp("work")


@pytest.fixture
def engine(dsn: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(sa.make_url(dsn).set(drivername="postgresql+psycopg"))
    yield engine
    engine.dispose()


def payloads(tasks: Tasks) -> list[Any]:
    return [task.payload for task in sorted(tasks.list("work"), key=lambda task: task.id)]


def push_all(client: Any) -> list[Any]:
    """Push in each way; the results, which are awaitable if the client is asynchronous."""
    return [
        client.push("work", {"ä": [1, None]}, delay=60, priority=5, headers={"h": 1}),
        client.push("work", "text", at=LATER, unique_key="u", order_key="o"),
        client.push_unique("work", "again", "u", unique_while="running"),
        client.push_many("work", ["many", None, 'q"\\'], order_keys=[None, "o", "p"]),
        client.push_many("work", []),
    ]


def check_all(tasks: Tasks, results: list[Any]) -> None:
    first, second, unique, many, none = results
    assert tuple(unique) == (second, False)
    assert none == []
    found = {task.id: task for task in tasks.list("work")}
    assert sorted(found) == sorted([first, second, *many])
    assert [found[each].payload for each in (first, second, *many)] == [
        *({"ä": [1, None]}, "text", "many", None, 'q"\\')
    ]
    assert (found[first].priority, found[first].headers) == (5, {"h": 1})
    assert (found[second].at, found[second].unique_key) == (LATER, "u")
    due = found[first].at
    assert due is not None
    assert timedelta(0) < due - datetime.now(UTC) < timedelta(seconds=61)
    assert [found[each].order_key for each in many] == [None, "o", "p"]


def test_sessions_and_connections_of_sqlalchemy(
    tasks: Tasks, app: TaskApp, engine: sa.Engine
) -> None:
    job = app.task(name="job")(lambda n: None)
    scoped = scoped_session(sessionmaker(engine))
    with Session(engine) as session, engine.connect() as connection:
        conns: list[Any] = [session, connection, scoped]
        for each in conns:
            push_all(Tasks(each))
            each.rollback()
            assert payloads(tasks) == []
            results = push_all(Tasks(each))
            each.commit()
            check_all(tasks, results)
            job.push(each, 1)
            assert len(job.push_many(each, [{"n": 2}, {"n": 3}])) == 2  # type: ignore[arg-type]
            each.commit()
            assert [one["args"]["n"] for one in payloads(tasks)[-3:]] == [1, 2, 3]
            tasks.remove("work", None)
    scoped.remove()


async def gathered(results: list[Awaitable[Any]]) -> list[Any]:
    return [await each for each in results]


@pytest.mark.parametrize("driver", KINDS)
def test_asynchronous_sessions_and_connections_of_sqlalchemy(
    tasks: Tasks, app: TaskApp, dsn: str, driver: str
) -> None:
    job = app.task(name="job")(lambda n: None)

    async def work() -> None:
        engine = create_async_engine(sa.make_url(dsn).set(drivername=f"postgresql+{driver}"))
        scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        async with AsyncSession(engine) as session, engine.connect() as connection:
            conns: list[Any] = [session, connection, scoped]
            for each in conns:
                await gathered(push_all(AsyncTasks(each)))
                await each.rollback()
                assert payloads(tasks) == []
                results = await gathered(push_all(AsyncTasks(each)))
                await each.commit()
                check_all(tasks, results)
                await job.push(each, 1)
                await each.commit()
                assert payloads(tasks)[-1]["args"] == {"n": 1}
                with pytest.raises(errors.TaskQueueNotFound):
                    await AsyncTasks(each).push("nowhere")
                await each.rollback()
                tasks.remove("work", None)
            await scoped.remove()
        await engine.dispose()

    asyncio.run(work())


def test_connections_of_asyncpg(tasks: Tasks, app: TaskApp, dsn: str) -> None:
    job = app.task(name="job")(lambda n: None)

    async def work() -> None:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as conn:
            # Many programs let the driver encode JSON.
            await conn.set_type_codec(
                "jsonb", encoder=lambda _: "wrong", decoder=str, schema="pg_catalog"
            )
            transaction = conn.transaction()
            await transaction.start()
            await gathered(push_all(AsyncTasks(conn)))
            await transaction.rollback()
            assert payloads(tasks) == []
            async with conn.transaction():
                results = await gathered(push_all(AsyncTasks(conn)))
                assert payloads(tasks) == []
            check_all(tasks, results)
            await job.push(conn, 1)
            assert payloads(tasks)[-1]["args"] == {"n": 1}
            with pytest.raises(errors.TaskQueueNotFound) as caught:
                await AsyncTasks(conn).push("nowhere")
            assert caught.value.hint
            with pytest.raises(errors.InvalidTask, match=r"cannot be pushed into .*Pool"):
                AsyncTasks(pool)

    asyncio.run(work())


#: In a process of its own, since Django's settings are global.
DJANGO = """
import sys
from datetime import UTC, datetime
from typing import Any
from django.conf import settings
name, params = sys.argv[1:]
settings.configure(USE_TZ=True, DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": name,
    "OPTIONS": {"server_side_binding": params == "server"},
}})
from django.db import connection, transaction
from pgqpy import errors
from pgqpy.tasks import TaskApp, Tasks

LATER = datetime(2100, 1, 2, tzinfo=UTC)
{push_all}
job = TaskApp("work").task(name="job")(lambda n: None)
try:
    with transaction.atomic():
        push_all(Tasks(connection))
        raise LookupError
except LookupError:
    pass
with transaction.atomic():
    job.push(connection, 1)
    try:
        with transaction.atomic():
            Tasks(connection).push("nowhere")
    except errors.TaskQueueNotFound as error:
        assert error.hint
results = push_all(Tasks(connection))
print("results:", results)
assert "sqlalchemy" not in sys.modules and "asyncpg" not in sys.modules
"""


@pytest.mark.parametrize("binding", ["client", "server"])
def test_connections_of_django(tasks: Tasks, dsn: str, binding: str, conn: Connection) -> None:
    info = conn.info
    environment = {"PGHOST": info.host, "PGPORT": str(info.port), "PGUSER": info.user}
    code = DJANGO.replace("{push_all}", inspect.getsource(push_all))
    done = subprocess.run(
        [sys.executable, "-c", code, info.dbname, binding],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "results: " in done.stdout
    first = min(tasks.list("work"), key=lambda task: task.id)
    assert first.payload == {"task": "job", "args": {"n": 1}}
    assert len(tasks.list("work")) == 6


def test_other_libraries_connections_take_pushes_alone(tasks: Tasks, engine: sa.Engine) -> None:
    with Session(engine) as session:
        only = Tasks(session)
        calls: list[Callable[[], object]] = [
            lambda: only.try_claim("work"),
            lambda: only.claim("work"),
            lambda: only.list("work"),
            lambda: only.create_queue("other"),
        ]
        for call in calls:
            with pytest.raises(errors.InvalidTask, match=r"only pushed into .*[\s\S]*connect\(\)"):
                call()
        with pytest.raises(errors.InvalidTask, match="use Tasks"):
            AsyncTasks(session)  # type: ignore[arg-type]
    wrong: list[Any] = [engine, None, "dsn", AsyncSession()]
    for each in wrong:
        with pytest.raises(errors.InvalidTask, match="cannot be pushed into"):
            Tasks(each)
