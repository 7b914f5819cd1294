"""Locks in MongoDB, by mongoelector and by hand.

Other libraries do not run on today's pymongo (mongolock), or do not look at the owner (shylock).
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import LEASE, MINE, NAME

if TYPE_CHECKING:
    from benchmarks.peers.base import Work


def libraries(url: str) -> dict[str, Work]:
    """The library inserts and deletes; a renewal is the same by hand as by it.

    All write as durably as ours, which is what a MongoDB does that nobody asks for less.
    """
    import pymongo
    from mongoelector import MongoLocker
    from pymongo.write_concern import WriteConcern

    client: Any = pymongo.MongoClient(url, tz_aware=True)
    database = client.get_database("bench", write_concern=WriteConcern("majority", j=True))
    lock = MongoLocker(NAME, database, ttl=LEASE)

    def mongoelector() -> None:
        lock.acquire(blocking=False)
        lock.release()

    return {
        "by mongoelector": mongoelector,
        "by hand (findAndModify)": by_hand(database["by-hand"]),
        "one proof": proof(database["by-hand"]),
    }


def by_hand(collection: Any) -> Work:
    """A document that stays, and is taken if it is free or has expired."""
    collection.update_one({"_id": NAME}, {"$set": {"me": None, "ends": end(0)}}, upsert=True)

    def once() -> None:
        free = {"_id": NAME, "$or": [{"me": None}, {"ends": {"$lt": end(0)}}]}
        taken = {"$set": {"me": MINE, "ends": end(LEASE)}}
        if collection.find_one_and_update(free, taken) is None:
            raise RuntimeError("The lock was busy.")
        collection.find_one_and_update({"_id": NAME, "me": MINE}, {"$set": {"me": None}})

    return once


def proof(collection: Any) -> Work:
    """A renewal that compares the owner."""
    mine = {"_id": "proof", "me": MINE}
    collection.replace_one({"_id": "proof"}, mine, upsert=True)
    return lambda: collection.find_one_and_update(mine, {"$set": {"ends": end(LEASE)}})


def end(seconds: float) -> dt.datetime:
    """The time in so many seconds."""
    return dt.datetime.now(tz=dt.UTC) + dt.timedelta(seconds=seconds)


def options(url: str) -> dict[str, Any]:
    """Of our room."""
    return {"url": url, "namespace": "bench"}
