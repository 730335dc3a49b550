"""The relation of a queue as a Table, and its events as mapped objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, validates

from pgqpy._wire.event_data import EventData, data_text
from pgqpy.errors import InvalidParameter
from pgqpy.telemetry._spans import marker

#: Not an application's MetaData: create_all() and Alembic must not create the relations.
_QUEUES = sa.MetaData(schema="pgq_queue")
#: PostgreSQL cuts longer names; see pgq.queue_relation(queue).
_LONGEST_NAME = 59


class _Data(sa.types.TypeDecorator[Any]):
    """Texts, and objects that become JSON."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return data_text(value)


def queue_table(queue: str) -> sa.Table:
    """Return the relation of a queue, for SQLAlchemy Core.

    Give the columns ev_type, ev_data (a text, or what `pgqpy.Producer` takes) and ev_extra1 to
    ev_extra4; PostgreSQL fills in the others. The Table is in a MetaData of its own, so neither
    create_all() nor Alembic see it. Raises InvalidParameter if the name is too long for a relation.
    """
    if not queue or len(queue.encode()) > _LONGEST_NAME:
        raise InvalidParameter(
            f"queue {queue!r:.80} has no relation of its name",
            hint=f"It takes a name of 1 to {_LONGEST_NAME} bytes. pgqpy.sqlalchemy.Producer writes"
            " into queues of any name.",
        )
    table = _QUEUES.tables.get(f"pgq_queue.{queue}")
    if table is not None:
        return table
    extras = [sa.Column(f"ev_extra{number}", sa.Text) for number in range(1, 5)]
    return sa.Table(
        queue,
        _QUEUES,
        # For SQLAlchemy a serial one: then RETURNING brings the ids of many rows in their order.
        sa.Column("ev_id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("ev_time", sa.DateTime(timezone=True), sa.FetchedValue()),
        sa.Column("ev_txid", sa.BigInteger, sa.FetchedValue()),
        sa.Column("ev_retry", sa.Integer, sa.FetchedValue()),
        sa.Column("ev_type", sa.Text),
        sa.Column("ev_data", _Data),
        *extras,
        keep_existing=True,
    )


class Event:
    """A base of mapped classes whose objects are events to be written, one class for each queue.

    Subclasses are its types of events::

        class OrderEvent(Event, Base):
            __queue__ = "orders"

        class OrderPlaced(OrderEvent):
            __event_type__ = "order.placed"

        session.add(OrderPlaced({"id": 1}))

    A flush inserts all events of a queue by one INSERT, in the order in which they were added;
    then ``ev_id`` is set. Raises InvalidParameter for a queue without a relation, or one that has a
    class already, and for an event without a type.
    """

    __queue__: ClassVar[str]
    __event_type__: ClassVar[str | None] = None

    if TYPE_CHECKING:
        ev_id: Mapped[int]
        ev_type: Mapped[str | None]
        ev_data: Mapped[str | None]
        ev_extra1: Mapped[str | None]
        ev_extra2: Mapped[str | None]
        ev_extra3: Mapped[str | None]
        ev_extra4: Mapped[str | None]

    def __init__(
        self,
        ev_data: EventData | None = None,
        *,
        ev_type: str | None = None,
        ev_extra1: str | None = None,
        ev_extra2: str | None = None,
        ev_extra3: str | None = None,
        ev_extra4: str | None = None,
    ) -> None:
        """The type is the class's unless given. Raises TypeError and InvalidPayload for the data,
        which is dumped here: later changes of the object are not seen."""
        self.ev_type = type(self).__event_type__ if ev_type is None else ev_type
        self.ev_data = ev_data  # type: ignore[assignment]
        self.ev_extra1, self.ev_extra2 = ev_extra1, ev_extra2
        self.ev_extra3, self.ev_extra4 = ev_extra3, ev_extra4
        if (mark := marker()) is not None:
            self.ev_extra4 = mark(ev_extra4)

    @validates("ev_type")
    def _typed(self, _name: str, ev_type: str | None) -> str:
        if ev_type is None:
            raise InvalidParameter(
                f"{type(self).__name__} has no type of events",
                hint="Give the class an __event_type__, or the event an ev_type.",
            )
        return ev_type

    @validates("ev_data")
    def _as_text(self, _name: str, data: EventData | None) -> str | None:
        return data_text(data)

    def __init_subclass__(cls, **options: Any) -> None:
        own = vars(cls)
        mapped: Any = cls
        arguments = {
            # Or INSERT would return columns that only pgq_reader may read.
            "eager_defaults": False,
            "polymorphic_identity": own.get("__event_type__"),
        }
        if hasattr(cls, "registry") and not (hasattr(cls, "__queue__") or "__abstract__" in own):
            raise InvalidParameter(
                f"{cls.__name__} has no queue", hint="Give the class the name of one: a __queue__."
            )
        if "__queue__" in own:
            _check_only_class(cls)
            mapped.__table__ = queue_table(cls.__queue__)
            arguments |= _root_arguments(cls, mapped.__table__)
        if "__queue__" in own or hasattr(cls, "__mapper__"):
            mapped.__mapper_args__ = arguments
        super().__init_subclass__(**options)


@sa.event.listens_for(Event, "before_insert", propagate=True)
def _forget_id(_mapper: object, _connection: object, event: Any) -> None:
    """Let an object whose transaction was rolled back be added again: it gets another id."""
    event.ev_id = None


def _check_only_class(cls: type[Event]) -> None:
    """Raise InvalidParameter if the queue has a class: they would not keep one order of events."""
    hint = "Events of further types are subclasses with an __event_type__, and no __queue__."
    if hasattr(cls, "__mapper__"):
        raise InvalidParameter(f"{cls.__name__} and its base have a __queue__ each", hint=hint)
    for mapper in cls.registry.mappers if hasattr(cls, "registry") else ():
        if getattr(mapper.class_, "__queue__", None) == cls.__queue__:
            raise InvalidParameter(
                f"queue {cls.__queue__!r} has the class {mapper.class_.__name__} already", hint=hint
            )


def _root_arguments(cls: type[Any], table: sa.Table) -> dict[str, Any]:
    """Return mapper arguments by which events of types without a class are of the queue's class."""
    identity = cls.__event_type__ or ""
    known: sa.BindParameter[Any] = sa.bindparam(
        "pgq_types", callable_=lambda: list(cls.__mapper__.polymorphic_map), expanding=True
    )
    on = sa.case((table.c.ev_type.in_(known), table.c.ev_type), else_=identity)
    return {"polymorphic_on": on, "polymorphic_identity": identity}
