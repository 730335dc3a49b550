"""Addresses of mails: a text is exactly one address, whatever it contains.

A value from an event must not become a second address, a comment that hides one, or a header.
The parsers of the standard library accept all of these, so they are not used.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from email.headerregistry import Address
from string import Formatter

_FIRST_HOLE = 0xE000
_HOLE = re.compile("[\ue000-\uf8ff]")
#: Placeholder characters; they are removed if a template contains them.
_HOLES = dict.fromkeys(range(_FIRST_HOLE, 0xF900))


class InvalidMail(ValueError):
    """An event does not say what to send; the message says what is missing or wrong."""


_LONGEST = 900
_ATOM = r'[^\s()<>\[\]:;@\\,"]+'
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PLAIN = rf"(?P<{{0}}_user>{_ATOM}|{_QUOTED})@(?P<{{0}}_domain>{_ATOM}|\[[^\s\[\]\\]*\])"
_NAMED = re.compile(
    rf"""\s*(?:(?P<name>{_QUOTED}|[^()<>\[\]:;@\\,"]*?)\s*<{_PLAIN.format("in")}>"""
    rf"|{_PLAIN.format('bare')})\s*"
)

# An address of a template, up to its end or the next comma.
_FILLABLE = rf"(?:{_ATOM}|{_QUOTED})(?:@(?:{_ATOM}|\[[^\s\[\]\\]*\]))?"
_PART = re.compile(
    rf"""\s*(?:(?P<name>{_QUOTED}|[^()<>\[\]:;@\\,"]*?)\s*<(?P<named>{_FILLABLE})>"""
    rf"|(?P<bare>{_FILLABLE}))\s*(?=,|\Z)"
)


def one_address(text: str) -> Address:
    """Parse a single address: `ann@shop.example` or `Ann <ann@shop.example>`.

    Raises InvalidMail if the text is no address, several, a group, or has a comment.
    """
    if len(text) > _LONGEST:
        raise InvalidMail(f"an address has at most {_LONGEST} characters, this one {len(text)}")
    if has_controls(text):
        raise InvalidMail(f"{text!r} is no address: it has a line end or control character")
    found = _NAMED.fullmatch(text)
    if found is None:
        raise InvalidMail(f"{text!r} is no address, or more than one")
    user = found["in_user"] or found["bare_user"]
    domain = found["in_domain"] or found["bare_domain"]
    return Address(_unquoted(found["name"] or ""), _unquoted(user), domain)


class AddressTemplate:
    """Addresses with ``{column}`` in them; each stays one address whatever the columns hold."""

    def __init__(self, template: str) -> None:
        """Raises InvalidMail if the template is no list of addresses."""
        self.template = template
        # Columns become single characters that no address has and that fit in any part of one.
        self._columns: list[str] = []
        text = ""
        for literal, column, form, conversion in Formatter().parse(template):
            text += literal.translate(_HOLES)
            if column is not None:
                text += chr(_FIRST_HOLE + len(self._columns))
                how = (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
                self._columns.append(f"{{{column}{how}}}")
        self._parts = [found.groupdict() for found in self._split(text)]

    def fill(self, value_of: Callable[[str], str]) -> tuple[str, ...]:
        """The addresses; ``value_of`` gives the value of a column, named as ``{column}``.

        Raises InvalidMail if a result is not exactly one address.
        """
        return tuple(str(self._filled(value_of, **part)) for part in self._parts)

    def _split(self, text: str) -> Iterator[re.Match[str]]:
        at = 0
        while True:
            found = _PART.match(text, at)
            if found is None:
                raise InvalidMail(f"{self.template!r} is no list of addresses")
            yield found
            if found.end() == len(text):
                return
            at = found.end() + 1

    def _filled(
        self,
        value_of: Callable[[str], str],
        name: str | None,
        named: str | None,
        bare: str | None,
    ) -> Address:
        def with_values(text: str) -> str:
            return _HOLE.sub(lambda hole: value_of(self._columns[ord(hole[0]) - _FIRST_HOLE]), text)

        address = one_address(with_values(named or bare or ""))
        if named is None:
            return address
        if address.display_name:
            raise InvalidMail(f"{str(address)!r} is no address to be put behind a name")
        shown = with_values(_unquoted(name or ""))
        if has_controls(shown):
            raise InvalidMail(f"the name {shown!r} has a line end or control character")
        return Address(shown, address.username, address.domain)


def has_controls(text: str) -> bool:
    """Whether a text has line ends of any kind, or control characters other than tabs."""
    return any(unicodedata.category(each) in ("Cc", "Zl", "Zp") for each in text if each != "\t")


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text.strip()
