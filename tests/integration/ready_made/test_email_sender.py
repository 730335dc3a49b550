"""The email sender, against a real SMTP server that fails at times."""

from __future__ import annotations

import itertools
import json
import socketserver
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiosmtpd.smtp import AuthResult, LoginPassword

from pgqpy_consumers.email_sender import EmailSender, ServerAway
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import PATIENCE, Background, Tick, wait_until
from tests.fixtures.fix_db import Connection
from tests.fixtures.fix_ticker import eventually
from tests.fixtures.mail_server import MailServer

Put = Callable[..., int]
Kill = Callable[..., None]
Sender = Callable[..., EmailSender]


@pytest.fixture
def mails() -> Iterator[MailServer]:
    """A mail server on loopback."""
    made = MailServer()
    yield made
    made.close()


@pytest.fixture
def put(conn: Connection, queue: str, tick: Tick) -> Put:
    """``put("subject")``: a mail in a batch of its own; more fields by name."""
    conn.execute("select pgq.register_consumer(%s, 'email_sender')", [queue])

    def put_now(subject: str, **fields: Any) -> int:
        mail = {"to": "ann@shop.example", "subject": subject, "body": "Hello"} | fields
        ev_id = ops.insert(conn, queue, json.dumps(mail))
        tick()
        return ev_id

    return put_now


@pytest.fixture
def sender(dsn: str, queue: str, mails: MailServer) -> Sender:
    """``sender(...)``: one that runs in this process, with these settings."""

    def make(**settings: Any) -> EmailSender:
        usual: dict[str, Any] = {
            "dsn": dsn,
            "queue": queue,
            "sender": "The shop <shop@shop.example>",
            "host": "127.0.0.1",
            "port": mails.port,
            "security": "none",
            "first_pause": 0.0,
            "timeout": PATIENCE,
        }
        return EmailSender.from_config(EmailSender.Config(**usual | settings))

    return make


def again(conn: Connection, queue: str, sender: EmailSender) -> None:
    """Retried events that are due come again, and are processed."""
    eventually(conn, "select pgq.maint_retry_events() > 0")
    ops.tick(conn, queue)
    sender.run(until_empty=True)


def dead_letters(conn: Connection) -> list[str]:
    return [r for (r,) in conn.execute("select dl_reason from pgq.dead_letter order by 1")]


def test_each_event_is_a_mail_with_all_that_it_says(
    put: Put, sender: Sender, mails: MailServer
) -> None:
    put(
        "Grüße",
        to=["Änn <ann@shop.example>", "bob@shop.example"],
        cc="cy@shop.example",
        bcc=["dee@shop.example", "ann@shop.example"],
        body="Schöne Grüße\n.\n.end",
        html="<p>Schöne Grüße</p>",
        reply_to="help@shop.example",
        headers={"X-Order": "17"},
    )
    sender().run(until_empty=True)
    (message,), (envelope,) = mails.handler.messages, mails.handler.envelopes
    assert message["To"] == "Änn <ann@shop.example>, bob@shop.example"
    assert (message["Cc"], message["Bcc"]) == ("cy@shop.example", None)
    assert message["From"] == "The shop <shop@shop.example>"
    assert (message["Subject"], message["X-Order"]) == ("Grüße", "17")
    assert message["Reply-To"] == "help@shop.example"
    text, html = message.get_body(("plain",)), message.get_body(("html",))
    assert text is not None
    assert html is not None
    assert text.get_content().splitlines() == ["Schöne Grüße", ".", ".end"]
    assert html.get_content().strip() == "<p>Schöne Grüße</p>"
    assert envelope.mail_from == "shop@shop.example"
    everyone = [f"{name}@shop.example" for name in ("ann", "bob", "cy", "dee")]
    assert envelope.rcpt_tos == everyone


