"""Settings of a consumer that is ready to run: a dataclass, read from a flat TOML file."""

from __future__ import annotations

import difflib
import json
import os
import re
import textwrap
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_DOC = "setting"
_EXAMPLE = "example"
_SHOWN = "shown"

#: Example values of the settings that most consumers have.
_USUAL = {
    "dsn": "postgresql:///shop",
    "queue": "orders",
    "target_dsn": "postgresql://reports.example/reports",
    "target_queue": "orders",
}

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


class ConfigError(Exception):
    """A configuration cannot be used; the message names the key and a correct value."""


def setting(
    doc: str,
    *,
    default: Any = MISSING,
    example: object = None,
    secret: bool = False,
    shown: bool = False,
) -> Any:
    """A field of a ``Config`` dataclass, set by one key of the file.

    ``doc`` describes it in a short sentence. Without ``default`` the key is required.
    ``example`` is the value in the example file, if it is not the default; with ``shown`` it is not
    commented out there. A ``secret`` does not appear in the dataclass's repr.

    Fields may be str, int, float, bool, one of these or None, a Literal of texts, a tuple
    (``tuple[str, ...]``: an array of the file), or a ``Mapping[str, ...]`` (a table of it).
    """
    metadata = {_DOC: doc, _EXAMPLE: example, _SHOWN: shown}
    if isinstance(default, Mapping):
        table = default
        return field(default_factory=lambda: table, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def load(cls: type[T], path: Path, overrides: Mapping[str, object] | None = None) -> T:
    """Read the settings from a file; ``overrides`` win over it.

    ``${NAME}`` in a text is the environment variable of that name.

    Raises ConfigError if the file is missing or is no TOML, or if a key is missing, unknown, of the
    wrong type, or has a value that the class refuses (a ValueError of its ``__post_init__``).
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return build(cls, document | dict(overrides or {}), str(path))


def build(cls: type[T], document: Mapping[str, object], source: str = "the settings") -> T:
    """Read the settings from a dictionary, like `load`; ``source`` is named in errors."""
    known = _settings(cls)
    for key in document:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown key {key!r} in {source}: {advice}")
    missing = [key for key in known if key not in document and _required(known[key])]
    if missing:
        what = "; ".join(f"{key} ({known[key].metadata[_DOC].rstrip('.')})" for key in missing)
        raise ConfigError(f"{source} has no {what}")
    hints = get_type_hints(cls)
    values = {
        key: _typed(value, hints[key], f"{key} in {source}") for key, value in document.items()
    }
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def required(cls: type) -> list[str]:
    """The keys that a file must have."""
    return [key for key, each in _settings(cls).items() if _required(each)]


def example(cls: type) -> str:
    """A file with all settings and their descriptions; most with a default are commented out."""
    plain: list[str] = []
    tables: list[str] = []
    for key, each in _settings(cls).items():
        shown = each.metadata[_EXAMPLE]
        if shown is None and _required(each):
            shown = _USUAL.get(key, f"the {key.replace('_', ' ')}")
        elif shown is None:
            shown = each.default if each.default is not MISSING else None
        mark = "" if _required(each) or each.metadata[_SHOWN] else "# "
        if isinstance(shown, Mapping):
            lines = [f"{mark}[{key}]"]
            lines += [f"{mark}{_key(name)} = {_toml(value)}" for name, value in shown.items()]
        else:
            lines = [f"{mark}{key} = {_toml(_USUAL.get(key, '') if shown is None else shown)}"]
        # Keys after a table's heading would belong to the table.
        (tables if isinstance(shown, Mapping) else plain).append(
            "\n".join([*_comment(each.metadata[_DOC]), *lines])
        )
    return "\n\n".join(plain + tables) + "\n"


def _settings(cls: type) -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(cls) if _DOC in each.metadata}


def _required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _typed(value: object, hint: Any, where: str) -> Any:
    """The value converted to the field's type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (hint,) = [each for each in arguments if each is not type(None)]
        return _typed(value, hint, where)
    if hint is str and isinstance(value, str):
        return _expanded(value, where)
    if hint is bool and isinstance(value, bool):
        return value
    if hint in (int, float) and isinstance(value, int) and not isinstance(value, bool):
        return hint(value)
    if hint is float and isinstance(value, float):
        return value
    if origin is Literal and isinstance(value, str):
        if (text := _expanded(value, where)) not in arguments:
            raise ConfigError(f"{where} must be one of {', '.join(arguments)}, not {text!r}")
        return text
    if origin is tuple and isinstance(value, list):
        return tuple(_typed(each, arguments[0], f"an element of {where}") for each in value)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        return {
            name: _typed(each, arguments[1], f"{name} of {where}") for name, each in value.items()
        }
    raise ConfigError(f"{where} must be {_kind(hint)}, not {_kind(type(value))}")


def _expanded(text: str, where: str) -> str:
    def variable(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if not value:
            state = "not set" if value is None else "empty"
            raise ConfigError(
                f"{where} needs the environment variable {match[1]}, which is {state}"
            )
        return value

    return _VARIABLE.sub(variable, text)


def _kind(hint: Any) -> str:
    origin = get_origin(hint) or hint
    if origin is Literal:
        return "a text"
    if origin is tuple:
        return f"an array, of which each element is {_kind(get_args(hint)[0])}"
    named = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    named |= {list: "an array", dict: "a table", Mapping: "a table"}
    return named.get(origin) or str(origin.__name__)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's texts, numbers and booleans are TOML's.
    return json.dumps(value, ensure_ascii=False)
