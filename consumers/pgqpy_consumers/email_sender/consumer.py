"""The email sender: a consumer that sends a mail for each event."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Self, Unpack

import pgqpy
from pgqpy.consumer import RunOptions
from pgqpy_consumers._shared import identity
from pgqpy_consumers.email_sender._mail import (
    AddressTemplate,
    Mail,
    MailTemplate,
    captured_row,
    plain_address,
)
from pgqpy_consumers.email_sender._smtp import MailRefused, MailServer, Security, ServerAway
from pgqpy_consumers.settings import Configured, setting


# Long: the keys of the file.
class EmailSender(Configured, pgqpy.TrackedConsumer):
    """Sends a mail for each event, and remembers which events are sent.

    An event's data is a JSON object with `to`, `subject`, `body`, and optionally `html`, `cc`,
    `bcc`, `reply_to` and `headers`; or the event is a captured row, and templates in the settings
    make the mail. Override `mail` to make mails of other events.

    A mail that the server refuses temporarily is retried. A mail that it refuses permanently, and
    an event that makes no mail, becomes a dead letter. While the server is away all mails wait.
    None is lost, and killing the sender sends at most one mail twice: with the same Message-ID.
    """

    consumer = "email_sender"
    batch_size = 1_000
    outages = (ServerAway,)
    _without: ClassVar = {"target_dsn": "what was sent is recorded in the queue's database"}

    queue: str = setting("The queue with the mails.", example="mails")
    sender: str = setting("The sender's address.", example="The shop <noreply@shop.example>")
    host: str = setting("The mail server.", example="smtp.shop.example")
    port: int | None = setting(
        "Its port; without it 587 for starttls, 465 for tls, 25 for none.",
        default=None,
        example=587,
    )
    security: Security = setting(
        "How the connection is encrypted: starttls, tls, or none.", default="starttls"
    )
    ca_file: str | None = setting(
        "A file with certificates to trust, instead of the system's.",
        default=None,
        example="/etc/ssl/our_ca.pem",
    )
    user: str | None = setting("The user to log in as.", default=None, example="shop")
    password: str | None = setting(
        "The user's password.", default=None, example="${SMTP_PASSWORD}", secret=True
    )
    timeout: float = setting("Seconds that the server may take for a step.", default=30.0)
    attempts: int = setting(
        "The attempts before a mail that is refused temporarily becomes a dead letter.", default=15
    )
    first_pause: float = setting("Seconds before its second attempt.", default=10.0)
    longest_pause: float = setting("The most seconds between two attempts.", default=3600.0)
    to: str | None = setting(
        "For captured rows: the recipients, {column} being a column.",
        default=None,
        example="{email}",
    )
    subject: str | None = setting(
        "For captured rows: the subject.", default=None, example="Your order {id}"
    )
    body: str | None = setting(
        "For captured rows: the text.", default=None, example="Dear {name},\n..."
    )
    html: str | None = setting(
        "For captured rows: the same as HTML, in which values are escaped.",
        default=None,
        example="<p>Dear {name}, ...",
    )
    operations: tuple[str, ...] = setting(
        "For captured rows: which operations send a mail.", default=("INSERT",)
    )

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise ValueError if an address is none, or a template or a login is not complete."""
        plain_address(config.sender)
        given = [name for name in ("to", "subject", "body") if getattr(config, name)]
        if given and len(given) < 3:
            raise ValueError(f"{', '.join(given)} alone: a template has to, subject and body")
        if config.to:
            AddressTemplate(config.to)
        if config.html is not None and not given:
            raise ValueError("html alone: a template has to, subject and body")
        if config.password is not None and config.user is None:
            raise ValueError("a password without a user")
        if config.user is not None and not config.password:
            raise ValueError("a user without a password")

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """A sender with these settings."""
        made = super().from_config(config)
        made.retry_policy = pgqpy.ExponentialBackoff(
            first=made.first_pause, cap=made.longest_pause, attempts=made.attempts
        )
        return made

    @cached_property
    def server(self) -> MailServer:
        """The mail server."""
        return MailServer(
            self.host,
            self.port,
            security=self.security,
            user=self.user,
            password=self.password,
            ca_file=self.ca_file,
            timeout=self.timeout,
        )

    @cached_property
    def template(self) -> MailTemplate | None:
        """The template for captured rows, if the settings have one."""
        if not (self.to and self.subject and self.body):
            return None
        return MailTemplate(to=self.to, subject=self.subject, body=self.body, html=self.html)

    def mail(self, event: pgqpy.Event) -> Mail | None:
        """The mail that an event asks for; None for no mail.

        Raises InvalidMail, or any other ValueError, if the event makes none: it then becomes a
        dead letter.
        """
        if self.template is None:
            return Mail.from_json(event.json())
        if event.operation not in self.operations:
            return None
        return self.template.mail(captured_row(event))

    def process_tracked_event(self, target: pgqpy.Connection, event: pgqpy.Event) -> None:
        """Send the mail."""
        try:
            mail = self.mail(event)
            if mail is None:
                return
            unique = identity(event, self.queue, self.consumer)
            message = mail.message(self.sender, event, unique)
            recipients = mail.recipients
        except ValueError as error:
            raise pgqpy.DeadLetter(f"no mail can be made of it: {error}") from error
        try:
            self.server.send(message, plain_address(self.sender), recipients)
        except MailRefused as error:
            if error.permanent:
                raise pgqpy.DeadLetter(f"refused: {error}") from error
            raise

    def run(self, **options: Unpack[RunOptions]) -> None:
        """Run as every consumer does; closes the connection to the server at the end."""
        try:
            super().run(**options)
        finally:
            self.server.close()

    def run_once(self) -> bool:
        """Run once as every consumer does; closes the connection to the server at the end."""
        try:
            return super().run_once()
        finally:
            self.server.close()
