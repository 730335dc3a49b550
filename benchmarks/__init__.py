"""Benchmarks of pgqpy, compared with the same work by hand and with its peers.

``make bench`` runs all, ``python -m benchmarks insert`` one; ``--quick`` takes seconds and only
checks that it works. Each module in `NAMES` is a benchmark: its docstring says what it measures,
and its function ``run(bench)`` measures it. The results are a section of ``docs/benchmarks.md``,
and every single value in ``.bench/results``. Nothing here is a test.
"""

# In the order of their runs.
NAMES = (
    "insert",
    "instructions",
    "bulk",
    "restricted",
    "wal",
    "capture",
    "consume",
    "coop",
    "groups",
    "mover",
    "cascade",
    "takeover",
    "loader",
    "replicate",
    "failing",
    "delayed",
    "latency",
    "peers",
    "saturation",
    "idle",
    "held_xmin",
    "log_churn",
    "backlog",
    "many_queues",
    "shards",
    "rotation",
    "task_push",
    "task_work",
    "task_latency",
    "task_held",
    "task_backlog",
    "task_queues",
    "task_table",
    "telemetry",
    "console",
    "spark_read",
    "spark_write",
    "spark_stream",
)
