"""What a handler may leave behind on the database connections of its thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import DatabaseError, connections

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class Leftovers:
    """Made before a handler is called; the next one finds the connections as they were then.

    Inside a transaction of the caller's, as in a test, the handler gets a savepoint: a database
    error of its own must not end that transaction.
    """

    def __init__(self) -> None:
        self._depths = _depths()
        made = {alias: connections[alias].savepoint() for alias in self._depths}
        self._savepoints = {alias: name for alias, name in made.items() if name is not None}

    def clear_away(self) -> set[str]:
        """Undo what the handler has not finished; the aliases on which that was a transaction."""
        left_open = {alias for alias, depth in _depths().items() if depth > self._before(alias)}
        for alias in left_open:
            self._roll_back(alias)
        for alias, savepoint in self._savepoints.items():
            _release(connections[alias], savepoint)
        _close_dead_sessions()
        return left_open

    def _before(self, alias: str) -> int:
        return self._depths.get(alias, 0)

    def _roll_back(self, alias: str) -> None:
        if alias in self._depths:
            _leave_blocks(connections[alias], self._depths[alias])
            return
        connections[alias].close()
        # A connection closed inside `atomic` refuses to open again; the next use makes a new one.
        del connections[alias]


def _depths() -> dict[str, int]:
    """How deep this thread is inside transactions that it has to end itself, by alias."""
    return {
        connection.alias: 1 + len(connection.atomic_blocks)
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block
        or (connection.connection and connection.autocommit != _usual_autocommit(connection))
    }


def _usual_autocommit(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.settings_dict["AUTOCOMMIT"])


def _leave_blocks(connection: BaseDatabaseWrapper, depth: int) -> None:
    """Back to the caller's own blocks."""
    while 1 + len(connection.atomic_blocks) > depth:
        connection.set_rollback(True)
        connection.atomic_blocks[-1].__exit__(None, None, None)


def _release(connection: BaseDatabaseWrapper, savepoint: str) -> None:
    """Keep what was done since; undo it where the transaction could not go on after it."""
    try:
        connection.savepoint_commit(savepoint)
    except DatabaseError:
        connection.needs_rollback = False
        connection.savepoint_rollback(savepoint)


def _close_dead_sessions() -> None:
    """As at the end of a request: over a dead session all later handlers of the page would fail."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred and connection.connection and not connection.in_atomic_block:
            connection.errors_occurred = not connection.is_usable()
            if connection.errors_occurred:
                connection.close()
