"""Somebody else answers at the store's address: that is neither yes nor no, nor a stray error."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock.backends.locks.azure import AzureBlobLock
from django_outbox_lock.backends.locks.dynamodb import DynamoDBLock
from django_outbox_lock.backends.locks.firestore import FirestoreLock
from django_outbox_lock.backends.locks.mongodb import MongoDBLock
from django_outbox_lock.backends.locks.redis import RedisLock
from django_outbox_lock.exceptions import LockUnavailable
from tests.locks.dynamodbrooms import give_credentials, owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_outbox_lock.backends.locks.store import StoreLockBackend

    Answering = Callable[[bytes], int]

REDIS = [b"*abc\r\n", b":abc\r\n" * 5, b"+OK\r\n" * 10, b"$3\r\n\xff\xff\xff\r\n" * 9]
HTTP = [
    b"HTTP/1.1 404 X\r\nContent-Length: 2\r\n\r\n[]",
    b"HTTP/1.1 400 X\r\nContent-Length: 4\r\n\r\nnull",
    b"HTTP/1.1 500 X\r\nContent-Length: 5\r\n\r\n<xml>",
    b"HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
]
NOISE = [b"", b"\xff" * 200]
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def options(cls: Callable[..., StoreLockBackend], port: int) -> dict[str, Any]:
    http = f"http://127.0.0.1:{port}"
    addresses: dict[object, dict[str, Any]] = {
        AzureBlobLock: {
            "connection_string": "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
            f"AccountKey={KEY};BlobEndpoint={http}/devstoreaccount1;"
        },
        DynamoDBLock: {"table": "locks", "region_name": "eu-west-1", "endpoint_url": http},
        FirestoreLock: {"project": "outbox"},
        MongoDBLock: {"url": f"mongodb://127.0.0.1:{port}/"},
        RedisLock: {"url": f"redis://127.0.0.1:{port}/0"},
    }
    return addresses[cls]


@pytest.fixture
def answering() -> Iterator[Answering]:
    """A function that starts a server with one answer to everything, and gives its port."""
    with contextlib.ExitStack() as stack:

        def start(answer: bytes) -> int:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            threading.Thread(target=_serve, args=(server, answer), daemon=True).start()
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            return int(server.getsockname()[1])

        yield start


def _serve(server: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):  # the test is over
        while True:
            client, _ = server.accept()
            threading.Thread(target=_answer, args=(client, answer), daemon=True).start()


def _answer(client: socket.socket, answer: bytes) -> None:
    with client, contextlib.suppress(OSError):
        client.settimeout(5)
        while client.recv(65_536):
            client.sendall(answer)
            if not answer:
                return


@pytest.mark.parametrize(
    ("cls", "answer"),
    [
        *((RedisLock, answer) for answer in (*REDIS, *HTTP[:1], *NOISE)),
        *((DynamoDBLock, answer) for answer in (*HTTP, *NOISE)),
        *((AzureBlobLock, answer) for answer in (*HTTP, *NOISE)),
        *((MongoDBLock, answer) for answer in (*HTTP[:1], *NOISE)),
        *((FirestoreLock, answer) for answer in (*HTTP[:1], *NOISE)),
    ],
)
def test_every_question_is_unanswered(
    cls: Callable[..., StoreLockBackend],
    answer: bytes,
    answering: Answering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = answering(answer)
    give_credentials(monkeypatch)
    monkeypatch.setenv("FIRESTORE_EMULATOR_HOST", f"127.0.0.1:{port}")
    room = cls("default", namespace="any", timeout=0.2, **options(cls, port))
    key, me = room.store_key("nightly-report"), owner()
    questions: list[Callable[[], object]] = [
        lambda: room.acquire(key, me),
        lambda: room.extend(key, me.lock_id),
        lambda: room.vacate(key, me.lock_id),
        lambda: list(room.live()),
        room.provision,
    ]
    try:
        for question in questions:
            with pytest.raises(LockUnavailable):
                question()
    finally:
        room.close()
