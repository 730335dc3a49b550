"""Errors: a class for each SQLSTATE, and nothing secret in what they say."""

from __future__ import annotations

import re

import psycopg
import pytest

from pgqpy import PgqError, errors
from pgqpy.schema import schema_sql


def test_every_sqlstate_of_the_schema_has_a_class() -> None:
    raised = set(re.findall(r"'(PQ\d\d\d)'", schema_sql()))
    assert raised
    for sqlstate in raised:
        error = psycopg.errors.lookup("P0001")("message")
        error.sqlstate = sqlstate
        assert type(errors.from_psycopg(error)) is not PgqError, sqlstate


def test_what_psycopg_raises_is_the_cause() -> None:
    original = psycopg.errors.lookup("40001")("could not serialize")
    expected = pytest.raises(errors.RetryTransaction, match="could not serialize")
    with expected as info, errors.translate_errors():
        raise original
    assert info.value.__cause__ is original
    assert isinstance(info.value.diag, psycopg.errors.Diagnostic)
    assert info.value.sqlstate == "40001"


@pytest.mark.parametrize("sqlstate", [None, "57P01", "25P03"])
def test_a_session_that_was_lost_or_ended_is_a_failed_connection(sqlstate: str | None) -> None:
    kind = psycopg.errors.lookup(sqlstate) if sqlstate else psycopg.OperationalError
    error = errors.from_psycopg(kind("terminating connection"))
    assert isinstance(error, errors.ConnectionFailed)
    assert errors.is_transient(error)


def test_an_unknown_sqlstate_is_a_plain_error_that_keeps_it() -> None:
    error = errors.from_psycopg(psycopg.errors.lookup("22012")("division by zero"))
    assert type(error) is PgqError
    assert error.sqlstate == "22012"


def test_what_is_no_database_error_passes_untouched() -> None:
    with pytest.raises(KeyError), errors.translate_errors():
        raise KeyError


def test_an_error_shows_message_detail_and_hint_on_lines_of_their_own() -> None:
    error = PgqError("what", detail="more", hint="do this")
    assert str(error).splitlines() == ["what", "DETAIL: more", "HINT: do this"]