def test_captured_rows_become_mails_by_templates(
    conn: Connection, queue: str, put: Put, tick: Tick, sender: Sender, mails: MailServer
) -> None:
    conn.execute("create table orders (id int primary key, email text, name text, price numeric)")
    conn.execute("select pgq.capture_table('orders', %s)", [queue])
    conn.execute(
        "insert into orders values (17, 'ann@shop.example', 'A<i>', 1.50), (18, null, 'Bob', 2)"
    )
    conn.execute("update orders set name = 'x'")
    tick()
    sender(
        to="{email}", subject="Order {id}", body="Dear {name}, {price} EUR", html="<b>{name}</b>"
    ).run(until_empty=True)
    (message,) = mails.handler.messages
    assert (message["To"], message["Subject"]) == ("ann@shop.example", "Order 17")
    text, html = message.get_body(("plain",)), message.get_body(("html",))
    assert text is not None
    assert html is not None
    assert text.get_content().strip() == "Dear A<i>, 1.50 EUR"
    assert html.get_content().strip() == "<b>A&lt;i&gt;</b>"
    (reason,) = dead_letters(conn)
    assert "'' is no address" in reason


NO_MAILS = [
    ("no json", "no mail can be made of it: Expecting value"),
    ("[1]", "no JSON object"),
    ('{"to": "a@b.example", "body": "x"}', "subject missing"),
    ('{"to": [], "subject": "x", "body": "x"}', "to missing"),
    ('{"to": "unknown", "subject": "x", "body": "x"}', "'unknown' is no address"),
    ('{"to": 1, "subject": "x", "body": "x"}', "to is neither an address nor a list"),
    ('{"to": "a@b.example", "subject": "x\\nBcc: c@d.example", "body": "x"}', "linefeed"),
    (
        '{"to": "a@b.example", "subject": "x", "body": "x", "headers": {"Bcc": "c@d.example"}}',
        "'Bcc' is no header",
    ),
    *(
        (
            json.dumps(
                {"to": "a@b.example", "subject": "x", "body": "x", "headers": {name: "c@d"}}
            ),
            f"{name!r} is no header to be given in headers",
        )
        for name in ("Sender", "RESENT-To", "Resent-From", "Return-Path", "Apparently-To")
    ),
    ('{"to": "a@b.example", "subject": "x", "body": "x", "txt": 1}', "a mail has no txt"),
    # It would take a minute to fold, and longer ones hours.
    (json.dumps({"to": "a@b.example", "subject": "ä " * 10**5, "body": "x"}), "50,000 characters"),
]


def test_an_event_that_makes_no_mail_becomes_a_dead_letter_and_the_others_are_sent(
    conn: Connection, queue: str, put: Put, sender: Sender, mails: MailServer
) -> None:
    for data, _ in NO_MAILS:
        ops.insert(conn, queue, data)
    put("good")
    sender().run(until_empty=True)
    assert mails.handler.subjects == ["good"]
    reasons = conn.execute("select dl_reason from pgq.dead_letter order by ev_id").fetchall()
    for (reason,), (_, said) in zip(reasons, NO_MAILS, strict=True):
        assert said in reason


def test_a_mail_refused_temporarily_is_retried_and_holds_up_no_other(
    conn: Connection, queue: str, put: Put, sender: Sender, mails: MailServer
) -> None:
    put("first", to="busy@shop.example")
    put("second")
    refusals = ["450 4.2.1 mailbox busy"]
    mails.handler.recipient = lambda address: (
        refusals.pop() if address.startswith("busy") and refusals else None
    )
    each = sender()
    each.run(until_empty=True)
    assert mails.handler.subjects == ["second"]
    assert mails.handler.sessions == 1, "one connection serves many mails"
    again(conn, queue, each)
    assert mails.handler.subjects == ["second", "first"]
    assert dead_letters(conn) == []


def test_a_mail_refused_permanently_becomes_a_dead_letter_and_is_never_sent_in_part(
    conn: Connection, queue: str, put: Put, sender: Sender, mails: MailServer
) -> None:
    put("to both", to=["ann@shop.example", "gone@shop.example"])
    for subject in ("spam", "later", "good"):
        put(subject)
    mails.handler.recipient = lambda address: (
        "550 5.1.1 no such user" if address.startswith("gone") else None
    )
    answers = {"Subject: spam": "554 5.7.1 spam", "Subject: later": "451 try again"}
    mails.handler.data = lambda text: next(
        (answers[line] for line in text.splitlines() if line in answers), None
    )
    each = sender(attempts=2)
    each.run(until_empty=True)
    # The number of temporary refusals is limited.
    again(conn, queue, each)
    assert mails.handler.subjects == ["good"]
    assert dead_letters(conn) == [
        "MailRefused: 451 try again",
        "refused: 550 gone@shop.example: 5.1.1 no such user",
        "refused: 554 5.7.1 spam",
    ]


