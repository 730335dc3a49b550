"""Settings of a consumer that is ready to run: declared once, read from a flat TOML file."""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
import sys
import textwrap
import tomllib
import types
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")

_DOC = "setting"
_EXAMPLE = "example"
_SHOWN = "shown"
_AT_LEAST = "at_least"

#: Example values of the settings that most consumers have.
_USUAL = {
    "dsn": "postgresql:///shop",
    "queue": "orders",
    "read_dsn": "host=standby.example dbname=shop",
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
    at_least: float | None = None,
) -> Any:
    """Declare a key of the file: an attribute of a `Configured` class, or a field of a ``Config``.

    ``doc`` describes it in a short sentence. Without ``default`` the key is required, and a number
    is not smaller than ``at_least``. ``example`` is the value in the example file, if it is not the
    default; with ``shown`` it is not commented out there. A ``secret`` does not appear in the
    dataclass's repr.

    Types may be str, int, float, bool, one of these or None, a Literal of texts, a tuple
    (``tuple[str, ...]``: an array of the file), or a ``Mapping[str, ...]`` (a table of it).
    """
    metadata = {_DOC: doc, _EXAMPLE: example, _SHOWN: shown, _AT_LEAST: at_least}
    return _field(default, metadata, in_repr=not secret)


def _field(default: Any, metadata: Mapping[str, Any], *, in_repr: bool) -> Any:
    if isinstance(default, Mapping):
        unchanging = types.MappingProxyType(default)
        return field(default_factory=lambda: unchanging, metadata=metadata, repr=in_repr)
    return field(default=default, metadata=metadata, repr=in_repr)


_COMMON: dict[str, tuple[Any, Field[Any]]] = {
    "dsn": (
        str | None,
        setting("The database; without it, PGQPY_DSN or libpq's environment.", default=None),
    ),
    "queue": (str, setting("The queue to read.")),
    "consumer": (str, setting("The consumer's name.")),
    "read_dsn": (
        str | None,
        setting("A standby of the database's server, on which events are read.", default=None),
    ),
}


class _Config:
    """Makes `Configured.Config` when it is first asked for."""

    def __get__(self, consumer: object, kind: type) -> Any:
        return config_of(kind)


