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
    # The format where there is no terminal.
    stream, log = lines("auto")
    log.warning("a b", extra={"queue": 'x="1"', "empty": "", "newline": "a\nb", "n": 3})
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert 'level=warning message="a b" database=shop queue="x=\\"1\\"" empty="" ' in line
    assert line.endswith('newline="a\\nb" n=3\n')


@pytest.mark.parametrize("form", ["text", "logfmt", "json"])
def test_no_text_writes_a_line_of_its_own_or_controls_a_terminal(form: str) -> None:
    stream, log = lines(form)
    log.info("queue a\nb\x1b[2J\x9b31m\u202e", extra={"queue": "a\nb\x1b\x9b31m\u202e"})
    assert stream.getvalue().removesuffix("\n").isprintable()


def test_a_terminal_shows_the_database_before_the_message() -> None:
    stream, log = lines("text")
    log.info("leading", extra={"server_pid": 7})
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} INFO    shop: leading  server_pid=7\n", stream.getvalue()
    )


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


@pytest.mark.parametrize(
    ("troubles", "said"),
    [
        # A lasting one is two lines, its beginning and its end, also if its numbers change.
        (["away"] * 100, ["away", "back"]),
        ([f"at {number}" for number in range(10)], ["at 0", "back"]),
        # Another is told although the first is not over.
        (
            ["refused", "refused", "starting up", "refused"],
            ["refused", "starting up", "refused", "back"],
        ),
    ],
)
def test_a_trouble_is_told_once_and_its_end(troubles: list[str], said: list[str]) -> None:
    stream, log = lines("json")
    setbacks = FailureLog(log, 1.0, 64.0)
    setbacks.recovered("back")
    for trouble in troubles:
        setbacks.failed(trouble)
    setbacks.recovered("back")
    setbacks.recovered("back")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == said


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
