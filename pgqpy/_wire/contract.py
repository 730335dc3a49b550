"""Contracts in Python: payloads are checked by jsonschema-rs, as PostgreSQL checks them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from pgqpy._wire.statements import padded
from pgqpy.errors import ContractViolation, InvalidContract


class Validators:
    """The contracts of a queue that are in force, compiled."""

    def __init__(self, queue: str, contracts: Iterable[tuple[str | None, int, str]]) -> None:
        """``contracts`` are types, versions and schemas. Raises InvalidContract."""
        self._queue = queue
        self._by_type = {
            ev_type: (version, _compile(queue, ev_type, schema))
            for ev_type, version, schema in contracts
        }

    def check_new(self, event: Any) -> None:
        """Check an event that is to be written."""
        self.check(*padded(event)[:2])

    def check(self, ev_type: str | None, data: str | None) -> None:
        """Raise ContractViolation if a payload does not fit the contract for its type."""
        found = self._by_type.get(ev_type) or self._by_type.get(None)
        if found is None:
            return
        version, validator = found
        for path, error in sorted(_errors(validator, data)):
            raise ContractViolation(
                f"an event of type {ev_type!r} does not fit version {version} of the contract of "
                f"queue {self._queue!r} at {path or 'the top'}: {error}",
                hint="Mend the payload; pgq.get_contract(queue, type) returns the schema.",
                detail=f"#{path}",
                sqlstate="PQ054",
            )


def _errors(validator: Any, data: str | None) -> Iterable[tuple[str, str]]:
    """Yield JSON pointers into the payload, and what is wrong there."""
    if data is None:
        yield "", "expected JSON, found NULL"
        return
    try:
        # Exact numbers, as the server has them.
        value = json.loads(data, parse_float=Decimal, parse_constant=_no_constant)
        for error in validator.iter_errors(value):
            yield pointer(error.instance_path), error.message
    except (ValueError, RecursionError) as error:
        yield "", f"expected JSON that can be checked: {error}"


def pointer(path: Iterable[str | int]) -> str:
    """Return the JSON pointer of a path."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _compile(queue: str, ev_type: str | None, schema: str) -> Any:
    try:
        import jsonschema_rs
    except ModuleNotFoundError as error:
        raise ImportError(
            'checking contracts needs jsonschema-rs: pip install "pgqpy[contracts]"'
        ) from error
    try:
        return jsonschema_rs.Draft202012Validator(json.loads(schema), retriever=_retrieve)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        of = "all types" if ev_type is None else f"type {ev_type!r}"
        raise InvalidContract(
            f"the contract of queue {queue!r} for {of} is not a JSON Schema: {error}",
            hint="Set a new one; a schema holds all that it refers to.",
        ) from error


def _retrieve(uri: str) -> Any:
    raise ValueError(f"{uri} is outside of the schema")
