"""Checksums of tables, in pieces, and the rows behind them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, LiteralString, TypeAlias

from psycopg import sql

import pgqpy
from pgqpy_consumers.apply._change import Row
from pgqpy_consumers.apply._merge import identifiers

Piece: TypeAlias = tuple[int, int]
"""The number of rows, and the sum of their digests."""

#: md5, because PostgreSQL's own hash functions may differ between versions; 60 bits fit a bigint.
_DIGEST = "('x' || left(md5({}), 15))::bit(60)::int8"


class Rows:
    """The rows of a table, or of something like one, as texts: the same on both sides.

    A row's key is the text of all its key columns. A row's piece depends on the digest of its key,
    not on how a database sorts.
    """

    def __init__(
        self,
        conn: pgqpy.Connection,
        source: sql.Composable,
        key: Sequence[str],
        columns: Sequence[str],
    ) -> None:
        self._conn = conn
        self._source = source
        self._columns = columns
        self._key = sql.SQL("row({})::text").format(identifiers(key))
        self._row = sql.SQL("row({})::text").format(identifiers(columns))

    def pieces(self, count: int) -> dict[int, Piece]:
        """The checksums of all pieces that are not empty."""
        found = self._rows(
            "select piece, count(*), sum(digest) from (select {key_digest} % {count} as piece,"
            " {row_digest} as digest from {source}) r group by 1",
            count=count,
        )
        return {piece: (rows, int(total)) for piece, rows, total in found}

    def digests(self, pieces: Collection[int], count: int) -> dict[str, int]:
        """The digest of each row of these pieces, by key."""
        return dict(
            self._rows(
                "select {key}, {row_digest} from {source}"
                " where {key_digest} % {count} = any ({pieces}::int8[])",
                count=count,
                pieces=sorted(pieces),
            )
        )

    def piece_of_each(self, count: int) -> dict[str, tuple[int, int]]:
        """The piece of each key, and its row's digest."""
        found = self._rows(
            "select {key}, {key_digest} % {count}, {row_digest} from {source}", count=count
        )
        return {key: (piece, digest) for key, piece, digest in found}

    def fetch(self, keys: Collection[str]) -> dict[str, Row]:
        """The rows of these keys."""
        query = self._query(
            "copy (select {key}, {columns} from {source} where {key} = any ({keys}::text[]))"
            " to stdout",
            columns=identifiers(self._columns),
            keys=sorted(keys),
        )
        with self._conn.cursor() as cursor, cursor.copy(query) as copy:
            return {
                str(key): dict(zip(self._columns, values, strict=True))
                for key, *values in copy.rows()
            }

    def _rows(self, statement: LiteralString, **values: Any) -> list[tuple[Any, ...]]:
        return self._conn.execute(self._query(statement, **values)).fetchall()

    def _query(self, statement: LiteralString, **values: Any) -> sql.Composed:
        return sql.SQL(statement).format(
            key=self._key,
            key_digest=_digest(self._key),
            row_digest=_digest(self._row),
            source=self._source,
            **values,
        )


def _digest(text: sql.Composable) -> sql.Composed:
    return sql.SQL(_DIGEST).format(text)
