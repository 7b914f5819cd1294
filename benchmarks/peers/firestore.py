"""Locks in Firestore: no library is known, so the official client's transactions by hand."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import LEASE, MINE, NAME
from tests.servers.firestore import PROJECT

if TYPE_CHECKING:
    from benchmarks.peers.base import Work


def libraries(host: str) -> dict[str, Work]:
    """The recipe of a read and a write in one transaction, for taking and for giving back."""
    from google.cloud import firestore

    os.environ["FIRESTORE_EMULATOR_HOST"] = host
    client: Any = firestore.Client(project=PROJECT)
    document, held = (client.collection("by-hand").document(name) for name in (NAME, "proof"))
    held.set({"me": MINE})

    @firestore.transactional
    def take(transaction: Any) -> None:
        found = document.get(transaction=transaction).to_dict()
        if found and found["me"] and found["ends"] > end(0):
            raise RuntimeError("The lock was busy.")
        transaction.set(document, {"me": MINE, "ends": end(LEASE)})

    @firestore.transactional
    def give_back(transaction: Any) -> None:
        if document.get(transaction=transaction).get("me") == MINE:
            transaction.update(document, {"me": None})

    def transactions() -> None:
        take(client.transaction())
        give_back(client.transaction())

    return {
        "by hand (transactions)": transactions,
        "one proof": lambda: held.update({"ends": end(LEASE)}),
    }


def end(seconds: float) -> dt.datetime:
    """The time in so many seconds."""
    return dt.datetime.now(tz=dt.UTC) + dt.timedelta(seconds=seconds)


def options(host: str) -> dict[str, Any]:
    """Of our room, whose client finds the emulator by the same variable."""
    os.environ["FIRESTORE_EMULATOR_HOST"] = host
    return {"project": PROJECT, "namespace": "bench"}
