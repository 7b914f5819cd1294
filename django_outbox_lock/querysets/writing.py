"""Writing new rows: one narrow INSERT for as many of them as fit, and nothing read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.db.models.sql import InsertQuery

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.models import Field, Model

# What PostgreSQL's protocol can number; a driver that binds on the server would refuse more.
MAX_PARAMETERS = 65_535
# What the short columns of a row may take of a statement, beyond body and headers.
ROW_BYTES = 1024


def insert(
    rows: Sequence[Any], columns: Sequence[str], using: str, *, batch_size: int, batch_bytes: int
) -> None:
    """Insert rows of one model in their order, at most ``batch_size`` of them in a statement.

    A statement carries about ``batch_bytes`` of bodies and headers, or a single row, and no more
    parameters than the database takes. Only the fields named by ``columns`` are written, the
    others are left to the database. An error makes the caller's ``atomic`` block roll back.
    """
    model: type[Model] = type(rows[0])
    by_name = {field.name: field for field in model._meta.concrete_fields}
    fields = [by_name[name] for name in columns]
    limit = min(batch_size, _rows_of_a_statement(fields, rows, using))
    with transaction.mark_for_rollback_on_error(using):
        for chunk in _chunks(rows, limit, batch_bytes):
            query = InsertQuery(model)
            query.insert_values(fields, list(chunk))
            query.get_compiler(using).execute_sql()


def _rows_of_a_statement(fields: list[Field[Any, Any]], rows: Sequence[Any], using: str) -> int:
    allowed = connections[using].ops.bulk_batch_size(fields, rows)
    return max(1, min(allowed, MAX_PARAMETERS // len(fields)))


def _chunks(rows: Sequence[Any], limit: int, batch_bytes: int) -> Iterator[Sequence[Any]]:
    start = size = 0
    for place, row in enumerate(rows):
        weight = len(row.body) + len(row.headers.encode()) + ROW_BYTES
        if place > start and (place - start == limit or size + weight > batch_bytes):
            yield rows[start:place]
            start, size = place, 0
        size += weight
    yield rows[start:]
