"""The main job, start to end, on 336,776 real flights: ``python -m examples.demo --help``.

An application inserts, corrects and deletes flights in many transactions; a trigger queues every
change; a consumer and a Spark job each keep a table of delays up to date from the events. At the
end both are compared with the application's own table.
"""

from __future__ import annotations

from pgqpy.errors import PgqError

QUEUE = "flights"
SCHEMA = "pgqpy_demo"

# The names of the two consumers, and of their modules.
DELAY_COUNTER = "delay_counter"
MONTHLY_DELAYS = "monthly_delays"

READY = "ready"
"""The line that a consumer prints on its standard output when it is ready."""


class DemoError(PgqError):
    """The demo cannot run, or a part of it failed; the hint names the remedy."""
