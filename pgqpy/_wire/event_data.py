"""Payloads as JSON; an event's may be a text instead."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias
from uuid import UUID

from pgqpy.errors import InvalidPayload


class Dataclass(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Model(Protocol):
    """A model of pydantic."""

    @property
    def model_dump(self) -> Callable[..., Any]: ...


class Struct(Protocol):
    """A struct of msgspec."""

    __struct_fields__: ClassVar[tuple[str, ...]]


#: What an event's data may be; all but a text is dumped as JSON.
EventData: TypeAlias = str | Mapping[str, Any] | Dataclass | Model | Struct


def data_text(data: object) -> str | None:
    """Return an event's data as text: a text as it is, an object as JSON.

    Raises TypeError for other values, InvalidPayload with the path of what JSON cannot hold.
    """
    if data is None or isinstance(data, str):
        return data
    if not isinstance(data, Mapping) and not _is_object(data):
        raise TypeError(
            "an event's data is a text, a dict, a dataclass, or a model of pydantic or msgspec,"
            f" not {data!r:.80}"
        )
    return json_text(data)


def json_text(data: object) -> str:
    """Return a value as JSON. Raises InvalidPayload with the path of what JSON cannot hold."""
    try:
        return _encode(data)
    except _ERRORS as error:
        raise InvalidPayload(
            f"a payload cannot be JSON at `${_path(data)}`: {error}",
            hint="Payloads may hold what JSON has, dataclasses, models, enums, datetimes, UUIDs and"
            " Decimals, but no NaN and infinity; bytes as base64.",
        ) from None


def _is_object(value: object) -> bool:
    return (
        is_dataclass(value) or hasattr(value, "model_dump") or hasattr(value, "__struct_fields__")
    ) and not isinstance(value, type)


def _plain(value: Any) -> Any:
    """Return a value that json does not know as one that it knows."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if not _is_object(value):
        raise TypeError(f"objects of type {type(value).__name__} cannot be encoded")
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if hasattr(value, "__struct_fields__"):
        return _built(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _built(value: Any) -> Any:
    """Return a struct, or a field of one, as msgspec encodes it, with its names and tags."""
    import msgspec  # a struct exists, so it is installed

    return msgspec.to_builtins(value, enc_hook=_plain, str_keys=True)


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
).encode
_ERRORS = (TypeError, ValueError, RecursionError)


def _path(value: Any) -> str:
    """Return the path to the innermost value that cannot be encoded."""
    try:
        for step, child in _children(value):
            try:
                _encode(_built(child) if hasattr(value, "__struct_fields__") else child)
            except _ERRORS:
                return step + _path(child)
    except _ERRORS:
        pass
    return ""


def _children(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        return ((f"[{number}]", child) for number, child in enumerate(value))
    if hasattr(value, "__struct_fields__"):
        return ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    inner = value if isinstance(value, dict) else _plain(value)
    return ((f".{name}", child) for name, child in dict(inner).items())
