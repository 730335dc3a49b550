"""Log lines: one a fact, for people and for machines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from pgqpy_ticker import logs
from pgqpy_ticker.trouble import Complaints


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Other tests must not write into this one's stream."""
    logger = logging.getLogger(logs.LOGGER)
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def lines(form: str, *, level: str = "info") -> tuple[io.StringIO, logs.Log]:
    stream = io.StringIO()
    logs.setup(level, form, stream)
    return stream, logs.Log(database="shop")


def test_json_lines_hold_every_field() -> None:
    stream, log = lines("json")
    log.info("it is %s", "so", extra={"queue": "o'clock", "age": 1.5, "nothing": None})
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "message": "it is so",
        "database": "shop",
        "queue": "o'clock",
        "age": 1.5,
    }


def test_logfmt_quotes_what_would_be_ambiguous() -> None:
    stream, log = lines("logfmt")
    log.warning("a b", extra={"queue": 'x="1"', "empty": "", "newline": "a\nb", "n": 3})
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert 'level=warning message="a b" database=shop queue="x=\\"1\\"" empty="" ' in line
    assert line.endswith('newline="a\\nb" n=3\n')


def test_a_terminal_shows_the_database_before_the_message() -> None:
    stream, log = lines("text")
    log.info("leading", extra={"server_pid": 7})
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} INFO    shop: leading  server_pid=7\n", stream.getvalue()
    )


def test_what_is_no_terminal_gets_logfmt() -> None:
    stream, log = lines("auto")
    log.info("hello")
    assert "message=hello" in stream.getvalue()


@pytest.mark.parametrize("form", ["text", "logfmt", "json"])
def test_a_traceback_is_shown(form: str) -> None:
    stream, log = lines(form)
    try:
        raise ZeroDivisionError("by nought")
    except ZeroDivisionError:
        log.exception("bug")
    assert "ZeroDivisionError: by nought" in stream.getvalue()


def test_lines_below_the_level_are_left_out() -> None:
    stream, log = lines("json", level="warning")
    log.info("detail")
    assert stream.getvalue() == ""


def test_a_lasting_trouble_is_two_lines_its_beginning_and_its_end() -> None:
    stream, log = lines("json")
    complaints = Complaints(log)
    complaints.over("back")
    for _ in range(100):
        complaints.complain("away")
    complaints.over("back")
    complaints.over("back")
    said = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert said == ["away", "back"]


def test_another_trouble_is_told_although_the_first_is_not_over() -> None:
    stream, log = lines("json")
    complaints = Complaints(log)
    for message in ("refused", "refused", "starting up", "refused"):
        complaints.complain(message)
    said = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert said == ["refused", "starting up", "refused"]
