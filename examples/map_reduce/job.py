"""A MapReduce job: its queues, their input, and the result.

All state is in tasks. ``map`` has one for each piece of text. A worker pushes the word counts of a
piece, divided by key, into the queues ``shuffle/0``, ``shuffle/1``, ...; the queue ``reduce`` has
one task for each of these, and a worker that processes it leaves the sums in ``result``.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pgqpy
from pgqpy.tasks import Tasks

#: Seconds for which killed workers hold their tasks.
LEASE = 2


@dataclass(frozen=True, slots=True)
class Job:
    """The names of a job's queues."""

    name: str
    shards: int = 8

    @property
    def arguments(self) -> list[str]:
        """The names on the command line of a worker."""
        return [self.name, str(self.shards)]

    @property
    def map(self) -> str:
        return f"{self.name}/map"

    @property
    def reduce(self) -> str:
        return f"{self.name}/reduce"

    @property
    def result(self) -> str:
        return f"{self.name}/result"

    def shuffle(self, shard: int) -> str:
        return f"{self.name}/shuffle/{shard}"

    @property
    def queues(self) -> list[str]:
        shuffles = [self.shuffle(shard) for shard in range(self.shards)]
        return [self.map, *shuffles, self.reduce, self.result]

    def create(self, conn: pgqpy.Connection) -> None:
        """Make the queues."""
        for queue in self.queues:
            Tasks(conn).create_queue(queue)
        for queue in (self.map, self.reduce):
            conn.execute("select pgq_task.set_queue_config(%s, 'lease', %s)", (queue, f"{LEASE} s"))

    def start(self, conn: pgqpy.Connection, pieces: Iterable[str]) -> int:
        """Push the first tasks, all at once; returns how many pieces there are.

        Maps come before reduces, which have nothing to do before there are counts.
        """
        with conn.transaction():
            tasks = Tasks(conn)
            tasks.push_many(self.reduce, range(self.shards), priority=-1)
            return len(tasks.push_many(self.map, pieces))

    def drop(self, conn: pgqpy.Connection) -> None:
        with conn.transaction():
            for queue in self.queues:
                Tasks(conn).drop_queue(queue, force=True)

    def is_done(self, conn: pgqpy.Connection) -> bool:
        """A reduce goes in the transaction that leaves its result."""
        return self.is_empty(conn, self.reduce)

    def is_empty(self, conn: pgqpy.Connection, *queues: str) -> bool:
        row = conn.execute("select pgq_task.queue_is_empty(%s)", (list(queues),)).fetchone()
        assert row is not None
        return bool(row[0])

    def left(self, conn: pgqpy.Connection) -> dict[str, int]:
        """The number of tasks in each of the queues."""
        return dict(
            conn.execute(
                "select queue_name, total from pgq_task.get_queue_info()"
                " where queue_name = any (%s)",
                (self.queues,),
            ).fetchall()
        )

    def counts(self, conn: pgqpy.Connection) -> Counter[str]:
        """The result. A word that two shards counted would be there twice, and is refused."""
        total: Counter[str] = Counter()
        for (part,) in conn.execute(
            "select payload from pgq_task.list_tasks(%s, max_tasks => null)", (self.result,)
        ):
            if twice := total.keys() & part.keys():
                raise AssertionError(f"counted by two shards: {twice}")
            total.update(part)
        return total

    def shard_of(self, word: str) -> int:
        return zlib.crc32(word.encode()) % self.shards


def words(text: str) -> Iterator[str]:
    """The words of a text, without their punctuation."""
    for word in text.lower().split():
        if stripped := "".join(filter(str.isalnum, word)):
            yield stripped


def pieces(text: str, lines: int) -> list[str]:
    """Split a text into pieces of this number of lines."""
    every = text.splitlines(keepends=True)
    return ["".join(every[n : n + lines]) for n in range(0, len(every), lines)]
