"""A mail server, and the one connection to it that is kept open."""

from __future__ import annotations

import contextlib
import smtplib
import ssl
from collections.abc import Sequence
from email import policy
from email.message import EmailMessage
from typing import Literal

Security = Literal["starttls", "tls", "none"]

PORTS: dict[Security, int] = {"starttls": 587, "tls": 465, "none": 25}


class ServerAway(Exception):
    """The server cannot be reached, or accepts no mail at all now: no mail is to blame."""


class MailRefused(Exception):
    """The server refused a mail. ``permanent``: it will refuse it again."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"{code} {said}")
        self.permanent = code >= 500


class MailServer:
    """Sends mails over a connection that is opened when needed and kept."""

    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        security: Security = "starttls",
        user: str | None = None,
        password: str | None = None,
        ca_file: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        """``timeout`` is in seconds, for each step; ``ca_file`` has certificates of your own."""
        self.host = host
        self.port = port or PORTS[security]
        self._security = security
        self._user = user
        self._password = password
        self._context = ssl.create_default_context(cafile=ca_file)
        self._timeout = timeout
        self._smtp: smtplib.SMTP | None = None

    def send(self, message: EmailMessage, sender: str, recipients: Sequence[str]) -> None:
        """Send a message to all of the recipients, or to none.

        Raises ServerAway; MailRefused; and OSError or smtplib.SMTPException if the connection
        is lost on the way: the server may have accepted the mail or not.
        """
        try:
            self._transfer(message, sender, recipients)
        except MailRefused:
            if self._smtp is not None:
                with contextlib.suppress(smtplib.SMTPException, OSError):
                    self._smtp.rset()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if there is one."""
        smtp, self._smtp = self._smtp, None
        if smtp is not None:
            smtp.close()

    def _transfer(self, message: EmailMessage, sender: str, recipients: Sequence[str]) -> None:
        beyond_ascii = not "".join((sender, *recipients)).isascii()
        options = ["SMTPUTF8", "BODY=8BITMIME"] if beyond_ascii else []
        smtp = self._smtp
        if smtp is None or not _begun(smtp, sender, options):
            smtp = self._connected()
            if beyond_ascii and not smtp.has_extn("smtputf8"):
                raise MailRefused(553, f"{self.host} does not know addresses beyond ASCII")
            _expect(*smtp.mail(sender, options), 250)
        for recipient in recipients:
            code, said = smtp.rcpt(recipient)
            _expect(code, recipient.encode() + b": " + said, 250, 251)
        form = policy.SMTPUTF8 if beyond_ascii else policy.SMTP
        try:
            _expect(*smtp.data(message.as_bytes(policy=form)), 250)
        except smtplib.SMTPDataError as error:
            raise MailRefused(error.smtp_code, _text(error.smtp_error)) from error

    def _connected(self) -> smtplib.SMTP:
        """A new connection."""
        self.close()
        try:
            self._smtp = self._connect()
        except (smtplib.SMTPException, OSError) as error:
            raise ServerAway(
                f"mail server {self.host}:{self.port} takes no mail: {error}"
            ) from error
        return self._smtp

    def _connect(self) -> smtplib.SMTP:
        smtp: smtplib.SMTP
        if self._security == "tls":
            smtp = smtplib.SMTP_SSL(
                self.host, self.port, timeout=self._timeout, context=self._context
            )
        else:
            smtp = smtplib.SMTP(self.host, self.port, timeout=self._timeout)
        try:
            if self._security == "starttls":
                smtp.starttls(context=self._context)
            smtp.ehlo_or_helo_if_needed()
            if self._user is not None:
                smtp.login(self._user, self._password or "")
        except BaseException:
            smtp.close()
            raise
        return smtp


def _begun(smtp: smtplib.SMTP, sender: str, options: list[str]) -> bool:
    """Whether the kept connection accepts the sender. If not, a new connection will say why.
    Servers close idle connections; nothing is lost by that."""
    try:
        return smtp.mail(sender, options)[0] == 250
    except (smtplib.SMTPException, OSError):
        return False


def _expect(code: int, said: bytes, *accepted: int) -> None:
    if code == -1:
        raise smtplib.SMTPServerDisconnected("the connection was closed")
    if code not in accepted:
        raise MailRefused(code, _text(said))


def _text(said: bytes | str) -> str:
    return said if isinstance(said, str) else said.decode("utf-8", "backslashreplace")
