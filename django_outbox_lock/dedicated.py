"""A database session of its own: for locks that live as long as one, and for whoever listens.

The connection is built beside Django's ``connections``, so that neither ``close_old_connections``
nor a pool can take it away, and it is never replaced behind its user's back.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox_lock import dberrors
from django_outbox_lock.exceptions import LockUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.utils import CursorWrapper

# Packages that take sessions from a pool, where a closed one goes on living, and holding.
_POOLS = frozenset({"dj_db_conn_pool", "django_db_geventpool", "django_postgrespool2"})
_POOL_OPTIONS = ("pool", "MAX_CONNS", "REUSE_CONNS")  # Django's, and django-db-geventpool's
# Sessions of a parent process: their drivers must not say goodbye to the server in its name.
_inherited: list[BaseDatabaseWrapper] = []


class SessionLost(LockUnavailable):
    """The physical session is gone, and with it all that lived in it."""


class LockSession:
    """One dedicated, unpooled, autocommit connection, used by one thread at a time.

    ``options`` are added to the driver's; ``prepare`` is called with a cursor once after each
    connect and returns the server's number of the session, which is then ``session_id``. ``keys``
    are the locks that the session holds, ``is_set_up`` is False after each connect; only the
    session's user of the moment may change them.
    """

    def __init__(
        self, alias: str, options: dict[str, Any], prepare: Callable[[CursorWrapper], str]
    ) -> None:
        self.session_id = ""
        self.is_set_up = False
        self.keys: set[str] = set()
        self._alias = alias
        self._options = options
        self._prepare = prepare
        self._turn = _Turn()
        self._wrapper: BaseDatabaseWrapper | None = None
        self._raw: Any = None
        self._ended: deque[BaseDatabaseWrapper] = deque()

    @property
    def is_open(self) -> bool:
        """Whether a session was opened and has not been found dead since."""
        return self._raw is not None

    @contextlib.contextmanager
    def use(self, timeout: float) -> Iterator[BaseDatabaseWrapper]:
        """The connection, for this thread alone; opened if it was closed.

        Raises ``LockUnavailable`` when it stays busy for ``timeout`` seconds or cannot be opened,
        and ``SessionLost``, after closing it, when it turns out to be dead.
        """
        try:
            with self._turn.taken(timeout) as alone:
                if not alone:
                    raise LockUnavailable(f"The lock session of {self._alias!r} is busy.")
                wrapper = self._wrapper or self._open()
                try:
                    self._refuse_replaced(wrapper)
                    yield wrapper
                except (DatabaseError, InterfaceError) as error:
                    self._raise_if_lost(error)
                    self._close_if_unfit(error)
                    raise
                finally:
                    if self._wrapper is not wrapper:  # whoever closed may have known another one
                        self._ended.append(wrapper)
                if self._wrapper is not wrapper:
                    raise SessionLost(f"The lock session of {self._alias!r} was closed meanwhile.")
        finally:
            if self._ended:  # closed by a thread that could not wait for the end of our turn
                self._discard_ended()

    def close(self) -> None:
        """End the session, and so every lock that it holds, without waiting for its user.

        If another thread hangs in it, the socket is shut down under the driver, and that thread
        comes back with an error and closes the rest.
        """
        wrapper, raw = self._wrapper, self._raw
        self._wrapper = self._raw = None
        if wrapper is not None:
            self._ended.append(wrapper)
        if not self._discard_ended() and wrapper is not None:
            _shut_down(raw)

    def close_if_unused(self) -> None:
        """End the session unless it holds a lock or somebody is about to take one."""
        with self._turn.taken() as alone:
            if alone and not self.keys:
                self.close()

    def disown(self) -> None:
        """In a forked child: let go of the parent's session without a word to the server."""
        wrapper, raw = self._wrapper, self._raw
        _inherited.extend(self._ended)
        if wrapper is not None:
            _inherited.append(wrapper)
            _replace_by_nothing(raw)

    def _open(self) -> BaseDatabaseWrapper:
        wrapper = dedicated_connection(self._alias, self._options)
        try:
            with wrapper.wrap_database_errors:
                wrapper.connect()
            cursor = wrapper.cursor()
            self.session_id = self._prepare(cursor)
        except (DatabaseError, InterfaceError) as error:
            wrapper.close()
            raise LockUnavailable(f"No lock session on {self._alias!r}: {error}") from error
        except BaseException:
            wrapper.close()
            raise
        # One cursor for good: to make one costs as much as a short statement, and may connect anew.
        reuse = functools.partial(contextlib.nullcontext, cursor)
        wrapper.cursor = reuse  # type: ignore[method-assign, assignment]
        self.keys.clear()
        self.is_set_up = False
        self._wrapper, self._raw = wrapper, wrapper.connection
        return wrapper

    def _refuse_replaced(self, wrapper: BaseDatabaseWrapper) -> None:
        if wrapper.connection is not self._raw:
            self.close()
            raise SessionLost(f"The lock session of {self._alias!r} was replaced by its driver.")

    def _raise_if_lost(self, error: Exception) -> None:
        if dberrors.is_connection_lost(error):
            self.close()
            raise SessionLost(f"The lock session of {self._alias!r} ended: {error}") from error

    def _close_if_unfit(self, error: Exception) -> None:
        """Of a server that was read-only when it began, or is a primary no longer, it stays so."""
        if not self.keys and not dberrors.is_transient(error):
            self.close()

    def _discard_ended(self) -> bool:
        """Close what has ended; False if another thread has its turn, which does it afterwards."""
        while self._ended:
            with self._turn.taken() as alone:
                if not alone:
                    return False
                if self._wrapper is None:
                    self.keys.clear()
                # Whatever a driver says of a session that may be dead already: it is to be closed.
                with contextlib.suppress(Exception):
                    self._ended.popleft().close()
        return True


