"""Many values as one parameter: lists of numbers, and a JSON array read as a table.

One parameter keeps a statement the same for 10 rows and for 10,000, and below every server's
limit of parameters. The dialects differ too much for expressions; they are chosen by name here.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.exceptions import EmptyResultSet
from django.db import DatabaseError, NotSupportedError, transaction
from django.db.models import F, Lookup

from django_outbox_lock import dberrors, errortext
from django_outbox_lock.querysets.states import OUTSTANDING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.expressions import Combinable

    BooleanLookup = Lookup[bool]
else:
    BooleanLookup = Lookup

# Columns with words that strangers have chosen, and how much of them fits into each.
_ERRORS = {"error": 2000, "last_error": 2000, "reason": 200}
_SAME_DIALECT = {"cockroachdb": "postgresql", "yugabyte": "postgresql", "tidb": "mysql"}


class InNumbers(BooleanLookup):
    """True for the rows whose ``column`` is one of ``numbers``.

    A lookup, because of any other condition Django makes ``(…) = 1`` on MySQL and MariaDB, which
    no index serves: 4 s for each page of a table of 2 million rows.
    """

    lookup_name = "in_numbers"
    prepare_rhs = False

    def __init__(self, column: str | Combinable, numbers: Sequence[int]) -> None:
        super().__init__(F(column) if isinstance(column, str) else column, list(numbers))

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        if not self.rhs:
            raise EmptyResultSet  # an empty list is a syntax error on MySQL
        # Literals: a driver's parameters are bounded, and these are numbers of our own.
        return self._condition(compiler, f"IN ({', '.join(map(str, map(int, self.rhs)))})")

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        return self._condition(compiler, "= ANY(%s::bigint[])", list(self.rhs))

    def as_microsoft(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        numbers = json.dumps(list(self.rhs))
        return self._condition(
            compiler, "IN (SELECT n FROM OPENJSON(%s) WITH (n bigint '$'))", numbers
        )

    def _condition(self, compiler: Any, test: str, *given: Any) -> tuple[str, tuple[Any, ...]]:
        sql, params = compiler.compile(self.lhs)
        return f"{sql} {test}", (*params, *given)


class BelowEach(BooleanLookup):
    """True for the outstanding rows whose id is below the one that ``bounds`` has for their key."""

    lookup_name = "below_each"
    prepare_rhs = False

    def __init__(self, bounds: Mapping[int, int]) -> None:
        super().__init__(F("order_key"), tuple(bounds.items()))
        self.others: list[Any] = [F("state"), F("id")]

    def resolve_expression(self, *args: Any, **kwargs: Any) -> Any:
        resolved: Any = super().resolve_expression(*args, **kwargs)
        resolved.others = [other.resolve_expression(*args, **kwargs) for other in self.others]
        return resolved

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        # Literal ranges: each is a search of its own in the index over these columns.
        key, state, id_ = (compiler.compile(column)[0] for column in (self.lhs, *self.others))
        ranges = (
            f"({key} = {order_key:d} AND {state} = {OUTSTANDING} AND {id_} < {bound:d})"
            for order_key, bound in self.rhs
        )
        return f"({' OR '.join(ranges)})", ()


@dataclass(frozen=True, slots=True)
class _Dialect:
    source: str
    column: str
    types: Mapping[str, str]
    update: str
    upsert: str
    target: str = "{column}"
    correlated_ranges: bool = True

    def table(self, columns: Mapping[str, str]) -> str:
        listed = ", ".join(
            self.column.format(name=name, type=self.types[kind]) for name, kind in columns.items()
        )
        return self.source.format(columns=listed)


_UPDATE_FROM = "UPDATE {table} SET {assign} FROM {source} WHERE {join} AND {where}"
_ON_CONFLICT = (
    "INSERT INTO {table} ({columns}) SELECT {select} FROM {source} WHERE true "
    "ON CONFLICT ({unique}) DO UPDATE SET {excluded}"
)
_DIALECTS = {
    "postgresql": _Dialect(
        source="json_to_recordset(%s::json) AS v({columns})",
        column="{name} {type}",
        types={"number": "bigint", "text": "text"},
        update=_UPDATE_FROM,
        upsert=_ON_CONFLICT,
    ),
    "sqlite": _Dialect(
        source="(SELECT {columns} FROM json_each(%s)) AS v",
        column="json_extract(value, '$.{name}') AS {name}",
        types={"number": "", "text": ""},
        update=_UPDATE_FROM,
        upsert=_ON_CONFLICT,
    ),
    "mysql": _Dialect(
        # Whatever the connection speaks: of a character that it has not, a NULL would be made.
        source="JSON_TABLE(CONVERT(%s USING utf8mb4), '$[*]' COLUMNS({columns})) AS v",
        column="{name} {type} PATH '$.{name}'",
        types={"number": "BIGINT", "text": "VARCHAR(2000) CHARACTER SET utf8mb4"},
        update="UPDATE {source} STRAIGHT_JOIN {table} ON {join} SET {assign} WHERE {where}",
        upsert=(
            "INSERT INTO {table} ({columns}) SELECT {select} FROM {source} "
            "ON DUPLICATE KEY UPDATE {given}"
        ),
        target="{table}.{column}",
        correlated_ranges=False,
    ),
    "microsoft": _Dialect(
        source="OPENJSON(%s) WITH ({columns}) AS v",
        column="{name} {type} '$.{name}'",
        types={"number": "bigint", "text": "nvarchar(2000)"},
        update="UPDATE {table} SET {assign} FROM {table} JOIN {source} ON {join} WHERE {where}",
        upsert=(
            "MERGE INTO {table} WITH (HOLDLOCK) USING (SELECT {aliased} FROM {source}) AS s "
            "ON {table}.{unique} = s.{unique} WHEN MATCHED THEN UPDATE SET {merged} "
            "WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({merged_values});"
        ),
    ),
}


def has_correlated_ranges(connection: BaseDatabaseWrapper) -> bool:
    """Whether a subquery can search an index by a bound that each row brings along."""
    return dialect(connection).correlated_ranges


def unsupported(connection: BaseDatabaseWrapper) -> str:
    """Why the outcomes of a page cannot be written on this database; empty if they can."""
    name = _SAME_DIALECT.get(connection.vendor, connection.vendor)
    if name not in _DIALECTS:
        return f"no way to read JSON as a table is known for {connection.vendor!r}"
    if connection.vendor != "mysql":
        return ""
    server: Any = connection
    least = (10, 6) if server.mysql_is_mariadb else (8, 0, 4)
    if server.mysql_version >= least:
        return ""
    return f"it has no JSON_TABLE before version {'.'.join(map(str, least))}"


def dialect(connection: BaseDatabaseWrapper) -> _Dialect:
    """The dialect of a connection. Raises ``NotSupportedError`` for a vendor without one."""
    name = _SAME_DIALECT.get(connection.vendor, connection.vendor)
    if name not in _DIALECTS:
        raise NotSupportedError(f"{connection.vendor!r}: no way to read JSON as a table is known.")
    return _DIALECTS[name]


def update_each(
    connection: BaseDatabaseWrapper,
    table: str,
    *,
    columns: Mapping[str, str],
    assign: Mapping[str, str],
    where: str,
    rows: Sequence[Mapping[str, Any]],
) -> int:
    """Update each row that ``rows`` names by ``id`` with its own values; the number of rows hit.

    ``columns`` are the keys of ``rows`` with their kinds, read as the table ``v``; ``assign`` maps
    columns to SQL, ``where`` is a condition on both tables.
    """
    chosen, name = dialect(connection), connection.ops.quote_name(table)
    sql = chosen.update.format(
        table=name,
        assign=", ".join(
            f"{chosen.target.format(table=name, column=column)} = {value}"
            for column, value in assign.items()
        ),
        source=chosen.table(columns),
        join=f"{name}.id = v.id",
        where=where,
    )
    return _run(connection, sql, [], rows)


def upsert_each(
    connection: BaseDatabaseWrapper,
    table: str,
    *,
    unique: str,
    columns: Mapping[str, str],
    insert: Mapping[str, str],
    update: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    keep: Sequence[str] = (),
    params: Sequence[Any] = (),
) -> int:
    """Insert each of ``rows`` or, where ``unique`` is there already, set the columns ``update``.

    The columns ``keep`` are set where they are NULL. ``insert`` maps every column to SQL over the
    table ``v`` of ``rows``, with ``params``.
    """
    chosen, name = dialect(connection), connection.ops.quote_name(table)

    def assigned(value: str) -> str:
        given = {c: value.format(column=c, own=insert[c]) for c in (*update, *keep)}
        kept = {c: f"COALESCE({name}.{c}, {given[c]})" for c in keep}
        return ", ".join(f"{column} = {sql}" for column, sql in {**given, **kept}.items())

    sql = chosen.upsert.format(
        table=name,
        unique=unique,
        columns=", ".join(insert),
        select=", ".join(insert.values()),
        aliased=", ".join(f"{value} AS {column}" for column, value in insert.items()),
        source=chosen.table(columns),
        excluded=assigned("excluded.{column}"),
        given=assigned("{own}"),
        merged=assigned("s.{column}"),
        merged_values=", ".join(f"s.{column}" for column in insert),
    )
    return _run(connection, sql, params, rows)


def _run(
    connection: BaseDatabaseWrapper,
    sql: str,
    params: Sequence[Any],
    rows: Sequence[Mapping[str, Any]],
) -> int:
    """Execute with ``rows`` as the last parameter; the number of rows hit.

    An error's text in characters that the tables do not have must not keep its message from being
    written, for that would be sent for ever: it is written with escapes instead.
    """
    text = _json(rows)
    try:
        with _outlived(connection):
            return _execute(connection, sql, [*params, text])
    except DatabaseError as error:
        if not dberrors.is_unstorable_text(error):
            raise
    return _execute(connection, sql, [*params, _json([_escaped(row) for row in rows])])


def _outlived(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    """So that a transaction goes on after a text that was refused; a savepoint where it needs one.

    PostgreSQL ends the transaction with the statement, but in UTF-8 it refuses no text.
    """
    if connection.vendor != "postgresql":
        return nullcontext()
    connection.ensure_connection()
    encoding = connection.connection.info.parameter_status("server_encoding")
    return nullcontext() if encoding == "UTF8" else transaction.atomic(using=connection.alias)


def _escaped(row: Mapping[str, Any]) -> dict[str, Any]:
    texts = {
        name: errortext.escaped(row[name], most) for name, most in _ERRORS.items() if row.get(name)
    }
    return {**row, **texts}


def _json(rows: Sequence[Mapping[str, Any]]) -> str:
    # What is None is left out: servers differ in what they make of JSON's null.
    return json.dumps([{k: v for k, v in row.items() if v is not None} for row in rows])


def _execute(connection: BaseDatabaseWrapper, sql: str, params: list[Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)
