"""A DataFrame whose plan the session keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def pinned(df: DataFrame) -> DataFrame:
    """The DataFrame with a fixed range of ticks for all actions; for Spark Connect.

    There, each action sends the plan again, and the server computes the range again once its cache
    of plans has dropped it. A temporary view keeps the plan, and with it the range, until the
    session ends. In classic Spark every DataFrame is like that.
    """
    view = f"pgq_{uuid4().hex}"
    df.createTempView(view)
    return df.sparkSession.table(view)
