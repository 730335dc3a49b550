"""Archives as Avro object container files, with payloads as their contracts type them.

Spark writes and reads no Avro by itself, so a file is made in memory by a task, goes through the
driver, which writes it, and is read whole.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

import pgqpy
from pgqpy.errors import translate_errors
from pgqpy.formats import operation_and_key
from pgqpy_consumers.spark._contract import ENUM, avro_record, struct_of
from pgqpy_consumers.spark._events import EVENT_COLUMNS, EVENT_SCHEMA, arrow_schema
from pgqpy_consumers.spark.payload import Decoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pgqpy_consumers.spark._archive_log import Directory

try:
    import fastavro
except ModuleNotFoundError as error:
    raise ImportError('Avro needs fastavro: pip install "pgqpy[contracts]"') from error

#: The bytes of a file that travel in one row, and of a block in it.
_PIECE = 4_000_000
_BLOCK = 1_000_000

_PIECES = (
    T.StructType()
    .add("file", "string")
    .add("partition", T.ArrayType(T.StringType()))
    .add("events", "long")
    .add("content", "binary")
)

_CONTRACTS = """
select i.ev_type, c.version, c.schema
  from pgq.get_contract_info(%s) i, pgq.get_contract(%s, i.ev_type) c
 order by 1
"""

_FIELDS = {
    T.LongType: "long",
    T.IntegerType: "int",
    T.StringType: "string",
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
}

Record: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Contracts:
    """The contracts in force for the events of a queue. Goes to the executors, pickled."""

    queue: str
    versions: Mapping[str, int]
    """By type; "" for that of all types without one."""
    columns: Mapping[str, T.StructType]
    """Those of their payloads; contracts that describe no object are left out."""

    @classmethod
    def of(cls, conn: pgqpy.Connection, queue: str) -> Contracts:
        """The newest contracts of a queue."""
        with translate_errors():
            found: list[Any] = conn.execute(_CONTRACTS, [queue, queue]).fetchall()
        columns = {kind or "": struct_of(schema) for kind, _, schema in found}
        return cls(
            queue,
            {kind or "": version for kind, version, _ in found},
            {kind: each for kind, each in columns.items() if each},
        )

    @cached_property
    def names(self) -> Mapping[str, str]:
        """The names of their records in Avro."""
        names: dict[str, str] = {}
        for kind in self.columns:
            name = "pgqpy." + re.sub(r"\W|^(?=\d)", "_", kind or "payload", flags=re.ASCII)
            while name in ("pgqpy.Event", *names.values()):
                name += "_"
            names[kind] = name
        return names

    @property
    def schema(self) -> Record:
        """The schema of a file: an event, as in the other archives, and its payload."""
        fields: list[Record] = [
            {"name": each.name, "type": ["null", _FIELDS[type(each.dataType)]], "default": None}
            for each in EVENT_SCHEMA
        ]
        records = [avro_record(each, self.names[kind]) for kind, each in self.columns.items()]
        fields.append({"name": "payload", "type": ["null", *records], "default": None})
        return {"type": "record", "name": "pgqpy.Event", "fields": fields}

    def records(self, events: pa.RecordBatch) -> list[Record]:
        """The events with their payloads; that of an event without a contract, or that does not fit
        its contract, is null."""
        rows: list[Record] = events.select(list(EVENT_COLUMNS)).to_pylist()
        places: dict[str, list[int]] = {}
        for at, row in enumerate(rows):
            row["payload"] = None
            kind = row["ev_extra1"] if operation_and_key(row["ev_type"])[0] else row["ev_type"]
            kind = kind if kind in self.versions else ""
            if kind in self.columns and row["ev_data"] is not None:
                places.setdefault(kind, []).append(at)
        for kind, taken in places.items():
            payloads = events.column("ev_data").take(pa.array(taken))
            for at, payload in zip(taken, self._payloads(kind, payloads), strict=True):
                rows[at]["payload"] = payload
        return rows

    def _payloads(self, kind: str, payloads: pa.Array) -> Iterator[tuple[str, Record] | None]:
        columns = self.columns[kind]
        decoder = Decoder("json", "column", to_arrow_schema(columns, timezone="UTC"))
        found, wrong = decoder.parse(payloads, decoder.schema)
        enums = {each.name: {*each.metadata[ENUM], None} for each in columns if each.metadata}
        rows = pa.RecordBatch.from_pydict(found, decoder.schema).to_pylist()
        for at, row in enumerate(rows):
            fits = at not in wrong and all(row[name] in texts for name, texts in enums.items())
            yield (self.names[kind], row) if fits else None


def write(
    events: DataFrame,
    partitions: Sequence[str],
    contracts: Contracts,
    directory: Directory,
    path: str,
) -> None:
    """Write the events, which have the partitions' columns and are sorted by them, into files below
    a path in the directory; a file's name ends with its number of events."""
    pieces = events.mapInArrow(partial(_files, tuple(partitions), contracts), _PIECES)
    # In order: all pieces of a file, then the next one.
    for number, (_, rows) in enumerate(groupby(pieces.toLocalIterator(), lambda row: row.file)):
        first = next(rows)
        folder = directory.partition_path(zip(partitions, first.partition, strict=True))
        name = f"{path}/{folder}/{number:05d}-{first.events}.avro"
        directory.write(name, (row.content for row in (first, *rows)))


def _files(
    partitions: tuple[str, ...], contracts: Contracts, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    schema = fastavro.parse_schema(contracts.schema)
    metadata = {
        "pgqpy.queue": contracts.queue,
        "pgqpy.contracts": json.dumps(contracts.versions, ensure_ascii=False),
    }
    records = (
        (tuple(None if each is None else str(each) for each in values), record)
        for batch in batches
        for *values, record in zip(
            *(batch.column(name).to_pylist() for name in partitions),
            contracts.records(batch),
            strict=True,
        )
    )
    for partition, group in groupby(records, lambda pair: pair[0]):
        file, count = io.BytesIO(), 0
        writer = fastavro.write.Writer(file, schema, "deflate", _BLOCK, metadata)
        for _, record in group:
            writer.write(record)
            count += 1
        writer.flush()
        content, name = file.getbuffer(), uuid4().hex
        for at in range(0, len(content), _PIECE):
            piece = bytes(content[at : at + _PIECE])
            row = {"file": name, "partition": partition, "events": count, "content": piece}
            yield pa.RecordBatch.from_pylist([row], to_arrow_schema(_PIECES))


def read(files: DataFrame) -> DataFrame:
    """The events in files of ``format("binaryFile")``."""
    return files.select("content").mapInArrow(_events, EVENT_SCHEMA)


def _events(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for content in batch.column("content"):
            blocks = fastavro.block_reader(io.BytesIO(content.as_buffer()))
            yield from (pa.RecordBatch.from_pylist(list(block), arrow_schema()) for block in blocks)
