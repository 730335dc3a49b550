"""Whatever is done to tasks of a queue with limits, and to the limits: none waits for ever."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any

import pytest

from pgqpy.errors import TaskConflict
from pgqpy.tasks import Task, Tasks
from tests.fixtures import queue_ops
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connection

QUEUE = "limited"


class RandomUser:
    """Executes random operations."""

    def __init__(self, conn: Connection, seed: int) -> None:
        self.conn = conn
        self.tasks = Tasks(conn, claimant="w")
        self.chance = random.Random(seed)
        self.left: set[int] = set()
        self.held: dict[int, Task] = {}

    def push(self) -> None:
        key = self.chance.choice(["a", "a", "b", "c", None])
        for number in range(self.chance.randint(1, 8)):
            task = self.tasks.push(
                QUEUE,
                number,
                headers={"limit_key": key},
                priority=self.chance.choice([0, 0, 5]),
                order_key=self.chance.choice([None, None, "x", "y"]),
                delay=self.chance.choice([None, None, 0.02]),
            )
            self.left.add(task)

    def claim(self) -> None:
        lease = self.chance.choice([0.02, 3600])
        for task in self.tasks.try_claim(QUEUE, max_tasks=self.chance.randint(1, 5), lease=lease):
            assert task.id in self.left
            self.held[task.id] = task

    def end(self) -> None:
        if not self.held:
            return
        task = self.held.pop(self.chance.choice(list(self.held)))
        with suppress(TaskConflict):
            match self.chance.randrange(4):
                case 0:
                    self.tasks.fail(task, "bad", delay=self.chance.choice([0, 0.02]))
                case 1:
                    self.tasks.release([task])
                case 2:
                    self.held |= {each.id: each for each in self.tasks.renew([task], lease=0.02)}
                case _:
                    self.finish(task)

    def finish(self, task: Task) -> None:
        with suppress(TaskConflict):
            self.tasks.finish(task)
            self.left.discard(task.id)

    def change(self) -> None:
        changes: list[dict[str, Any]] = [{"headers": {"limit_key": "c"}}, {"priority": 5}]
        if self.left:
            which = {"ids": [self.chance.choice(list(self.left))]}
            self.tasks.change(QUEUE, which, self.chance.choice([*changes, {"delay": 0.01}]))

    def limit(self) -> None:
        self.tasks.set_limits(
            QUEUE,
            max_running=self.chance.choice([None, 3, 8]),
            max_running_per_key=self.chance.choice([None, 1, 2]),
            rate=self.chance.choice([None, None, 50]),
            rate_per_key=self.chance.choice([None, None, 2, 20]),
            rate_period=0.05,
        )

    def sweep(self) -> None:
        self.conn.execute("select pgq_task.sweep()")
        time.sleep(self.chance.choice([0, 0.03]))


@pytest.mark.parametrize("seed", range(3))
def test_no_task_waits_for_ever(conn: Connection, seed: int) -> None:
    user = RandomUser(conn, seed)
    user.tasks.create_queue(QUEUE)
    # Leases end more often here than a queue without a limit allows.
    user.tasks.set_config(QUEUE, "max_attempts", 10_000)
    names = ("push", "claim", "end", "change", "limit", "sweep")
    for name in user.chance.choices(names, (6, 7, 6, 1, 1, 2), k=200):
        getattr(user, name)()
    for task in user.held.values():
        user.finish(task)
    deadline = time.monotonic() + PATIENCE
    while user.left:
        for task in user.tasks.try_claim(QUEUE, max_tasks=3):
            user.finish(task)
        user.sweep()
        assert time.monotonic() < deadline, user.left
    assert queue_ops.value(conn, "select pgq_task.queue_is_empty(array['limited'])")
