"""Names in the database."""

from __future__ import annotations

QUEUE = "flights"
SCHEMA = "pgqpy_demo"

DELAY_COUNTER = "delay_counter"
"""The name of the `pgqpy.Consumer`."""

MONTHLY_DELAYS = "monthly_delays"
"""The name of the `SparkConsumer`."""
