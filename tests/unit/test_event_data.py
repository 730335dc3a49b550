"""An event's data is a text, or an object that JSON can hold, as a task's payload; errors name the
path."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from pgqpy._wire.event_data import data_text
from pgqpy.errors import InvalidPayload
from pgqpy.tasks._statements import jsonb


class Speed(Enum):
    SLOW = "slow"


@dataclass
class Holder:
    value: Any


class Model(pydantic.BaseModel):
    value: Any = pydantic.Field(alias="named")


class Struct(msgspec.Struct, rename={"value": "named"}, tag="kind"):
    value: Any


class Pair(msgspec.Struct):
    first: Any
    second: Any


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, None),
        ("as it is \0", "as it is \0"),
        ({"ä": [1, 2.5, None, True]}, '{"ä":[1,2.5,null,true]}'),
        (MappingProxyType({1: Speed.SLOW}), '{"1":"slow"}'),
        (Holder(datetime(2026, 1, 2, tzinfo=UTC)), '{"value":"2026-01-02T00:00:00+00:00"}'),
        (Holder(Model(named=UUID(int=1))), f'{{"value":{{"named":"{UUID(int=1)}"}}}}'),
        ({"a": Struct(Holder(1))}, '{"a":{"type":"kind","named":{"value":1}}}'),
    ],
)
def test_objects_become_json(data: Any, text: str | None) -> None:
    assert data_text(data) == text


def test_tasks_have_the_same_payloads() -> None:
    assert jsonb([Holder(UUID(int=1)), "text"]) == f'[{{"value":"{UUID(int=1)}"}},"text"]'
    with pytest.raises(InvalidPayload, match=r"a payload cannot be JSON at `\$\[0\]\.a`"):
        jsonb([{"a": {1}}])


def circle() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["a"] = data
    return data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"a": [0, {"b": object()}]}, r"`\$\.a\[1\]\.b`: objects of type object"),
        ({"a": float("nan")}, r"`\$\.a`: Out of range"),
        (Holder([{1}]), r"`\$\.value\[0\]`: objects of type set"),
        ({"a": {(1, 2): 3}}, r"`\$\.a`: keys"),
        (Holder(Struct([1, object()])), r"`\$\.value\.value\[1\]`: objects of type object"),
        (Pair(b"that is base64", float("nan")), r"`\$\.second`: Out of range"),
        (Model(named=object()), r"`\$`: "),
        (circle(), "Circular"),
    ],
)
def test_what_json_cannot_hold_is_named_by_its_path(data: Any, said: str) -> None:
    with pytest.raises(InvalidPayload, match=said):
        data_text(data)


@pytest.mark.parametrize("data", [5, b"bytes", ["list"], object(), Holder])
def test_other_data_is_a_type_error(data: Any) -> None:
    with pytest.raises(TypeError, match="event's data"):
        data_text(data)
