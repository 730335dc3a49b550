"""Settings of consumers: what a file may say, and what is said about the rest."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import pgqpy
from pgqpy_consumers.settings import (
    ConfigError,
    Configured,
    build,
    configured,
    example,
    load,
    required,
    setting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    dsn: str = setting("The database.")
    queue: str = setting("The queue.", example="flights")
    tables: tuple[str, ...] = setting("The tables.", default=(), example=("public.flight",))
    pause: float = setting("Seconds between two looks.", default=1.5)
    at_most: int | None = setting("How many.", default=None, example=10)
    careful: bool = setting("Whether to look twice.", default=True)
    mode: Literal["plain", "merged"] = setting("How to write.", default="plain")
    password: str | None = setting("Of the server.", default=None, secret=True)
    headers: Mapping[str, str] = setting("More headers.", default={}, example={"X-From": "shop"})

    def __post_init__(self) -> None:
        if self.pause < 0:
            raise ValueError("pause must not be negative")


def test_a_file_sets_fields_of_every_type(tmp_path: Path) -> None:
    file = tmp_path / "sample.toml"
    file.write_text(
        'dsn = "postgresql:///shop"\nqueue = "orders"\ntables = ["a", "b"]\npause = 2\n'
        'at_most = 3\ncareful = false\nmode = "merged"\n[headers]\nX-A = "1"\n'
    )
    more = {"at_most": 3, "careful": False, "mode": "merged", "headers": {"X-A": "1"}}
    expected = {"dsn": "postgresql:///shop", "queue": "orders", "tables": ("a", "b"), "pause": 2.0}
    assert dataclasses.asdict(load(Sample, file)) == {"password": None, **expected, **more}


def test_what_is_left_out_has_its_default_and_what_is_given_besides_wins(tmp_path: Path) -> None:
    file = tmp_path / "sample.toml"
    file.write_text('dsn = "file"\nqueue = "orders"\n')
    made = load(Sample, file, {"dsn": "given"})
    assert (made.dsn, made.pause, made.tables, made.headers) == ("given", 1.5, (), {})
    # Secrets are not in the repr.
    assert "hidden" not in repr(build(Sample, {"dsn": "a", "queue": "b", "password": "hidden"}))


def test_variables_are_replaced_wherever_a_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "pa${X}ss")
    made = build(
        Sample,
        {
            "dsn": "postgresql://ann:${SECRET}@db/shop",
            "queue": "q",
            "tables": ["${SECRET}"],
            "headers": {"A": "${SECRET}$"},
        },
    )
    # Once: what a variable holds is taken as it is.
    assert made.dsn == "postgresql://ann:pa${X}ss@db/shop"
    assert (made.tables, made.headers) == (("pa${X}ss",), {"A": "pa${X}ss$"})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"qeue": "orders"}, "unknown key 'qeue' in the settings: did you mean queue?"),
        ({"zzz": 1}, "unknown key 'zzz' in the settings: known are dsn, queue, tables"),
        ({"queue": 1}, "queue in the settings must be a text, not a whole number"),
        ({"pause": "1"}, "pause in the settings must be a number, not a text"),
        ({"at_most": 1.5}, "at_most in the settings must be a whole number, not a number"),
        ({"at_most": True}, "at_most in the settings must be a whole number, not true or false"),
        ({"careful": 1}, "careful in the settings must be true or false, not a whole number"),
        ({"tables": "a"}, 'tables in the settings must be a list: tables = ["..."]'),
        ({"tables": [1]}, "an element of tables in the settings must be a text"),
        ({"headers": {"A": 1}}, "A of headers in the settings must be a text"),
        ({"mode": "mrged"}, "mode in the settings must be one of plain, merged, not 'mrged'"),
        ({"pause": -1}, "the settings: pause must not be negative"),
        ({"queue": "${NOT_SET_ANYWHERE}"}, "environment variable NOT_SET_ANYWHERE, which is not"),
        ({"queue": "${EMPTY}"}, "environment variable EMPTY, which is empty"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(
    more: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(ConfigError) as raised:
        build(Sample, {"dsn": "a", "queue": "b"} | more)
    assert message in str(raised.value)


def test_missing_keys_are_all_named_and_so_is_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no dsn \(The database\); queue \(The queue\)"):
        build(Sample, {})
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        load(Sample, tmp_path / "none.toml")
    file = tmp_path / "broken.toml"
    file.write_text("dsn = ")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        load(Sample, file)


def test_the_example_has_every_setting_and_is_a_file_that_works(tmp_path: Path) -> None:
    text = example(Sample)
    assert text.startswith('# The database.\ndsn = "postgresql:///shop"\n\n# The queue.\n')
    assert '# The tables.\n# tables = ["public.flight"]\n' in text
    assert text.endswith('# More headers.\n# [headers]\n# X-From = "shop"\n')
    file = tmp_path / "example.toml"
    file.write_text(text)
    assert load(Sample, file) == Sample(dsn="postgresql:///shop", queue="flights")
    everything = "\n".join(
        line.removeprefix("# ") for line in text.splitlines() if not line.endswith(".")
    )
    assert set(tomllib.loads(everything)) == set(Sample.__dataclass_fields__)
    file.write_text(everything)
    assert load(Sample, file).at_most == 10


class Counter(Configured, pgqpy.Consumer):
    """Counts late flights."""

    consumer = "counter"
    word: str = setting("A word.")
    minutes: int = setting("From how many minutes a flight is late.", default=15, at_least=1)

    @classmethod
    def check_config(cls, config: Any) -> None:
        if config.word == "no":
            raise ValueError("word must not be no")


class LaterCounter(Counter):
    queue = "flights"
    minutes = 60


class Copy(pgqpy.RemoteConsumer):
    queue = "flights"
    consumer = "copy"


class Repeater(Configured, pgqpy.Consumer):
    queue = "flights"
    consumer = "repeater"
    times: int = setting("How often.", at_least=1)
    word_: str = setting("What.", default="late")

    def __init__(self, dsn: str | None = None, *, times: int, **options: Any) -> None:
        super().__init__(dsn, **options)
        self.times = 10 * times

    def word(self, event: pgqpy.Event) -> str:
        return self.word_


def test_a_setting_is_declared_once_as_an_attribute() -> None:
    assert Counter.minutes == 15
    made = Counter.from_config(build(Counter.Config, {"queue": "flights", "word": "late"}))
    assert (made.queue, made.consumer, made.word, made.minutes) == (
        "flights",
        "counter",
        "late",
        15,
    )
    assert required(Counter.Config) == ["queue", "word"]
    assert "# From how many minutes a flight is late.\n# minutes = 15\n" in example(Counter.Config)


def test_what_a_subclass_sets_is_the_default() -> None:
    assert required(LaterCounter.Config) == ["word"]
    made = LaterCounter.from_config(build(LaterCounter.Config, {"word": "late"}))
    assert (made.queue, made.minutes) == ("flights", 60)
    assert build(LaterCounter.Config, {"word": "late", "minutes": 5}).minutes == 5


def test_a_setting_can_be_a_parameter_of_the_constructor_or_have_the_name_of_a_method() -> None:
    made = Repeater.from_config(build(Repeater.Config, {"times": 2, "word": "early"}))
    assert (made.times, made.word_) == (20, "early")
    assert '# What.\n# word = "late"\n' in example(Repeater.Config)
    with pytest.raises(ValueError, match="times must be at least 1"):
        Repeater.Config(times=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"word": "no"}, "the settings: word must not be no"),
        ({"minutes": 0}, "the settings: minutes must be at least 1"),
        ({"minuts": 1}, "unknown key 'minuts' in the settings: did you mean minutes?"),
    ],
)
def test_settings_of_a_class_are_checked(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(Counter.Config, {"queue": "flights", "word": "late"} | wrong)
    assert str(raised.value) == message


def test_any_consumer_has_the_settings_that_all_have() -> None:
    kind = configured(Copy)
    assert required(kind.Config) == ["target_dsn"]
    made = kind.from_config(build(kind.Config, {"target_dsn": "dbname=reports", "queue": "other"}))
    assert isinstance(made, Copy)
    assert (made.queue, made.consumer, made.target_dsn) == ("other", "copy", "dbname=reports")
    assert configured(Counter) is Counter
