"""Log lines: one a fact, for people and for machines."""

from __future__ import annotations

import io
import itertools
import json
import logging
import re
from collections.abc import Iterator

import pytest

from pgqpy_ticker import logs
from pgqpy_ticker.logs import FailureLog


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
    setbacks = FailureLog(log, 1.0, 64.0)
    setbacks.recovered("back")
    for _ in range(100):
        setbacks.failed("away")
    setbacks.recovered("back")
    setbacks.recovered("back")
    said = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert said == ["away", "back"]


def test_another_trouble_is_told_although_the_first_is_not_over() -> None:
    stream, log = lines("json")
    setbacks = FailureLog(log, 1.0, 64.0)
    for message in ("refused", "refused", "starting up", "refused"):
        setbacks.failed(message)
    said = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert said == ["refused", "starting up", "refused"]


def test_a_trouble_whose_numbers_change_is_the_same() -> None:
    stream, log = lines("json")
    setbacks = FailureLog(log, 1.0, 64.0)
    for number in range(10):
        setbacks.failed(f"this cluster is at {number}")
    assert len(stream.getvalue().splitlines()) == 1


def test_what_works_and_fails_by_turns_is_tried_ever_more_rarely() -> None:
    stream, log = lines("json")
    setbacks = FailureLog(log, 1.0, 64.0)
    pauses = []
    for _ in range(7):
        setbacks.failed("away")
        pauses.append(setbacks.pause())
        setbacks.recovered("back")
    assert all(later > earlier for earlier, later in itertools.pairwise(pauses))
    assert len(stream.getvalue().splitlines()) == 14


def test_after_a_time_without_failure_pauses_begin_anew() -> None:
    _, log = lines("json")
    setbacks = FailureLog(log, 0.001, 0.004)
    for _ in range(5):
        longest = setbacks.pause()
    while not setbacks.rested:
        setbacks.recovered("back")
    setbacks.recovered("back")
    assert setbacks.pause() < longest / 2
