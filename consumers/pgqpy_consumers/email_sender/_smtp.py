"""A mail server, and the one connection to it that is kept open."""

from __future__ import annotations

import contextlib
import io
import smtplib
import socket
import ssl
from collections.abc import Sequence
from email import policy
from email.message import EmailMessage
from time import monotonic
from typing import Any, Literal

Security = Literal["starttls", "tls", "none"]

PORTS: dict[Security, int] = {"starttls": 587, "tls": 465, "none": 25}

#: The most bytes of an answer; the longest that servers give are a list of what they can do.
_MOST = 65_536


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
        """``timeout`` is in seconds, for each command and its whole answer; ``ca_file`` has
        certificates of your own."""
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
            smtp = _TlsClient(self.host, self.port, timeout=self._timeout, context=self._context)
        else:
            smtp = _Client(self.host, self.port, timeout=self._timeout)
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


class _Client(smtplib.SMTP):
    """Bounds the time and the size of a whole answer; smtplib bounds those of a line at most."""

    def getreply(self) -> tuple[int, bytes]:
        sock: Any = self.sock
        if self.file is None:
            self._answers = _Answers(sock)
            self.file = io.BufferedReader(self._answers)
        self._answers.until = monotonic() + self.timeout
        self._answers.left = _MOST
        answer = super().getreply()
        sock.settimeout(self.timeout)
        return answer


class _TlsClient(_Client, smtplib.SMTP_SSL):
    """The same, encrypted from the first byte on."""


class _Answers(io.RawIOBase):
    """What a socket receives, until a time and up to a size."""

    until = 0.0
    left = 0

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds = self.until - monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        if self.left <= 0:
            raise OSError(f"an answer has more than {_MOST:,} bytes")
        self._sock.settimeout(seconds)
        size = self._sock.recv_into(buffer)
        self.left -= size
        return size


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
