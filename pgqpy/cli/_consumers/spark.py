"""``pgqpy spark``: programs that compute in Spark.

Each command is a module ``spark_*``, which imports Spark only when it runs: the import is slow,
and Spark is optional.
"""

from __future__ import annotations

import click

from pgqpy.cli._base.command import Group
from pgqpy.cli._consumers import spark_archive, spark_replay, spark_run


@click.group(cls=Group)
def spark() -> None:
    """Compute in Spark (needs pgqpy[spark] and Java 17 or newer)."""


for command in (
    spark_run.run,
    spark_archive.archive,
    spark_archive.archive_info,
    spark_replay.replay,
):
    spark.add_command(command)
