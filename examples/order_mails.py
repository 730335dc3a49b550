"""The ready-to-run email sender, with its own mail: confirm orders that have an address.

The queue holds orders as JSON, such as `{"id": 17, "email": "ann@shop.example", "total": 30}`.
The settings are the email sender's::

    pgqpy run email_sender --example > mails.toml
    pgqpy run examples/order_mails.py:OrderMails mails.toml
"""

from __future__ import annotations

import pgqpy
from pgqpy_consumers.email_sender import EmailSender, Mail


class OrderMails(EmailSender):
    """Confirms each order by mail."""

    def mail(self, event: pgqpy.Event) -> Mail | None:
        order = event.json()
        if "email" not in order:
            return None
        return Mail(
            to=(order["email"],),
            subject=f"Your order {order['id']}",
            body=f"Thank you. The total is {order['total']} EUR.",
        )
