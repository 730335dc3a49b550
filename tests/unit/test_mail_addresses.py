"""Mails go to the addresses that the settings name, and no value of an event adds any."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgqpy import Event
from pgqpy_consumers.email_sender import EmailSender, Mail, MailTemplate
from pgqpy_consumers.email_sender._mail import AddressTemplate, InvalidMail, one_address

EVENT = Event(1, datetime(2026, 1, 2, tzinfo=UTC), 1, 0, None, None)

#: Values of a hostile column.
HOSTILE = [
    *("a@x.example, b@y.example", "a@x.example,b@y.example", "a@x.example; b@y.example"),
    *("a@x.example b@y.example", "<a@x.example> <b@y.example>", "a@x.example <b@y.example>"),
    *("a@x.example (b@y.example)", "a(b)@x.example", "Ann (shop) <a@x.example>"),
    *("all: a@x.example, b@y.example;", "all:;", "a@x.example\r\nBcc: b@y.example"),
    *("a@x.example\nBcc: b@y.example", "a@x.example\rBcc: b@y.example"),
    *("a@x.example\u2028Bcc: b@y.example", "a@x.example\x85b@y.example", "a@x.example\x00"),
    *('"a@x.example, b"@y.example, c@z.example', "a@b@x.example", "@x.example", "a@", "", " "),
    *("=?utf-8?q?a=40x.example=2C_b=40y.example?=", "a@x.example" + "x" * 10_000),
]


def template(to: str, subject: str = "x") -> MailTemplate:
    return MailTemplate(to=to, subject=subject, body="x")


def sent(mail: Mail) -> tuple[list[str], bytes]:
    """The recipients, and the header."""
    message = mail.message("The shop <shop@shop.example>", EVENT, "1")
    return mail.recipients, message.as_bytes().partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize("value", HOSTILE)
def test_what_stands_for_an_address_is_one_address_or_there_is_no_mail(value: str) -> None:
    for to in ("{email}", "Ann <{email}>", "<{email}>", "{email}, o@shop.example"):
        with pytest.raises(InvalidMail):
            sent(template(to).mail({"email": value}))
    fine = {"to": ["a@x.example"], "subject": "x", "body": "x"}
    for wrong in ({"to": value}, {"to": ["a@x.example", value]}, {"cc": value}, {"bcc": [value]}):
        with pytest.raises(InvalidMail):
            sent(Mail.from_json(fine | wrong))
    if value:
        with pytest.raises(InvalidMail):
            sent(Mail.from_json(fine | {"reply_to": value}))
    with pytest.raises(InvalidMail):
        Mail.from_json(fine).message(value, EVENT, "1")
    with pytest.raises(ValueError, match="address"):
        EmailSender.Config(queue="q", host="h", sender=value)
    # As a name it is a name, whatever is in it.
    with contextlib.suppress(InvalidMail):
        row = {"name": value, "email": "a@x.example"}
        recipients, header = sent(template("{name} <{email}>").mail(row))
        assert recipients == ["a@x.example"]
        assert header.count(b"\r\nTo:") == 1
        assert b"Bcc" not in header.replace(b"\r\n ", b"")


@given(st.text(max_size=40), st.text(max_size=40))
@example("=?utf-8?q?x=0D=0ABcc:_b@y.example?=", "a@x.example")
@example("x", "=?utf-8?q?x=0ABcc=3A_b?= <a@x.example>")
@example("=?utf-8?b?eA0KQmNjOiBiQHkuZXhhbXBsZQ==?=", "a@x.example")
def test_no_value_adds_a_field_or_a_recipient(name: str, email: str) -> None:
    row = {"name": name, "email": email}
    for to in ("{name} <{email}>", '"{name}, of the shop" <{email}>', "{email}"):
        try:
            recipients, header = sent(template(to, "Dear {name}").mail(row))
        except InvalidMail:
            continue
        assert len(recipients) == 1
        fields = [line for line in header.split(b"\r\n") if line[:1] not in (b" ", b"\t")]
        assert [field.partition(b":")[0] for field in fields] == [
            *(b"From", b"To", b"Subject", b"Date", b"Message-ID"),
            *(b"Content-Type", b"Content-Transfer-Encoding", b"MIME-Version"),
        ]


@pytest.mark.parametrize(
    ("to", "row", "filled"),
    [
        ("{email}", {"email": "ann@x.example"}, ("ann@x.example",)),
        ("{email}", {"email": "Ann <ann@x.example>"}, ("Ann <ann@x.example>",)),
        ("{email}", {"email": '"Doe, Ann" <ann@x.example>'}, ('"Doe, Ann" <ann@x.example>',)),
        ("{first} {last} <{email}>", {"first": "A", "last": "B", "email": "a@x"}, ("A B <a@x>",)),
        ('"{last}, {first}" <{email}>', {"first": "A", "last": "B", "email": "a@x"},
         ('"B, A" <a@x>',)),
        ("{n} <{email}>", {"n": 'B", <c@y>', "email": "a@x"}, ('"B\\", <c@y>" <a@x>',)),
        ("o+{id:05}@{shop}.example", {"id": 7, "shop": "toys"}, ("o+00007@toys.example",)),
        ("Änn <o@x.example> , {email}", {"email": "a@x"}, ("Änn <o@x.example>", "a@x")),
        ("{price:,.2f}@x.example", {"price": 12}, ("12.00@x.example",)),
    ],
)  # fmt: skip
def test_addresses_are_what_the_template_says(
    to: str, row: dict[str, object], filled: tuple[str, ...]
) -> None:
    mail = template(to).mail(row)
    assert mail.to == filled
    assert [one_address(each).addr_spec for each in filled] == mail.recipients


def test_an_address_behind_a_name_has_no_name_of_its_own() -> None:
    with pytest.raises(InvalidMail, match="no address to be put behind a name"):
        template("{n} <{email}>").mail({"n": "Ann", "email": "Bob <b@x.example>"})


def test_a_template_that_is_no_list_of_addresses_is_refused_at_once() -> None:
    for to in ("{a} {b}", "all: {a};", "{a} ({b})", "<{a}", "{a},", ",{a}", "a b"):
        with pytest.raises(InvalidMail, match="no list of addresses"):
            AddressTemplate(to)
        with pytest.raises(ValueError, match="no list of addresses"):
            EmailSender.Config(queue="q", host="h", sender="a@x", to=to, subject="x", body="x")


def test_a_subject_is_one_line() -> None:
    for subject in ("x\r\nBcc: b@y", "x\nBcc: b@y", "x\u2029y", "x\x0cy", "x\x00"):
        with pytest.raises(InvalidMail, match="subject has a line end"):
            sent(template("a@x.example", "{s}").mail({"s": subject}))
