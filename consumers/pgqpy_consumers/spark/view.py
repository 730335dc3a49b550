"""A DataFrame whose plan the session keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def pinned(df: DataFrame) -> DataFrame:
    """The same DataFrame, with the same range of ticks at each action; for Spark Connect.

    There, each action sends the plan anew, and the server looks the range up again when its cache
    of plans has dropped it. A temporary view keeps the plan, and with it the range, until the
    session ends. In classic Spark DataFrames are like that anyway.
    """
    view = f"pgq_{uuid4().hex}"
    df.createTempView(view)
    return df.sparkSession.table(view)
