"""Checks of a user's class before it processes anything: settings, methods, handlers.

A mistake would otherwise show at the first event, or never: a coroutine that is not awaited does
nothing, and its batch is finished.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from numbers import Integral
from types import FunctionType
from typing import Any, TypeGuard

from pgqpy.errors import InvalidConsumer
from pgqpy.retry import DeadLetter, Retry, RetryPolicy

#: The modules whose classes declare the known names.
_OURS = ("pgqpy.", "pgqpy_consumers.")
_HOOKS = ("process_", "handle_", "on_", "prepare_")
_NO_SETTINGS = (FunctionType, property, classmethod, staticmethod, type)
#: The similarity, from 0 to 1, of names that differ in a letter or two.
_NEAR = 0.85


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of settings: in words, and as a test."""

    wanted: str
    test: Callable[[Any], bool]
    optional: bool = False

    def or_none(self) -> Kind:
        """Accept None as well."""
        return replace(self, wanted=f"{self.wanted}, or None", optional=True)

    def check(self, owner: object, name: str) -> None:
        """Raise InvalidConsumer if the attribute is something else."""
        value = getattr(owner, name)
        if (value is None and self.optional) or self.test(value):
            return
        raise InvalidConsumer(
            f"{type(owner).__name__}: {name} is {value!r}; it must be {self.wanted}"
        )


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, of any type; True is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < math.inf


COUNT = Kind("a whole number, at least 1", lambda value: is_whole(value) and value >= 1)
SECONDS = Kind("a number of seconds, not negative", lambda v: _is_number(v) and v >= 0)
POSITIVE_SECONDS = Kind("a positive number of seconds", lambda v: _is_number(v) and v > 0)
TEXT = Kind("a str", lambda value: isinstance(value, str))
INTERVAL = Kind("a timedelta", lambda value: isinstance(value, timedelta))
POSITIVE_INTERVAL = Kind(
    "a positive timedelta", lambda value: isinstance(value, timedelta) and value > timedelta()
)
START = Kind(
    '"first", "now", or a datetime with a time zone',
    lambda v: v.utcoffset() is not None if isinstance(v, datetime) else v in ("first", "now"),
)
# The letters of a text would pass for names that do not exist.
SEVERAL = Kind("several, such as a tuple", lambda value: not isinstance(value, str | bytes))
EXCEPTIONS = Kind(
    "a tuple of classes of exceptions",
    lambda value: (
        isinstance(value, tuple)
        and all(isinstance(each, type) and issubclass(each, Exception) for each in value)
    ),
)


def check_settings(owner: object, kinds: Mapping[str, Kind]) -> None:
    """Raise InvalidConsumer if an attribute is not of its kind."""
    for name, kind in kinds.items():
        kind.check(owner, name)


def overrides(owner: object, name: str) -> bool:
    """Whether a user's class has this method."""
    declared = next(each for each in type(owner).__mro__ if name in vars(each))
    return not declared.__module__.startswith("pgqpy.")


def check_policy(policy: RetryPolicy) -> None:
    """Raise InvalidConsumer if it cannot be called like a policy."""
    if isinstance(policy, type):
        raise InvalidConsumer(
            f"retry_policy is the class {policy.__name__}, not an object: {policy.__name__}(...)"
        )
    try:
        inspect.signature(policy).bind(1, Exception())
    except TypeError as error:
        raise InvalidConsumer(
            f"retry_policy cannot be called with an attempt and an error: {error}; as an attribute "
            "of a class a function must be a staticmethod"
        ) from None


def check_returned(outcome: object) -> None:
    """Raise TypeError for an outcome of tasks: returned by a consumer, it would have no effect."""
    if isinstance(outcome, Retry | DeadLetter):
        raise TypeError(f"a {type(outcome).__name__} was returned; in a consumer, raise it")


