"""Payloads as texts, one a column, and the value of a text in a column of a type.

A string gives its characters, a number its digits as written, a nested value its JSON; null is
None, as with PostgreSQL's ``->>``. Python's own JSON decoder does not keep how numbers and nested
values are written.

A text is read as PostgreSQL's output function of the type writes it. Values that Spark lacks
become null: times that are infinite or outside the years 1 to 9999, and numerics that are no
number. Numerics with more fraction digits than the column has are rounded, as in PostgreSQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pgqpy.formats import decode_urlencoded

# --- texts of a payload

Row: TypeAlias = Mapping[str, str | None]


def json_row(payload: str) -> Row:
    """The members of a JSON object; the last one, if several have the same name. Raises ValueError
    if the payload is no JSON object."""
    return dict(_members(payload))


def array_elements(text: str) -> list[str | None]:
    """The elements of an array, of JSON or as PostgreSQL writes it: ``{1,NULL,"a b"}``. Raises
    ValueError if the text is neither, or has more than one dimension."""
    return list(_literal_elements(text) if text.endswith("}") else _elements(text))


def urlencoded_row(payload: str) -> Row:
    """The columns of a row as logutriga writes it. Raises ValueError if the payload has a character
    that would have been encoded."""
    if odd := _NOT_URLENCODED.search(payload):
        raise ValueError(f"not urlencoded: {odd[0]!r} at position {odd.start()}")
    return decode_urlencoded(payload)


def any_row(payload: str) -> Row:
    """A row in either format; what starts with a brace is JSON. Raises ValueError if the payload is
    neither."""
    return json_row(payload) if payload.startswith("{") else urlencoded_row(payload)


def check_row(row: Row, names: Iterable[str]) -> None:
    """Raises ValueError if the row lacks one of the columns: a missing column is not null."""
    for name in names:
        if name not in row:
            raise ValueError(
                f"it has no column {name}; if that was renamed, or came later,"
                f' option("optional", "{name}") makes it null where it is absent'
            )


# Includes quotes and parentheses, which occur in the SQL that sqltriga writes.
_NOT_URLENCODED = re.compile(r"""[^!-~]|["'()]""")

_SPACE = r"[ \t\n\r]*"
_MEMBER = rf'"((?:[^"\\\x00-\x1f]|\\.)*)"{_SPACE}:{_SPACE}'
# The text before a value, with its name, or the end. For objects or arrays, and later members.
_OBJECT = re.compile(rf"{_SPACE}\{{{_SPACE}(?:{_MEMBER}|\}}{_SPACE}\Z)")
_NEXT_MEMBER = re.compile(rf"{_SPACE}(?:,{_SPACE}{_MEMBER}|\}}{_SPACE}\Z)")
_ARRAY = re.compile(rf"{_SPACE}\[{_SPACE}(\]{_SPACE}\Z)?")
_NEXT_ELEMENT = re.compile(rf"{_SPACE}(?:,|(\]{_SPACE}\Z)){_SPACE}")

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _members(text: str) -> Iterator[tuple[str, str | None]]:
    found = _match(_OBJECT, text, 0)
    while (name := found[1]) is not None:
        value, at = _value(text, found.end())
        yield json.loads(f'"{name}"') if "\\" in name else name, value
        found = _match(_NEXT_MEMBER, text, at)


def _elements(text: str) -> Iterator[str | None]:
    found = _match(_ARRAY, text, 0)
    while found[1] is None:
        value, at = _value(text, found.end())
        yield value
        found = _match(_NEXT_ELEMENT, text, at)


