"""Arguments of a function as JSON and back, by the annotations of its parameters."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, get_type_hints

from pgqpy.errors import InvalidPayload, InvalidTask
from pgqpy.tasks._statements import jsonb

try:
    import msgspec
except ImportError as error:  # pragma: no cover
    raise ImportError('jobs need msgspec: pip install "pgqpy[jobs]"') from error

_HINT = (
    "Parameters may be annotated with what JSON has, dataclasses, pydantic's models, enums, "
    "datetimes, UUIDs, Decimals, and lists, dicts and unions of them."
)


class Arguments:
    """The arguments that a function takes, encoded and checked."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """``name`` is the name in errors. Raises InvalidTask for parameters that have no names."""
        self._name = name
        self._function = function
        self._signature = inspect.signature(function)
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidTask(
                    f"the job {name} takes {parameter}",
                    hint="Give each parameter a name: they are the keys of the payload.",
                )

    def check(self) -> None:
        """Raise InvalidTask for annotations that cannot be encoded."""
        msgspec.json.Decoder(self._struct, dec_hook=_decode_other)

    def bind(self, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """Return arguments by name. Raises TypeError like a call."""
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}() {error}") from None

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by name, as JSON. Raises TypeError like a call, InvalidPayload."""
        bound = self.bind(*args, **kwargs)
        try:
            encoded: dict[str, Any] = _builtins(bound.arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidPayload(
                f"the arguments of {self._name}() cannot be encoded: {error}", hint=_HINT
            ) from None
        self._convert(encoded)
        return encoded

    def given(self, encoded: Mapping[str, Any]) -> dict[str, Any]:
        """Return encoded arguments without those that have the values of their defaults."""
        return {
            name: value
            for name, value in encoded.items()
            if name not in self._defaults or json.dumps(value) != self._defaults[name]
        }

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The defaults as JSON; those that cannot be encoded are never given."""
        defaults = {}
        for name, parameter in self._signature.parameters.items():
            if parameter.default is not parameter.empty:
                with suppress(TypeError, ValueError, RecursionError):
                    defaults[name] = json.dumps(_builtins(parameter.default))
        return defaults

    def decode(self, encoded: object) -> inspect.BoundArguments:
        """Return the arguments from JSON. Raises InvalidPayload if it does not fit."""
        values = self._convert(encoded)
        bound = self._signature.bind_partial()
        given = encoded if isinstance(encoded, Mapping) else {}
        bound.arguments.update(
            {name: getattr(values, name) for name in self._signature.parameters if name in given}
        )
        return bound

    def knows(self, encoded: object) -> bool:
        """Whether the function has all these arguments; a newer version may have more."""
        return (
            not isinstance(encoded, Mapping) or encoded.keys() <= self._signature.parameters.keys()
        )

    def _convert(self, encoded: object) -> Any:
        try:
            return msgspec.convert(encoded, self._struct, dec_hook=_decode_other, str_keys=True)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidPayload(
                f"the payload does not fit {self._name}(): {error}",
                hint="The path begins at the arguments; annotations say what they must be.",
            ) from None

    @cached_property
    def _struct(self) -> type[msgspec.Struct]:
        """Make the type on first use: annotations may name classes that are defined later."""
        try:
            hints = get_type_hints(self._function, include_extras=True)
            fields: list[Any] = []
            for name, parameter in self._signature.parameters.items():
                hint = hints.get(name, Any)
                # Not the default itself: it is the function's, and may be of any type.
                needed = parameter.default is parameter.empty
                fields.append((name, hint) if needed else (name, hint | _Unset, msgspec.UNSET))
            struct = msgspec.defstruct(self._name, fields, kw_only=True, forbid_unknown_fields=True)
            msgspec.json.Decoder(struct, dec_hook=_decode_other)
        except (NameError, TypeError) as error:
            raise InvalidTask(
                f"the annotations of {self._name}() cannot be used: {error}", hint=_HINT
            ) from None
        return struct


_Unset = msgspec.UnsetType


def encode_result(value: object) -> str:
    """Return a function's result as JSON. Raises TypeError, ValueError, InvalidPayload."""
    return jsonb(_builtins(value))


def _builtins(value: object) -> Any:
    return msgspec.to_builtins(value, enc_hook=_encode_other, str_keys=True)


def _encode_other(value: Any) -> Any:
    """Encode a pydantic model."""
    if hasattr(value, "model_dump_json"):
        return json.loads(value.model_dump_json(by_alias=True))
    raise TypeError(f"objects of type {type(value).__name__} cannot be encoded")


def _decode_other(wanted: Any, encoded: Any) -> Any:
    if not hasattr(wanted, "model_validate_json"):
        raise TypeError(f"values cannot be made objects of type {wanted.__name__}")
    try:
        return wanted.model_validate_json(json.dumps(encoded))
    except ValueError as error:
        raise ValueError(_in_short(error)) from None


def _in_short(error: Any) -> str:
    if not hasattr(error, "errors"):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}"
        for one in error.errors(include_url=False, include_input=False)
    )
