"""What one comparison consists of, and the writes that a fence costs on each database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[[], object]

NAME = "benchmark"
MINE = "0123456789abcdef0123456789abcdef"  # the id of a holder where one must be given
LEASE = 60


def nothing(_address: str) -> dict[str, Any]:
    """The options of a room that needs none."""
    return {}


@dataclass(frozen=True)
class Peers:
    """Who does at one store what ours does there.

    ``database`` has the registry; ``outside`` is a server beside it, and ``address`` the attribute
    of that server that clients are given. ``libraries`` makes, for that address, the pairs of the
    others (``by …``) and the proof (``one proof``); ``writes`` the other steps. ``room`` is ours,
    with its ``options`` for the address; None is the database's own. ``apps`` are the libraries'.
    """

    database: str
    writes: Callable[[], dict[str, Work]]
    libraries: Callable[[str], dict[str, Work]]
    outside: str | None = None
    address: str = "url"
    room: str | None = None
    options: Callable[[str], dict[str, Any]] = nothing
    apps: tuple[str, ...] = ()


def is_step(name: str) -> bool:
    """Whether it is a part of what ours does beyond locking."""
    return name.startswith("one ")


def postgresql_writes() -> dict[str, Work]:
    """The second does not wait for the disk."""
    from django.db import connection

    def loose() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE shop_order SET total = total + 1 WHERE number = 'one' "
                "AND set_config('synchronous_commit', 'off', true) IS NOT NULL"
            )

    return {"one durable UPDATE": update, "one less durable UPDATE": loose}


def other_writes() -> dict[str, Work]:
    """Both as durable as the server makes them."""
    return {"one durable UPDATE": update, "one UPDATE for the free": update}


def update() -> None:
    """One durable single-row UPDATE through Django's cursor, in autocommit."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("UPDATE shop_order SET total = total + 1 WHERE number = 'one'")