def test_a_connection_that_breaks_in_the_middle_costs_an_attempt_and_no_mail(
    conn: Connection, queue: str, put: Put, sender: Sender, mails: MailServer
) -> None:
    for subject in ("first", "lost", "doubtful", "last"):
        put(subject)
    drops = {"Subject: lost": "drop", "Subject: doubtful": "250 drop"}
    mails.handler.data = lambda text: next(
        (drops.pop(line) for line in text.splitlines() if line in drops), None
    )
    each = sender()
    each.run(until_empty=True)
    assert mails.handler.subjects == ["first", "doubtful", "last"]
    again(conn, queue, each)
    # One was accepted without an answer. A receiver of both sees that they are one.
    assert Counter(mails.handler.subjects) == {"first": 1, "lost": 1, "doubtful": 2, "last": 1}
    twice = [m for m in mails.handler.messages if m["Subject"] == "doubtful"]
    assert twice[0]["Message-ID"] == twice[1]["Message-ID"]
    assert twice[0].as_bytes() == twice[1].as_bytes()
    assert len({m["Message-ID"] for m in mails.handler.messages}) == 4


def test_while_the_server_is_away_mails_wait_without_using_up_attempts(
    conn: Connection, put: Put, sender: Sender, mails: MailServer, background: Background
) -> None:
    put("first")
    each = sender(attempts=1)
    each.backoff_first = each.backoff_cap = 0.05
    failures: list[Exception] = []
    each.on_error = lambda error, batch: failures.append(error)  # type: ignore[method-assign]
    mails.stop()
    background(each)
    wait_until(lambda: len(failures) > 3)
    assert {type(error).__name__ for error in failures} == {"ServerAway"}
    mails.start()
    mails.handler.wait_for(1, PATIENCE)
    # Nor does it mind that the connection it keeps is closed under it.
    mails.stop()
    mails.start()
    put("second")
    mails.handler.wait_for(2, PATIENCE)
    assert mails.handler.subjects == ["first", "second"]
    assert dead_letters(conn) == []


class Endless(socketserver.BaseRequestHandler):
    """A mail server whose answer to one command has no end; '' is the greeting."""

    command: str
    pause: float | None
    """None: whole lines, as fast as they are taken; else one byte after each pause."""

    def handle(self) -> None:
        with self.request.makefile("rb") as said, suppress(OSError):
            self._answer("")
            for line in said:
                self._answer(line[:4].decode().upper())

    def _answer(self, command: str) -> None:
        if command == self.command:
            if self.pause is None:
                for _ in range(1_000):
                    self.request.sendall(b"250-more\r\n" * 1_000)
            else:
                until = time.monotonic() + PATIENCE
                for each in itertools.cycle(b"220-more\r\n"):
                    if time.monotonic() > until:
                        raise ConnectionError
                    self.request.sendall(bytes([each]))
                    time.sleep(self.pause)
        codes = {"": b"220", "DATA": b"354"}
        self.request.sendall(codes.get(command, b"250") + b" done\r\n")


Endlessly = Callable[..., int]


@pytest.fixture
def endlessly() -> Iterator[Endlessly]:
    """``endlessly("RCPT")``: the port of a mail server that answers this command for ever."""
    with ExitStack() as stack:

        def start(command: str, pause: float | None = None) -> int:
            handler = type("Handler", (Endless,), {"command": command, "pause": pause})
            server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler))
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            port: int = server.server_address[1]
            return port

        yield start


def test_an_answer_without_end_is_given_up_and_counts_as_a_broken_connection(
    conn: Connection, put: Put, sender: Sender, endlessly: Endlessly
) -> None:
    put("first")
    # No mail is to blame: it waits.
    with pytest.raises(ServerAway, match="an answer has more than 65,536 bytes"):
        sender(port=endlessly("")).run(until_empty=True)
    with pytest.raises(ServerAway, match="timed out"):
        sender(port=endlessly("", 0.01), timeout=0.1).run(until_empty=True)
    assert dead_letters(conn) == []
    sender(port=endlessly("RCPT"), attempts=1).run(until_empty=True)
    (reason,) = dead_letters(conn)
    assert "an answer has more than 65,536 bytes" in reason