class Configured:
    """A consumer whose settings in a file are attributes of the class::

        class DelayCounter(Configured, pgqpy.Consumer):
            consumer = "delay_counter"
            minutes: int = setting("From how many minutes a flight is late.", default=15)

    So are ``dsn``, ``queue``, ``consumer`` and ``read_dsn``, and ``target_dsn`` if the constructor
    takes it. The constructor gets the settings that it takes. What the class, or a subclass, has as
    an attribute is the setting's default. If a method has the setting's name, the attribute has an
    underscore behind it.
    """

    Config: ClassVar[Any] = _Config()
    """A dataclass of the settings."""

    #: Parameters of the constructor that are no settings, and why.
    _without: ClassVar[Mapping[str, str]] = {}
    #: The settings that this class declares, with their types as they are written.
    _declared: ClassVar[dict[str, tuple[Any, Field[Any]]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        found = {name: each for name, each in vars(cls).items() if isinstance(each, Field)}
        cls._declared = {name: (cls.__annotations__[name], each) for name, each in found.items()}
        for name, each in found.items():
            if _required(each):
                delattr(cls, name)
            else:
                setattr(cls, name, _default(each))

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """A consumer with these settings."""
        values = {each.name: getattr(config, each.name) for each in fields(config)}
        if values.get("event_types") == ():
            values["event_types"] = None
        if values.get("read_dsn") is None:
            # A constructor of its own need not take it.
            values.pop("read_dsn", None)
        taken = {*_COMMON, *inspect.signature(cls).parameters}
        made = cls(**{name: values.pop(name) for name in [*values] if name in taken})
        for name, value in values.items():
            setattr(made, f"{name}_" if callable(getattr(cls, name, None)) else name, value)
        return made

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise ValueError if settings do not fit together."""


@cache
def config_of(cls: type[Configured]) -> type:
    """The dataclass of the settings of a consumer's class."""
    # A cascade has its databases alone.
    reads = hasattr(cls, "queue")
    found = {name: each for name, each in _COMMON.items() if reads and name not in cls._without}
    target = inspect.signature(cls).parameters.get("target_dsn")
    if target is not None and target.name not in cls._without:
        required = target.default is target.empty
        default = MISSING if required else target.default
        kind = str if required else str | None
        found["target_dsn"] = (kind, setting("The database with the effects.", default=default))
    for base in reversed(cls.__mro__):
        for name, (written, declared) in vars(base).get("_declared", {}).items():
            holder = types.SimpleNamespace(__annotations__={name: written})
            hints = get_type_hints(holder, vars(sys.modules[base.__module__]))
            found[name] = hints[name], declared
    listed = []
    for name, (hint, each) in found.items():
        default = getattr(cls, name, "")
        if isinstance(default, str) and not default:
            default = _default(each)
        key = name.removesuffix("_")
        listed.append((key, hint, _field(default, each.metadata, in_repr=each.repr)))

    def check(config: object) -> None:
        _check_least(config)
        cls.check_config(config)

    named = {"__post_init__": check, "_without": cls._without}
    return make_dataclass("Config", listed, namespace=named, frozen=True, slots=True, kw_only=True)


def configured(cls: type) -> Any:
    """The class itself if it has ``from_config``, or else a subclass that is `Configured`."""
    if hasattr(cls, "from_config"):
        return cls
    named = {"__doc__": cls.__doc__, "__module__": cls.__module__}
    return type(cls.__name__, (Configured, cls), named)


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
            why = getattr(cls, "_without", {}).get(key) or advice(key, known)
            raise ConfigError(f"unknown key {key!r} in {source}: {why}")
    missing = [key for key in known if key not in document and _required(known[key])]
    if missing:
        what = "; ".join(f"{key} ({known[key].metadata[_DOC].rstrip('.')})" for key in missing)
        raise ConfigError(f"{source} has no {what}")
    hints = get_type_hints(cls)
    values = {
        key: _typed(value, hints[key], f"{key} in {source}") for key, value in document.items()
    }
    try:
        made = cls(**values)
        _check_least(made)
        return made
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def advice(name: str, known: Collection[str]) -> str:
    """The name that was probably meant, or all that are known."""
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def required(cls: type) -> list[str]:
    """The keys that a file must have."""
    return [key for key, each in _settings(cls).items() if _required(each)]


def example(cls: type) -> str:
    """A file with all settings and their descriptions; most with a default are commented out."""
    plain: list[str] = []
    tables: list[str] = []
    for key, each in _settings(cls).items():
        shown = each.metadata[_EXAMPLE]
        if shown is None and not _required(each):
            shown = _default(each)
        if shown is None:
            shown = _USUAL.get(key, f"the {key.replace('_', ' ')}" if _required(each) else "")
        mark = "" if _required(each) or each.metadata[_SHOWN] else "# "
        if isinstance(shown, Mapping):
            lines = [f"{mark}[{key}]"]
            lines += [f"{mark}{_key(name)} = {_toml(value)}" for name, value in shown.items()]
        else:
            lines = [f"{mark}{key} = {_toml(shown)}"]
        # Keys after a table's heading would belong to the table.
        about = textwrap.wrap(each.metadata[_DOC], 98, initial_indent="# ", subsequent_indent="# ")
        (tables if isinstance(shown, Mapping) else plain).append("\n".join([*about, *lines]))
    return "\n\n".join(plain + tables) + "\n"


def _settings(cls: type) -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(cls) if _DOC in each.metadata}


def _check_least(config: Any) -> None:
    for key, each in _settings(type(config)).items():
        value, least = getattr(config, key), each.metadata[_AT_LEAST]
        if least is not None and value is not None and value < least:
            raise ValueError(f"{key} must be at least {least}")


def _required(each: Field[Any]) -> bool:
    return _default(each) is MISSING


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


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
    if origin is tuple and isinstance(value, str):
        raise ConfigError(f'{where} must be a list: {where.partition(" ")[0]} = ["..."]')
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


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's texts, numbers and booleans are TOML's.
    return json.dumps(value, ensure_ascii=False)
