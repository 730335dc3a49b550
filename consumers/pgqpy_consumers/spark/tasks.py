"""``format("pgq_tasks")``: the tasks of a queue as rows, in their current state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from psycopg import sql
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import pgqpy
from pgqpy.errors import InvalidParameter
from pgqpy.tasks import Tasks
from pgqpy_consumers.spark._events import Slice, connect, cut
from pgqpy_consumers.spark._options import (
    InvalidOption,
    Options,
    carried,
    carrying,
    check_no_password,
    count,
    one_of,
    options_of_table,
    text,
)
from pgqpy_consumers.spark._ranges import check_condition, conninfo
from pgqpy_consumers.spark.payload import Decoder, MalformedPayload, check_column

if TYPE_CHECKING:
    import pyarrow as pa

TASK_SCHEMA = StructType()
"""The columns of ``pgq_task.tasks``; JSON is text, unless the schema makes it a struct."""

for _column in (
    *("id long", "version integer", "queue string", "priority short", "status string"),
    *("at timestamp", "claimant string", "attempts integer", "last_attempt timestamp"),
    *("created timestamp", "payload string", "headers string", "error string"),
    *("unique_key string", "order_key string"),
):
    _name, _type = _column.split()
    TASK_SCHEMA.add(_name, _type)

_JSON = ("payload", "headers")

_SELECT = """
select id, version, queue, priority, status, nullif(at, 'infinity') as at, claimant, attempts,
       last_attempt, created, payload::text as payload, headers::text as headers, error,
       unique_key, order_key
  from pgq_task.tasks
 where queue = {queue} and {slice}
"""


@dataclass(frozen=True, kw_only=True)
class TaskOptions(Options):
    """Options of ``spark.read.format("pgq_tasks")``."""

    purpose = "reading tasks"

    where: Annotated[str | None, text] = None
    """The tasks to fetch: a condition in SQL over `TASK_SCHEMA`."""
    num_partitions: Annotated[int, count] = 1
    """The number of Spark tasks that read, each with a snapshot of its own."""
    malformed: Annotated[str, one_of("fail", "null")] = "fail"
    """The handling of JSON that does not fit the struct of the schema."""


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """The input of one task of Spark."""

    conninfo: str = field(repr=False)
    statement: str = field(repr=False)


class PgqTaskReader(DataSourceReader):
    """Reads the tasks of a queue, with a statement for each range of their ids."""

    def __init__(self, options: TaskOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._structs: list[str] = []
        for column in schema:
            if column.name in _JSON and isinstance(column.dataType, StructType):
                self._structs.append(column.name)
                check_column(column)
            elif column.name not in TASK_SCHEMA.names or (
                column.dataType != TASK_SCHEMA[column.name].dataType
            ):
                raise InvalidOption(
                    f"tasks have no column {column.simpleString()}",
                    hint=f"They have {', '.join(each.simpleString() for each in TASK_SCHEMA)};"
                    " payload and headers may be a struct of what is in them.",
                )

    def partitions(self) -> list[InputPartition]:
        """The ranges. Raises TaskQueueNotFound, InvalidOption and the errors of connecting."""
        options = self._options
        with options.connect("pgqpy spark tasks") as conn:
            if options.where is not None:
                _check_where(conn, options.where)
            (info,) = Tasks(conn).queues(options.queue, max_count=1)
            first: Any = None
            if options.num_partitions > 1 and info.total:
                ((first, last),) = conn.execute(
                    "select min(id), max(id) from pgq_task.tasks where queue = %s", [options.queue]
                ).fetchall()
            slices = [Slice(None, None)]
            if first is not None:
                slices = cut(first, last, options.num_partitions)
            return [
                TaskPartition(conninfo(conn), self._statement(part).as_string(conn))
                for part in slices
            ]

    def _statement(self, part: Slice) -> sql.Composed:
        condition = sql.SQL(part.condition("id"))
        return sql.SQL("select {} from ({}) t where ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, self._fetched)),
            sql.SQL(_SELECT).format(queue=sql.Literal(self._options.queue), slice=condition),
            sql.SQL(self._options.where or "true"),
        )

    @property
    def _fetched(self) -> list[str]:
        """The columns to fetch: always with the id, for errors to name the task."""
        missing = ["id"] if self._structs and "id" not in self._schema.names else []
        return [*self._schema.names, *missing]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The tasks of one range; runs on an executor.

        Raises MalformedPayload, which names the task.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, TaskPartition)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with connect(partition.conninfo) as connection, connection.cursor() as cursor:
            cursor.execute(partition.statement)
            with cursor.fetch_record_batch() as stream:
                for batch in stream:
                    columns = [self._column(batch, column) for column in schema]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, tasks: pa.RecordBatch, column: pa.Field) -> pa.Array:
        """The values of a column; of JSON, a struct if the schema has one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.name not in self._structs:
            return tasks.column(column.name).cast(column.type)
        texts = tasks.column(column.name).cast(pa.string())
        texts = pc.if_else(pc.equal(texts, "null"), pa.scalar(None, pa.string()), texts)
        fields = pa.schema(list(column.type))
        found, wrong = Decoder("json", self._options.malformed, fields).parse(texts, fields)
        if wrong and self._options.malformed == "fail":
            position, reason = next(iter(wrong.items()))
            raise MalformedPayload(
                f"{column.name} of task {tasks.column('id')[position]} does not fit the schema:"
                f" {reason[:300]}",
                hint='option("malformed", "null") makes it null; without a struct in the schema it'
                " is text.",
            )
        missing = [text is None or at in wrong for at, text in enumerate(texts.to_pylist())]
        return pa.StructArray.from_arrays(
            [found[name] for name in fields.names],
            fields=list(fields),
            mask=pa.array(missing, pa.bool_()),
        )


def _check_where(conn: pgqpy.Connection, where: str) -> None:
    try:
        check_condition(conn, where)
    except InvalidParameter:
        raise InvalidOption(
            f"option where is no condition over tasks: {where}",
            hint="Compare columns of pgq_task.tasks with literals, as in: status = 'claimed'."
            " Sub-queries and comments are not taken.",
        ) from None


class PgqTaskDataSource(DataSource):
    """The tasks of a queue as a data source of Spark, for reading::

        spark.dataSource.register(PgqTaskDataSource)
        df = spark.read.format("pgq_tasks").option("queue", "mails").load()

    Each action reads their current state, in one statement and so in one snapshot, unless option
    ``numPartitions`` asks for more.
    """

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "pgq_tasks"

    def schema(self) -> StructType:
        """The columns: `TASK_SCHEMA`. A part of it can be given as the schema, with payload or
        headers as a struct of the members to read. For a table of Spark's catalog it carries the
        table's options."""
        of_table = options_of_table(self.options)
        if of_table is None:
            return TASK_SCHEMA
        check_no_password(TaskOptions.parse(of_table))
        return carrying(TASK_SCHEMA, of_table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of ``spark.read``."""
        schema, of_table = carried(schema)
        return PgqTaskReader(TaskOptions.parse({**of_table, **self.options}), schema)
