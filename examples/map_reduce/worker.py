"""The workers: as many as one likes, killed whenever one likes."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from typing import Any

import pgqpy
from examples.map_reduce.job import Job, words
from pgqpy import FixedDelay, Retry
from pgqpy.tasks import Task, Tasks, TaskWorker

#: The maximum number of counts added up in one transaction.
MOST = 200


class WordCounter(TaskWorker):
    """Maps and reduces. What it does for a task commits with the end of the task, or not at all."""

    batch_size = 4
    reconnect_cap = 1
    #: A map that was given up would be missing from the result.
    retry_policy = FixedDelay(1, attempts=None)

    def __init__(self, job: Job, dsn: str | None = None) -> None:
        super().__init__(dsn, [job.map, job.reduce])
        self.job = job

    def process_task(self, conn: pgqpy.Connection, task: Task) -> Any:
        if task.queue == self.job.map:
            return self.map(conn, task.payload)
        return self.reduce(conn, task.payload)

    def map(self, conn: pgqpy.Connection, text: str) -> None:
        """Count the words of a text; each shard gets its share."""
        shares: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for word in words(text):
            shares[self.job.shard_of(word)][word] += 1
        tasks = Tasks(conn, self.name)
        for shard, counts in shares.items():
            tasks.push(self.job.shuffle(shard), counts)

    def reduce(self, conn: pgqpy.Connection, shard: int) -> Retry | None:
        """Add up the counts of a shard. The sum is the result if no more counts can follow.

        The order of the two questions matters. While a map is not done, counts may come; so that is
        asked first. And popping skips counts that others have locked: for example a worker that was
        taken for dead, until its transaction ends. So whether the shard is empty is asked last.
        """
        shuffle = self.job.shuffle(shard)
        all_mapped = self.job.is_empty(conn, self.job.map)
        parts = conn.execute("select payload from pgq_task.pop(%s, %s)", (shuffle, MOST)).fetchall()
        total: Counter[str] = Counter()
        for (counts,) in parts:
            total.update(counts)
        if all_mapped and self.job.is_empty(conn, shuffle):
            Tasks(conn, self.name).push(self.job.result, total)
            return None
        if len(parts) < 2:
            raise Retry(delay=0.1)
        Tasks(conn, self.name).push(shuffle, total)
        return Retry(delay=0.1)


if __name__ == "__main__":
    name, shards = sys.argv[1:]
    WordCounter(Job(name, int(shards))).run()