@pytest.fixture
def authority(tmp_path: Path) -> tuple[trustme.CA, str]:
    ca = trustme.CA()
    file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(file)
    return ca, str(file)


# A warning of the server, which does not see the TLS in front of it.
@pytest.mark.filterwarnings("ignore:Requiring AUTH")
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_it_logs_in_over_an_encrypted_connection_to_the_right_server(
    put: Put, sender: Sender, mails: MailServer, authority: tuple[trustme.CA, str], security: str
) -> None:
    ca, ca_file = authority

    def encrypted(host: str) -> MailServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert(host).configure_cert(context)
        options: dict[str, Any] = (
            {"tls_context": context, "require_starttls": True}
            if security == "starttls"
            else {"ssl_context": context}
        )

        def authenticate(*arguments: Any) -> AuthResult:
            given = arguments[-1]
            assert isinstance(given, LoginPassword)
            return AuthResult(success=given == LoginPassword(b"shop", b"secret"), handled=False)

        return MailServer(
            authenticator=authenticate,
            auth_required=True,
            auth_require_tls=security == "starttls",
            **options,
        )

    right, wrong = encrypted("127.0.0.1"), encrypted("elsewhere.example")
    try:
        put("secret")
        settings = {"security": security, "ca_file": ca_file, "user": "shop"}
        # Neither a wrong server nor a wrong password cost an attempt.
        with pytest.raises(Exception, match="certificate verify failed"):
            sender(port=wrong.port, password="secret", **settings).run(until_empty=True)
        with pytest.raises(Exception, match="535"):
            sender(port=right.port, password="wrong", **settings).run(until_empty=True)
        # Nor does a server that cannot encrypt get it.
        with pytest.raises(Exception, match="STARTTLS"):
            sender(security="starttls").run(until_empty=True)
        assert mails.handler.messages == []
        sender(port=right.port, password="secret", **settings).run(until_empty=True)
        assert right.handler.subjects == ["secret"]
        assert wrong.handler.messages == []
    finally:
        right.close()
        wrong.close()


KILLS = 3


@pytest.mark.slow
def test_a_sender_that_is_killed_loses_none_and_sends_at_most_one_twice_a_kill(
    put: Put, mails: MailServer, kill: Kill
) -> None:
    seen: Counter[str] = Counter()

    def failing(text: str) -> str | None:
        seen["mails"] += 1
        return {3: "451 later", 7: "drop"}.get(seen["mails"] % 10)

    mails.handler.data = failing
    count = 32
    for number in range(count):
        put(f"{number}")
    kill(
        "email_sender",
        'sender = "shop@shop.example"\nhost = "127.0.0.1"\n'
        f'port = {mails.port}\nsecurity = "none"\nfirst_pause = 0.1\n',
        *(partial(mails.handler.wait_for, n * 6, PATIENCE) for n in range(1, KILLS + 1)),
        until=lambda: len(set(mails.handler.subjects)) == count,
    )
    taken = Counter(mails.handler.subjects)
    assert sum(taken.values()) <= count + KILLS
    assert len({m["Message-ID"] for m in mails.handler.messages}) == count


def test_without_a_dsn_it_is_the_environments_database(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQPY_DSN", "service=shop")
    assert (each := sender(dsn=None)).dsn == each.target_dsn == "service=shop"
    monkeypatch.delenv("PGQPY_DSN")
    assert (each := sender(dsn=None)).dsn == each.target_dsn == ""


def test_settings_that_make_no_sense_are_refused(sender: Sender) -> None:
    with pytest.raises(ValueError, match="a template has to, subject and body"):
        sender(subject="Order {id}")
    with pytest.raises(ValueError, match="'shop' is no address"):
        sender(sender="shop")
    with pytest.raises(ValueError, match="a password without a user"):
        sender(password="x")