def check_handler(owner: object, handler: object, *arguments: str) -> None:
    """Raise InvalidConsumer if the handler cannot be called with these arguments.

    The class is one of asyncio if its `run` is.
    """
    where = f"{type(owner).__name__}: the handler"
    if not callable(handler):
        raise InvalidConsumer(f"{where} {handler!r:.80} cannot be called")
    check_runs(where, handler)
    awaited = inspect.iscoroutinefunction(getattr(owner, "run"))  # noqa: B009
    call = getattr(handler, "__call__")  # noqa: B004, B009
    given = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
    # A lambda may return an awaitable.
    is_lambda = getattr(handler, "__name__", "<lambda>") == "<lambda>"
    if given != awaited and (given or not is_lambda):
        raise InvalidConsumer(_mixed(where, awaited))
    _check_call(where, handler, arguments)


def check_hooks(owner: object) -> None:
    """Raise InvalidConsumer if a method to override cannot be called, or if an attribute's name
    resembles that of a setting or such a method, and would be ignored."""
    check_names(type(owner))
    for name, declared in _hooks(type(owner)):
        _check_method(owner, name, declared)


def check_names(cls: type) -> None:
    """Raise InvalidConsumer for an attribute whose name resembles that of a setting or of a method
    to override. Other attributes are the class's own."""
    ours = [each for each in cls.__mro__ if each.__module__.startswith(_OURS)]
    known = {
        _plain(name): name
        for each in ours
        for name, value in vars(each).items()
        if not name.startswith("_")
        and (name.startswith(_HOOKS) or not isinstance(value, _NO_SETTINGS))
    }
    for each in cls.__mro__:
        if each in ours:
            continue
        for name in vars(each):
            if name.startswith("_") or any(hasattr(base, name) for base in ours):
                continue
            plain = _plain(name)
            # Short words resemble each other, and the first letter is rarely wrong.
            like = [one for one in known if one[0] == plain[0] and (len(one) > 4 or one == plain)]
            if near := get_close_matches(plain, like, n=1, cutoff=_NEAR):
                raise InvalidConsumer(
                    f"{cls.__name__}: there is no {name}; did you mean {known[near[0]]}?",
                    hint="An attribute of your own needs a name that is less like it.",
                )


def check_runs(where: str, function: object) -> None:
    """Raise InvalidConsumer if calling the function does nothing."""
    call = getattr(function, "__call__", None)  # noqa: B004
    for each in (function, call):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise InvalidConsumer(f"{where} has a yield, so that a call of it does nothing")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _hooks(cls: type) -> Iterator[tuple[str, object]]:
    """Yield the methods to override, as pgqpy declares them."""
    declared = {
        name: function
        for each in cls.__mro__
        if each.__module__.startswith("pgqpy.")
        for name, function in vars(each).items()
        if name.startswith(_HOOKS)
    }
    yield from declared.items()


def _check_method(owner: object, name: str, declared: object) -> None:
    given = getattr(owner, name)
    function = getattr(given, "__func__", given)
    if function is declared or not inspect.isfunction(function) or not inspect.isfunction(declared):
        return
    where = f"{type(owner).__name__}.{name}"
    check_runs(where, inspect.unwrap(function))
    awaited = inspect.iscoroutinefunction(declared)
    if inspect.iscoroutinefunction(inspect.unwrap(function)) != awaited:
        raise InvalidConsumer(_mixed(where, awaited))
    _check_call(where, given, [*inspect.signature(declared).parameters][1:])


def _mixed(where: str, awaited: bool) -> str:
    if awaited:
        return f"{where} must be `async def` in a class of asyncio"
    return f"{where} must not be `async def`; the classes of asyncio begin with Async"


def _check_call(where: str, function: Callable[..., Any], arguments: list[str] | Any) -> None:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise InvalidConsumer(
            f"{where} is called with ({', '.join(arguments)}); it takes"
            f" {inspect.signature(function)}"
        ) from None
