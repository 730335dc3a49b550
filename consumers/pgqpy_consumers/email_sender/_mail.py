"""A mail and its text: from an event's JSON, or from a captured row and a template."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from functools import cached_property
from typing import Any, Self

from pgqpy import Event

#: Headers that the mail's other fields set, or that the sender sets; and those by which programs
#: on the way would find other senders and recipients.
_OURS = frozenset(
    {"to", "cc", "bcc", "from", "subject", "date", "message-id", "reply-to", "mime-version"}
    | {"sender", "return-path", "errors-to", "apparently-to"}
)
_OUR_KINDS = ("content-", "resent-")

#: The most characters of addresses, subject and headers together; folding more takes minutes.
_MOST = 50_000

#: Some servers on the way do not accept eight bits.
_POLICY = policy.SMTP.clone(cte_type="7bit")


class InvalidMail(ValueError):
    """An event does not say what to send; the message says what is missing or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A mail and its recipients. Each text is one address: `Ann <ann@shop.example>`."""

    to: tuple[str, ...]
    subject: str
    body: str
    html: str | None = None
    cc: tuple[str, ...] = ()
    bcc: tuple[str, ...] = ()
    reply_to: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """The mail described by an object with these fields; "to", "cc" and "bcc" may be a text
        instead of a list. Raises InvalidMail."""
        if not isinstance(value, dict):
            raise InvalidMail("the data is no JSON object with to, subject and body")
        if unknown := set(value) - set(cls.__dataclass_fields__):
            raise InvalidMail(f"a mail has no {', '.join(sorted(map(str, unknown)))}")
        for name in ("subject", "body", "html", "reply_to"):
            if not isinstance(value.get(name, ""), str):
                raise InvalidMail(f"{name} is no text")
        if missing := [name for name in ("to", "subject", "body") if not value.get(name)]:
            raise InvalidMail(f"{', '.join(missing)} missing")
        headers = value.get("headers", {})
        if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
            raise InvalidMail("headers is no object with texts")
        lists = {name: _addresses(name, value.get(name, [])) for name in ("to", "cc", "bcc")}
        return cls(**(value | lists))

    @property
    def recipients(self) -> list[str]:
        """The plain addresses of all recipients, each once. Raises InvalidMail."""
        found = [one_address(text).addr_spec for text in (*self.to, *self.cc, *self.bcc)]
        return list(dict.fromkeys(found))

    def message(self, sender: str, event: Event, unique: str) -> EmailMessage:
        """The message; identical each time, to the byte.

        ``unique`` is the event's name in the Message-ID, by which receivers detect a mail that
        came twice.

        Raises InvalidMail, for instance for a line end in a subject.
        """
        short = (self.subject, *self.to, *self.cc, *self.bcc, *self.headers, *self.headers.values())
        if sum(map(len, short)) > _MOST:
            raise InvalidMail(f"addresses, subject and headers have more than {_MOST:,} characters")
        message = EmailMessage(policy=_POLICY)
        try:
            message["From"] = one_address(sender)
            message["To"] = [one_address(text) for text in self.to]
            if self.cc:
                message["Cc"] = [one_address(text) for text in self.cc]
            if self.reply_to:
                message["Reply-To"] = one_address(self.reply_to)
            message["Subject"] = _one_line("subject", self.subject)
            message["Date"] = format_datetime(event.time)
            domain = plain_address(sender).rpartition("@")[2]
            message["Message-ID"] = f"<{unique}@{domain}>"
            for name, text in self.headers.items():
                ours = name.lower() in _OURS or name.lower().startswith(_OUR_KINDS)
                if ours or not re.fullmatch(r"[!-9;-~]+", name):
                    raise InvalidMail(
                        f"{name!r} is no header to be given in headers: they change neither"
                        " sender and recipients nor the form of the mail"
                    )
                message[name] = _one_line(name, text)
            message.set_content(self.body)
            if self.html is not None:
                message.add_alternative(self.html, subtype="html")
                message.set_boundary(f"=={unique}")
        except InvalidMail:
            raise
        except (ValueError, IndexError) as error:
            raise InvalidMail(str(error)) from error
        _check_header(message)
        return message


@dataclass(frozen=True, kw_only=True)
class MailTemplate:
    """Makes mails from captured rows: ``{column}`` is the column's value, escaped in HTML.

    ``to`` may be several addresses, separated by commas; a column's value cannot add one.
    """

    to: str
    subject: str
    body: str
    html: str | None = None

    @cached_property
    def addresses(self) -> AddressTemplate:
        """The template of ``to``. Raises InvalidMail if it is no list of addresses."""
        return AddressTemplate(self.to)

    def mail(self, row: Mapping[str, Any]) -> Mail:
        """The mail for a row. Raises InvalidMail if the row lacks a column."""
        row = {column: "" if value is None else value for column, value in row.items()}
        escaped = {column: html.escape(str(value)) for column, value in row.items()}
        return Mail(
            to=self.addresses.fill(lambda text: self._filled(text, row)),
            subject=self._filled(self.subject, row),
            body=self._filled(self.body, row),
            html=None if self.html is None else self._filled(self.html, escaped),
        )

    def _filled(self, template: str, row: Mapping[str, Any]) -> str:
        try:
            return template.format_map(row)
        except KeyError as error:
            raise InvalidMail(f"the row has no column {error}") from error
        except (ValueError, IndexError, AttributeError, TypeError) as error:
            raise InvalidMail(f"the template {template!r} cannot be filled: {error}") from error


def captured_row(event: Event) -> dict[str, Any]:
    """The row of an event; numbers keep their zeros. Raises ValueError if there is none."""
    if event.data is not None and event.data.startswith("{"):
        row: dict[str, Any] = json.loads(event.data, parse_float=Decimal)
        return row
    return event.row()


def plain_address(text: str) -> str:
    """The address in `Ann <ann@shop.example>`. Raises InvalidMail if it is not one address."""
    return one_address(text).addr_spec


def _one_line(name: str, text: str) -> str:
    if has_controls(text):
        raise InvalidMail(f"{name} has a line end (linefeed, carriage return) or control character")
    return text


def _check_header(message: EmailMessage) -> None:
    """Check that no header holds an encoded line end, in either form that a mail is sent in. Raises
    InvalidMail."""
    for form in (policy.SMTP, policy.SMTPUTF8):
        for name, value in message.raw_items():
            try:
                field = form.fold_binary(name, value)
            except UnicodeEncodeError:
                # The message cannot be sent in this form.
                continue
            if _LOOSE_LINE_END.search(field.removesuffix(b"\r\n")):
                raise InvalidMail(f"{name} holds an encoded line end")


_LOOSE_LINE_END = re.compile(rb"\r(?!\n)|(?<!\r)\n|\r\n(?![ \t])")


def _addresses(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise InvalidMail(f"{name} is neither an address nor a list of addresses")
    return tuple(value)


# --- addresses: a text is exactly one
#
# A value from an event must not become a second address, a comment that hides one, or a header.
# The parsers of the standard library accept all of these, so they are not used.

_LONGEST = 900
_ATOM = r'[^\s()<>\[\]:;@\\,"]+'
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PLAIN = rf"(?P<{{0}}_user>{_ATOM}|{_QUOTED})@(?P<{{0}}_domain>{_ATOM}|\[[^\s\[\]\\]*\])"
_NAMED = re.compile(
    rf"""\s*(?:(?P<name>{_QUOTED}|[^()<>\[\]:;@\\,"]*?)\s*<{_PLAIN.format("in")}>"""
    rf"|{_PLAIN.format('bare')})\s*"
)

# An address of a template, up to its end or the next comma; {column} fits into any part of one.
_COLUMN = r"\{\{|\}\}|\{[^{}]*\}"
_FILLED = rf"""(?:[^\s()<>\[\]:;@\\,"{{}}]|{_COLUMN})+"""
_FILLABLE = rf"(?:{_FILLED}|{_QUOTED})(?:@(?:{_FILLED}|\[[^\s\[\]\\]*\]))?"
_PART = re.compile(
    rf"""\s*(?:(?P<name>{_QUOTED}|(?:[^()<>\[\]:;@\\,"{{}}]|{_COLUMN})*?)\s*"""
    rf"""<(?P<named>{_FILLABLE})>|(?P<bare>{_FILLABLE}))\s*(?=,|\Z)"""
)


def one_address(text: str) -> Address:
    """Parse a single address: `ann@shop.example` or `Ann <ann@shop.example>`. Raises InvalidMail if
    the text is no address, several, a group, or has a comment."""
    if len(text) > _LONGEST:
        raise InvalidMail(f"an address has at most {_LONGEST} characters, this one {len(text)}")
    if has_controls(text):
        raise InvalidMail(f"{text!r} is no address: it has a line end or control character")
    found = _NAMED.fullmatch(text.strip())
    if found is None:
        raise InvalidMail(f"{text!r} is no address, or more than one")
    user = found["in_user"] or found["bare_user"]
    domain = found["in_domain"] or found["bare_domain"]
    return Address(_unquoted(found["name"] or ""), _unquoted(user), domain)


class AddressTemplate:
    """Addresses with ``{column}`` in them; each stays one address whatever the columns hold."""

    def __init__(self, template: str) -> None:
        """Raises InvalidMail if the template is no list of addresses."""
        self._parts: list[dict[str, str | None]] = []
        end = -1
        while end < len(template):
            found = _PART.match(template, end + 1)
            if found is None:
                raise InvalidMail(f"{template!r} is no list of addresses")
            self._parts.append(found.groupdict())
            end = found.end()

    def fill(self, filled: Callable[[str], str]) -> tuple[str, ...]:
        """The addresses; ``filled`` fills the columns of a text. Raises InvalidMail if a result is
        not exactly one address."""
        return tuple(str(self._address(filled, **part)) for part in self._parts)

    def _address(
        self, filled: Callable[[str], str], name: str | None, named: str | None, bare: str | None
    ) -> Address:
        address = one_address(filled(named or bare or ""))
        if named is None:
            return address
        if address.display_name:
            raise InvalidMail(f"{str(address)!r} is no address to be put behind a name")
        shown = filled(_unquoted(name or ""))
        if has_controls(shown):
            raise InvalidMail(f"the name {shown!r} has a line end or control character")
        return Address(shown, address.username, address.domain)


def has_controls(text: str) -> bool:
    """Whether a text has line ends of any kind, or control characters other than tabs."""
    return any(unicodedata.category(each) in ("Cc", "Zl", "Zp") for each in text if each != "\t")


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text.strip()
