"""A lease in MongoDB: one document per resource, changed by pipelines on the server's clock."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from django_outbox_lock import checked
from django_outbox_lock.backends.locks.base import Live
from django_outbox_lock.backends.locks.store import GARBLED, Owner, StoreLockBackend
from django_outbox_lock.exceptions import LockUnavailable

try:
    import pymongo
    from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError
    from pymongo.read_concern import ReadConcern
    from pymongo.read_preferences import ReadPreference
    from pymongo.uri_parser import parse_uri
    from pymongo.write_concern import WriteConcern
except ImportError as error:
    raise ImportError(
        "The MongoDB lock needs pymongo: pip install 'django-outbox-lock[mongodb]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.collection import Collection

Document = dict[str, Any]

_DEFAULT_DATABASE = "outbox_lock"
_inherited: list[pymongo.MongoClient[Document] | None] = []

# Milliseconds since 1970 on the server's clock. Numbers on both sides of every comparison: not
# every server that speaks this protocol compares dates with $$NOW in the same way.
_NOW = {"$toLong": "$$NOW"}
_EXPIRES = {"$toLong": "$expires"}
# Two leases ahead is more than any holder asks for: a new primary's clock may be behind.
_FREE = {
    "$or": [
        {"$eq": [{"$ifNull": ["$owner", None]}, None]},
        {"$lte": [_EXPIRES, _NOW]},
        {"$gt": [_EXPIRES, {"$add": [_NOW, {"$multiply": [2, "$lease"]}]}]},
    ]
}


class MongoDBLock(StoreLockBackend):
    """Conditional updates by pipelines on ``$$NOW``; the documents are never deleted.

    ``url`` as pymongo takes it; ``database`` is that of the URL, else ``outbox_lock``; the
    ``collection`` comes into being with the first lock. ``timeout`` in seconds bounds the search
    for a primary, each answer and the wait for the majority, whatever the URL says of these.
    A failover may lose a lease that the majority had not confirmed, never a token.
    """

    label = "mongodb"
    extra: ClassVar[str] = "mongodb"

    def __init__(
        self,
        alias: str,
        *,
        url: str,
        database: str | None = None,
        collection: str = "outbox_locks",
        timeout: float = 2.0,
        **options: Any,
    ) -> None:
        super().__init__(alias, **options)
        self._url = _readable(checked.url("url", url))
        self._database = checked.optional("database", database)
        self._collection_name = checked.text("collection", collection)
        self._timeout = checked.at_least("timeout", timeout, 0.001)

    def reset(self) -> None:
        super().reset()
        # A forked child leaves the parent's client alone: its end would complain, or say goodbye.
        if "_opened" in vars(self):
            _inherited.append(self._opened)
        self._opened: pymongo.MongoClient[Document] | None = None
        self._opening = threading.Lock()

    def acquire(self, key: str, owner: Owner) -> bool:
        try:
            return self._won(key, owner)
        except LockUnavailable:
            # Perhaps only the answer got lost: the pipeline says yes to its own id again.
            return self._won(key, owner)

    def extend(self, key: str, owner_id: str) -> bool:
        return self._change({"_id": key, "owner": owner_id}, {"expires": self._end})

    def vacate(self, key: str, owner_id: str) -> bool:
        # One that was carried out, and whose answer got lost, is recognised when it is repeated.
        mine = {"_id": key, "$or": [{"owner": owner_id}, {"owner": None, "released_by": owner_id}]}
        return self._change(mine, {"owner": None, "released_by": owner_id})

    def live(self) -> Iterator[Live]:
        held = {"namespace": self.namespace, "owner": {"$ne": None}}
        with _telling():
            for found in self._collection.find({**held, "$expr": {"$gt": [_EXPIRES, _NOW]}}):
                yield Live.of(found["_id"], found)

    def missing(self) -> str | None:
        with _telling():
            names = self._collection.database.list_collection_names(
                filter={"name": self._collection_name}
            )
        return None if names else f"the MongoDB collection {self._full_name} does not exist"

    def provision(self) -> str:
        """Make the collection, which the first lock would make otherwise."""
        if self.missing() is None:
            return f"the MongoDB collection {self._full_name} was there"
        with _telling():
            self._collection.database.create_collection(self._collection_name)
        return f"made the MongoDB collection {self._full_name}"

    def disconnect(self) -> None:
        with self._opening:
            client, self._opened = self._opened, None
        if client is not None:
            client.close()

    # The document.

    def _won(self, key: str, owner: Owner) -> bool:
        with _telling():
            try:
                return self._upsert(key, owner)
            except DuplicateKeyError:
                pass  # somebody else made the document at the same moment: now there is one
            try:
                return self._upsert(key, owner)
            except DuplicateKeyError:
                return False

    def _upsert(self, key: str, owner: Owner) -> bool:
        taken = {"$or": [{"$eq": ["$owner", owner.lock_id]}, _FREE]}
        document = {"_id": key, **self._document_of(owner)}
        found = self._collection.find_one_and_update(
            {"_id": key},
            [{"$replaceWith": {"$cond": [taken, document, "$$ROOT"]}}],
            upsert=True,
            return_document=pymongo.ReturnDocument.AFTER,
        )
        return found is not None and bool(found["owner"] == owner.lock_id)

    def _document_of(self, owner: Owner) -> Document:
        # Literal, for a name may begin with a dollar sign.
        return {
            "owner": owner.lock_id,
            "namespace": {"$literal": self.namespace},
            "resource": {"$literal": owner.resource},
            "host": {"$literal": owner.host},
            "pid": owner.pid,
            "application": {"$literal": owner.application},
            "lease": self._milliseconds,
            "acquired": "$$NOW",
            "expires": self._end,
        }

    def _change(self, mine: Document, fields: Document) -> bool:
        with _telling():
            return self._collection.update_one(mine, [{"$set": fields}]).matched_count == 1

    @property
    def _milliseconds(self) -> int:
        return int(self.lease * 1000)

    @property
    def _end(self) -> Document:
        return {"$toDate": {"$add": [_NOW, self._milliseconds]}}

    # The client.

    @property
    def _full_name(self) -> str:
        return self._collection.full_name

    @property
    def _collection(self) -> Collection[Document]:
        client = self._client
        database = (
            client[self._database]
            if self._database
            else client.get_default_database(_DEFAULT_DATABASE)
        )
        return database.get_collection(
            self._collection_name,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern("majority", wtimeout=int(self._timeout * 1000), j=True),
        )

    @property
    def _client(self) -> pymongo.MongoClient[Document]:
        milliseconds = int(self._timeout * 1000)
        with self._opening:
            if self._opened is None:
                self._opened = pymongo.MongoClient(
                    self._url,
                    connect=False,
                    serverSelectionTimeoutMS=milliseconds,
                    connectTimeoutMS=milliseconds,
                    # The server's own wait for the majority ends first, and says what it was.
                    socketTimeoutMS=milliseconds + 1000,
                    # A limit for all of these together in the URL would go before them.
                    timeoutMS=None,
                    # The server knows a repetition of the driver's, and gives its first answer; but
                    # some that speak its protocol refuse them, and have the URL switch them off.
                    appname=f"outboxlock:{self.alias}",
                )
            return self._opened


def _readable(given: str) -> str:
    """The URL if pymongo can read it. One with ``+srv`` would have to be looked up for that."""
    if not given.startswith("mongodb+srv://"):
        try:
            parse_uri(given, validate=True)
        except (PyMongoError, ValueError, TypeError) as error:
            raise ValueError(f"url: {error}") from error
    return given


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except DuplicateKeyError:
        raise
    except (PyMongoError, *GARBLED) as error:
        what = "refused" if isinstance(error, OperationFailure) else "gave no answer"
        raise LockUnavailable(f"MongoDB {what}: {error}") from error
