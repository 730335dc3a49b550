"""The example of a consumer that is ready to run, made one's own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_cli import Cli
from tests.fixtures.fix_db import Connection
from tests.fixtures.mail_server import MailServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "order_mails.py"


def test_the_example_confirms_orders_by_mail(
    cli: Cli, conn: Connection, queue: str, tmp_path: Path
) -> None:
    ops.register(conn, queue, "email_sender")
    for order in ({"id": 17, "email": "ann@shop.example", "total": 30}, {"id": 18, "total": 40}):
        ops.insert(conn, queue, json.dumps(order))
    ops.tick(conn, queue)
    mails = MailServer()
    try:
        file = tmp_path / "mails.toml"
        file.write_text(
            f'dsn = "{cli.dsn}"\nqueue = "{queue}"\nsender = "shop@shop.example"\n'
            f'host = "127.0.0.1"\nport = {mails.port}\nsecurity = "none"\n'
        )
        cli.ok("run", f"{EXAMPLE}:OrderMails", str(file), "--until-empty")
    finally:
        mails.close()
    (message,) = mails.handler.messages
    assert (message["To"], message["Subject"]) == ("ann@shop.example", "Your order 17")
    assert message.get_content().strip() == "Thank you. The total is 30 EUR."
