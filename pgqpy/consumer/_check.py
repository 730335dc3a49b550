"""Checks of a consumer's class, before it takes an event."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from datetime import timedelta
from difflib import get_close_matches
from types import FunctionType

from pgqpy.errors import InvalidConsumer

#: Settings of `pgqpy.Consumer` and its subclasses that must be positive integers.
_COUNTS = ("batch_size", "concurrency")
_SECONDS = ("poll_interval", "backoff_first", "backoff_cap", "reconnect_cap")
_INTERVALS = ("min_lag", "max_lag", "dead_after", "lease")


#: The modules whose classes declare the known names.
_OURS = ("pgqpy.", "pgqpy_consumers.")
_HOOKS = ("process_", "handle_", "on_", "prepare_")
_NO_SETTINGS = (FunctionType, property, classmethod, staticmethod, type)
#: The similarity, from 0 to 1, of names that differ in a letter or two.
_NEAR = 0.85


def check_consumer(consumer: object) -> None:
    """Raise InvalidConsumer if a method or a setting of the class cannot work.

    Such a mistake would otherwise show at the first event, or never: a coroutine that is not
    awaited does nothing, and the batch is finished.
    """
    _check_settings(consumer)
    check_hooks(consumer)


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


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def check_runs(where: str, function: object) -> None:
    """Raise InvalidConsumer if calling the function does nothing."""
    call = getattr(function, "__call__", None)  # noqa: B004
    for each in (function, call):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise InvalidConsumer(f"{where} has a yield, so that a call of it does nothing")


def check_interval(owner: object, name: str, value: object) -> None:
    """Raise InvalidConsumer if a setting is no interval, or not a positive one."""
    if not isinstance(value, timedelta):
        raise _invalid(owner, name, value, "a timedelta")
    if value <= timedelta(0):
        raise InvalidConsumer(f"{type(owner).__name__}: {name} must be positive, not {value}")


def _check_settings(consumer: object) -> None:
    for name in _COUNTS:
        value = getattr(consumer, name)
        if value is None and name == "batch_size":
            continue
        if not isinstance(value, int):
            raise _invalid(consumer, name, value, "a whole number")
        if value < 1:
            raise InvalidConsumer(
                f"{type(consumer).__name__}: {name} is {value}; it must be at least 1"
            )
    for name in _SECONDS:
        value = getattr(consumer, name)
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise _invalid(consumer, name, value, "a number of seconds, not negative")
    for name in _INTERVALS:
        value = getattr(consumer, name, None)
        if value is not None and not isinstance(value, timedelta):
            raise _invalid(consumer, name, value, "a timedelta")
    types = getattr(consumer, "event_types")  # noqa: B009
    # The letters of a text would pass for event types that do not exist.
    if isinstance(types, str | bytes):
        raise _invalid(consumer, "event_types", types, "several, such as a tuple")
    outages = getattr(consumer, "outages")  # noqa: B009
    if not isinstance(outages, tuple) or not all(
        isinstance(each, type) and issubclass(each, Exception) for each in outages
    ):
        raise _invalid(consumer, "outages", outages, "a tuple of classes of exceptions")


def _invalid(owner: object, name: str, value: object, wanted: str) -> InvalidConsumer:
    return InvalidConsumer(f"{type(owner).__name__}: {name} is {value!r}; it must be {wanted}")


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


def _check_method(consumer: object, name: str, declared: object) -> None:
    given = getattr(consumer, name)
    function = getattr(given, "__func__", given)
    if function is declared or not inspect.isfunction(function) or not inspect.isfunction(declared):
        return
    where = f"{type(consumer).__name__}.{name}"
    check_runs(where, inspect.unwrap(function))
    awaited = inspect.iscoroutinefunction(declared)
    if inspect.iscoroutinefunction(inspect.unwrap(function)) != awaited:
        raise InvalidConsumer(
            f"{where} must be `async def` in a class of asyncio"
            if awaited
            else f"{where} must not be `async def`; the classes of asyncio begin with Async"
        )
    expected = [*inspect.signature(declared).parameters][1:]
    try:
        inspect.signature(given).bind(*expected)
    except TypeError:
        raise InvalidConsumer(
            f"{where} is called with ({', '.join(expected)}); it takes {inspect.signature(given)}"
        ) from None