# An element in quotes or bare, and the separator or end after it.
_ELEMENT = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|((?:[^"{},\\]|\\.)+))(?:,|\Z)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _literal_elements(text: str) -> Iterator[str | None]:
    # Bounds come before the brace, if they are not the usual ones: [0:1]={1,2}
    elements, at = text[text.index("{") + 1 : -1], 0
    while at < len(elements):
        found = _ELEMENT.match(elements, at)
        if found is None:
            raise ValueError("not an array of one dimension")
        quoted, bare = found.groups()
        if quoted is None and bare.upper() == "NULL":
            yield None
        else:
            yield _ESCAPED.sub(r"\1", bare if quoted is None else quoted)
        at = found.end()


def _value(text: str, at: int) -> tuple[str | None, int]:
    """The text of the value at a position, and the position of its end."""
    value: Any
    try:
        value, end = _scan(text, at)
    except StopIteration:
        raise _not_json(at) from None
    except RecursionError:
        raise ValueError(f"JSON nested too deeply at position {at}") from None
    if isinstance(value, str):
        return value, end
    return None if value is None else text[at:end], end


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        raise _not_json(at)
    return found


def _not_json(at: int) -> ValueError:
    return ValueError(f"not the JSON that it should be at position {at}")


# --- values of texts


def columns_of(rows: Sequence[Row], fields: Iterable[pa.Field]) -> list[pa.Array]:
    """An Arrow array for each Arrow field; columns missing in a row are null. Raises ValueError,
    which names the column, if a text is no value of the type."""
    return [_column(rows, field) for field in fields]


def _column(rows: Sequence[Row], field: pa.Field) -> pa.Array:
    try:
        return values(pa.array([row.get(field.name) for row in rows], pa.string()), field.type)
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"column {field.name}: {error}") from None


def values(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """The texts (a string array) as an array of a type; null stays null. Raises ValueError if a
    text is no value of the type."""
    types = pa.types
    if types.is_temporal(type_):
        return _times(texts, type_)
    if types.is_decimal(type_):
        return _decimals(texts, type_)
    if types.is_boolean(type_):
        return _booleans(texts)
    if types.is_binary(type_):
        return _each(_bytes, texts, type_)
    if types.is_list(type_):
        return _lists(texts, type_)
    if types.is_struct(type_):
        return _structs(texts, type_)
    return texts.cast(type_)


def _each(convert: Callable[[str], object], texts: pa.Array, type_: pa.DataType) -> pa.Array:
    return pa.array([None if t is None else convert(t) for t in texts.to_pylist()], type_)


# The years 1 to 9999, in the units of the types.
_RANGES = {
    pa.date32(): (-719_162, 2_932_896),
    pa.timestamp("us"): (-62_135_596_800_000_000, 253_402_300_799_999_999),
    pa.timestamp("us", "UTC"): (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
_OUT_OF_RANGE = r"^(-?infinity|[0-9]{4,}-[0-9T:.+ -]+ BC|[1-9][0-9]{4,}-[0-9T:.+ -]+)$"


def _times(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        times = texts.cast(type_)
    except pa.ArrowInvalid:
        out_of_range = pc.match_substring_regex(texts, _OUT_OF_RANGE)
        texts = pc.if_else(out_of_range, pa.scalar(None, pa.string()), texts)
        times = _each(
            date.fromisoformat if pa.types.is_date(type_) else _datetime(type_), texts, type_
        )
    integer = pa.int32() if pa.types.is_date(type_) else pa.int64()
    first, last = (pa.scalar(limit, integer).cast(type_) for limit in _RANGES[type_])
    in_range = pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last))
    return pc.if_else(in_range, times, pa.scalar(None, type_))


def _datetime(type_: pa.DataType) -> Callable[[str], datetime]:
    def convert(text: str) -> datetime:
        time = datetime.fromisoformat(text)
        if type_.tz is None:
            if time.tzinfo is not None:
                raise ValueError(f"{text!r} has a time zone, and a timestamp_ntz has none")
            return time
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time

    return convert


def checked(decimals: pa.Array) -> pa.Array:
    """The decimals. Raises ArrowInvalid if one has too many digits, which Arrow does not check."""
    decimals.validate(full=True)
    return decimals


def wraps(texts: pa.Array, scale: int) -> bool:
    """Whether Arrow may silently change a decimal in the texts.

    It computes in 128 bits, which a number with 39 digits exceeds; zeros up to the scale count. Any
    exponent is suspicious. The texts may be JSON.
    """
    integer = rf"(?:^|[^.0-9])[0-9]{{{39 - scale}}}"
    exponent = r"""(?:^|[:\[,\s"-])[0-9.]+[eE]\+?[0-9]+(?:$|["\]},\s])"""
    pattern = rf"{integer}|[0-9.]{{40}}|{exponent}"
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _decimals(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        if not wraps(texts, type_.scale):
            return checked(texts.cast(type_))
    except pa.ArrowInvalid:
        pass
    places = Decimal(1).scaleb(-type_.scale)
    context = Context(prec=type_.precision, rounding=ROUND_HALF_UP)

    def convert(text: str) -> Decimal | None:
        try:
            number = Decimal(text)
            return number.quantize(places, context=context) if number.is_finite() else None
        except ArithmeticError:
            raise ValueError(f"{text!r} is no {type_}") from None

    return _each(convert, texts, type_)


_BOOLEANS = pa.array(["f", "false", "t", "true"])


def _booleans(texts: pa.Array) -> pa.Array:
    places = pc.index_in(texts, value_set=_BOOLEANS)
    if places.null_count > texts.null_count:
        raise ValueError("neither true nor false")
    return pc.greater_equal(places, 2)


_ESCAPE = re.compile(rb"\\(\\|[0-3][0-7]{2})")


def _bytes(text: str) -> bytes:
    """The bytes of either form of bytea_output."""
    if text.startswith("\\x"):
        return bytes.fromhex(text[2:])
    return _ESCAPE.sub(
        lambda found: b"\\" if found[1] == b"\\" else bytes([int(found[1], 8)]), text.encode()
    )


def _lists(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    flat: list[str | None] = []
    offsets: list[int | None] = []
    for text in texts.to_pylist():
        offsets.append(None if text is None else len(flat))
        if text is not None:
            flat += array_elements(text)
    offsets.append(len(flat))
    elements = values(pa.array(flat, pa.string()), type_.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, type=type_)


def _structs(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    rows = [{} if text is None else json_row(text) for text in texts.to_pylist()]
    return pa.StructArray.from_arrays(
        columns_of(rows, type_), fields=list(type_), mask=texts.is_null()
    )
