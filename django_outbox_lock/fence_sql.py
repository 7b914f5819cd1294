"""The SQL of the registry's row, in each vendor's dialect; the names come from the model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_outbox_lock import keys, process
from django_outbox_lock.clock import SECOND, ServerTime
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_outbox_lock.holder import Claim


def microseconds(seconds: float) -> int:
    """``seconds`` in the unit of the registry's times."""
    return int(seconds * SECOND)


@dataclass(frozen=True, slots=True)
class Statements:
    """One dialect's statements, with ``%s`` for each parameter."""

    insert: str
    take_session: str
    take_lease: str
    if_free: str
    if_nobodys_or_same: str
    if_token: str
    returning: str
    own_token: str
    token: str
    touch: str
    bounded_touch: str
    extend: str
    free: str
    free_soon: str
    force: str

    def takes(self, claim: Claim, expected: int | None) -> Iterator[tuple[str, list[Any]]]:
        """Conditional UPDATEs that make the claimant the owner, to be tried one after the other."""
        lease = microseconds(claim.lease)
        params: list[Any] = [claim.lock_id, claim.backend, process.host(), os.getpid()]
        params += [process.application(), claim.session_id, lease]
        params += [lease] if claim.expires else []
        params += [keys.resource_id(claim.resource)]
        take = self.take_lease if claim.expires else self.take_session
        last, end = ([], "") if expected is None else ([expected], self.if_token)
        if claim.arbitrated:  # the short one does, but for a change of backends
            short = take + self.if_nobodys_or_same + end + self.returning
            yield short, [*params, claim.backend, *last]
        yield take + self.if_free + end + self.returning, [*params, *last]


# The server ends a transaction that stays idle this long; local to the transaction.
IDLE_LIMIT = {
    "postgresql": "set_config('idle_in_transaction_session_timeout', %s, true) IS NOT NULL AND "
}
# The commit of this transaction alone is not waited for.
NO_FLUSH = {"postgresql": "set_config('synchronous_commit', 'off', true) IS NOT NULL AND "}
# Where an UPDATE can tell what it wrote, or one number of it.
LAST_ID = {"mysql": "LAST_INSERT_ID({})"}
_RETURNING = frozenset({"postgresql", "cockroachdb", "yugabyte", "sqlite"})

_compiled: dict[str, Statements] = {}


def statements(connection: BaseDatabaseWrapper) -> Statements:
    """Those for the connection's vendor; compiled once."""
    if connection.vendor not in _compiled:
        _compiled[connection.vendor] = _compile(connection)
    return _compiled[connection.vendor]


def returns(connection: BaseDatabaseWrapper) -> bool:
    """Whether an UPDATE can give back what it wrote."""
    return connection.vendor in _RETURNING and connection.features.can_return_columns_from_insert


def _compile(connection: BaseDatabaseWrapper) -> Statements:
    """The statements in the connection's dialect; the names come from the model."""
    quote, now, vendor = connection.ops.quote_name, ServerTime.sql(connection), connection.vendor
    table = quote(Lock._meta.db_table)
    c = {field.name: quote(str(field.column)) for field in Lock._meta.concrete_fields}
    mine = f"{c['id']} = %s AND {c['token']} = %s AND {c['owner']} = %s"
    identity = ("owner", "backend", "host", "pid", "application", "session_id", "lease")
    next_token = LAST_ID.get(vendor, "{}").format(f"{c['token']} + 1")
    take = (
        f"UPDATE {table} SET {c['token']} = {next_token}, "
        + ", ".join(f"{c[name]} = %s" for name in identity)
        + f", {c['acquired_at']} = {now}, {c['last_seen_at']} = {now}, {c['expires_at']} = "
    )
    where = f" WHERE {c['id']} = %s AND "
    # Two leases ahead is more than any holder asks for: the server's clock has stepped back.
    passed = f"{c['expires_at']} <= {now} OR {c['expires_at']} > {now} + 2 * {c['lease']}"
    # A session that was not seen for two of its leases is gone, whatever became of its server.
    unseen = f"{c['expires_at']} IS NULL AND {c['last_seen_at']} + 2 * {c['lease']} <= {now}"
    free_row = f"{c['owner']} IS NULL OR {passed} OR ({unseen})"
    touch = f"UPDATE {table} SET {c['last_seen_at']} = {now} WHERE "
    leave = f"UPDATE {table} SET {c['owner']} = NULL, {c['last_seen_at']} = {now}"
    return Statements(
        insert=f"INSERT INTO {table} ({c['id']}, {c['resource']}) VALUES (%s, %s)",
        take_session=f"{take}NULL{where}",
        take_lease=f"{take}{now} + %s{where}",
        if_free=f"({free_row})",
        if_nobodys_or_same=f"({c['owner']} IS NULL OR {c['backend']} = %s)",
        if_token=f" AND {c['token']} = %s",
        returning=f" RETURNING {c['token']}" if returns(connection) else "",
        own_token=f"SELECT {c['token']} FROM {table} WHERE {c['id']} = %s AND {c['owner']} = %s",
        token=f"SELECT {c['token']} FROM {table} WHERE {c['id']} = %s",
        touch=touch + mine,
        bounded_touch=touch + IDLE_LIMIT[vendor] + mine if vendor in IDLE_LIMIT else "",
        extend=(
            f"UPDATE {table} SET {c['expires_at']} = {now} + %s, "
            f"{c['last_seen_at']} = {now} WHERE {mine}"
        ),
        free=f"{leave} WHERE {mine}",
        free_soon=f"{leave} WHERE {NO_FLUSH.get(vendor, '')}{mine}",
        force=(
            f"UPDATE {table} SET {c['token']} = {c['token']} + 1, {c['owner']} = NULL, "
            f"{c['forced_by']} = %s, {c['forced_at']} = {now} "
            f"WHERE {c['id']} = %s AND {c['token']} = %s AND {c['owner']} IS NOT NULL"
        ),
    )
