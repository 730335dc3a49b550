"""Jobs: functions that are put into a queue, in the transaction in which their reason is saved.

``python examples/jobs.py work`` runs them and ``python examples/jobs.py push`` places an order;
the database is named by PGQPY_DSN or libpq's variables.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from decimal import Decimal

import pgqpy
from pgqpy.retry import ExponentialBackoff
from pgqpy.tasks import TaskApp, current_job

app = TaskApp("mails", retry_policy=ExponentialBackoff(attempts=5))


@dataclass(frozen=True)
class Order:
    id: int
    customer: str
    article: str
    count: int
    price: Decimal


@app.task(priority=5, unique_key=lambda order: f"confirm {order.id}")
def confirm(order: Order) -> str:
    """Runs once for an order, however often it is pushed while it waits."""
    current_job().progress(0, 1, "mails")
    total = order.count * order.price
    print(f"mail to {order.customer}: {order.count} x {order.article}, {total}", flush=True)
    return "sent"


@app.periodic("0 8 * * MON", time_zone="Europe/Berlin")
@app.task
async def remind() -> None:
    """Remind each Monday, from the worker that is first."""
    print("mails about unpaid orders", flush=True)


def main() -> None:
    with pgqpy.connect() as conn:
        app.create_queues(conn)
        if sys.argv[1:] == ["push"]:
            # Here the order would be saved: it is saved and confirmed, or neither.
            confirm.push(conn, Order(1, "ada@example.org", "tea", 3, Decimal("4.90")))
            return
    print("working", flush=True)
    app.worker().run()


if __name__ == "__main__":
    main()
