"""How fast pgqpy is, next to doing the same by hand, and next to its peers.

``make bench`` runs everything, ``python -m benchmarks insert`` one of them, ``--quick`` in seconds
to see that it works. Each module here that `NAMES` lists is a benchmark: its docstring says what it
measures, and its function ``run(bench)`` measures it. What comes out is a section of
``docs/benchmarks.md``, and every single value in ``.bench/results``. Nothing here is a test.
"""

# In the order in which they run.
NAMES = (
    "insert",
    "instructions",
    "bulk",
    "capture",
    "consume",
    "coop",
    "groups",
    "mover",
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
    "rotation",
    "task_push",
    "task_work",
    "task_latency",
    "task_held",
    "task_backlog",
    "task_table",
    "spark_read",
    "spark_write",
    "spark_stream",
)
