"""A consumer that listens through PgBouncer: LISTEN succeeds in every mode, and hears in one."""

from __future__ import annotations

import pytest

from pgqpy import Admin
from pgqpy._runtime.acompat import Waker
from pgqpy._runtime.listener import Subscription
from tests.fixtures.fix_client import PATIENCE
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_pool import Pool


@pytest.mark.parametrize("size", [1, 5])
def test_a_pool_in_transaction_mode_is_not_trusted(pool: Pool, queue: str, size: int) -> None:
    subscription = Subscription(pool("transaction", size=size), queue)
    assert subscription.open()
    assert not subscription.works
    subscription.close()


def test_a_pool_in_session_mode_is_trusted_once_a_tick_was_heard(
    pool: Pool, conn: Connection, queue: str
) -> None:
    subscription = Subscription(pool("session"), queue)
    assert subscription.open()
    at_first = subscription.works
    Admin(conn).force_tick(queue)
    Admin(conn).ticker(queue)
    waker = Waker()
    subscription.wait(waker, PATIENCE)
    assert subscription.newest
    assert (at_first, subscription.works) == (False, True)
    subscription.close()
    waker.close()