class _Turn:
    """A mutex that is free again after its block, wherever a signal's handler has raised.

    That may be right after the mutex was acquired, before anybody could note it. So at the end the
    mutex itself is asked, which refuses whoever does not have it.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._user: int | None = None

    @contextlib.contextmanager
    def taken(self, timeout: float = 0.0) -> Iterator[bool]:
        """Whether this thread is alone in the block: it was so already, or is within seconds."""
        me = threading.get_ident()
        if self._user == me:
            yield True
            return
        try:
            alone = self._mutex.acquire(timeout=timeout)
            if alone:
                self._user = me
            yield alone
        finally:
            if self._user == me:
                self._user = None
            try:  # noqa: SIM105 (a call more is a moment more for a signal's handler)
                self._mutex.release()
            except RuntimeError:
                pass  # this thread did not get it


def dedicated_connection(alias: str, options: dict[str, Any]) -> BaseDatabaseWrapper:
    """A connection like that of ``alias``, but unpooled, in autocommit, and of no registry."""
    template = connections[alias]
    settings = copy.deepcopy(template.settings_dict)
    settings.update(
        AUTOCOMMIT=True, ATOMIC_REQUESTS=False, CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False
    )
    settings["OPTIONS"] = {**settings["OPTIONS"], **options}
    for name in _POOL_OPTIONS:
        settings["OPTIONS"].pop(name, None)
    wrapper = _below_pools(type(template))(settings, alias=alias)
    wrapper.inc_thread_sharing()
    wrapper.queries_log = deque(maxlen=0)  # under DEBUG it would grow: no request ever empties it
    return wrapper


def _below_pools(kind: type[BaseDatabaseWrapper]) -> type[BaseDatabaseWrapper]:
    """The class itself or, if a package with a pool has put its own above one, that one."""
    lineage = kind.__mro__
    pools = [n for n, cls in enumerate(lineage) if cls.__module__.partition(".")[0] in _POOLS]
    below = lineage[max(pools, default=-1) + 1 :]
    return next(cls for cls in below if issubclass(cls, BaseDatabaseWrapper))


def _shut_down(raw: Any) -> None:
    # A driver without a file descriptor (ODBC) has time-outs of its own.
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(raw.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)


def _replace_by_nothing(raw: Any) -> None:
    # The number stays taken, so that no later file of this process is mistaken for the session.
    with contextlib.suppress(Exception):
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, raw.fileno())
        os.close(nothing)
