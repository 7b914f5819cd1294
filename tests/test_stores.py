"""What the stores of the suite are worth: one winner of a race, and what a crash leaves."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tests import servers
from tests.servers import node
from tests.servers.dynamodb_local import DynamoDBLocal
from tests.servers.firestore import Firestore
from tests.stores import STORES, DynamoDBStore, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    GetServer = Callable[..., servers.Server]

# What a SIGKILL leaves of what was acknowledged.
DURABLE = ("redis", "dynalite", "secantusdb")
IN_MEMORY = ("moto", "firestore")
RACERS = 20
ROUNDS = 3


def each(*names: str) -> pytest.MarkDecorator:
    marked = [pytest.param(name, marks=pytest.mark.server(name)) for name in names]
    return pytest.mark.parametrize("name", marked)


@pytest.fixture
def store(running_server: GetServer, name: str) -> Iterator[Store[Any]]:
    """A store on the server of the whole run, which must not be killed."""
    with opened(running_server(name), name) as store:
        yield store


@pytest.fixture
def private_store(private_server: GetServer, name: str) -> Iterator[Store[Any]]:
    """A store on a server of this test alone."""
    with opened(private_server(name), name) as store:
        yield store


@contextmanager
def opened(server: servers.Server, name: str) -> Iterator[Store[Any]]:
    with closing(STORES[name](server)) as store:
        store.create()
        yield store


@each(*STORES)
def test_a_race_has_one_winner(store: Store[Any], name: str) -> None:
    """Twenty clients want one record that is not there, in the same moment."""
    clients = [type(store)(store.server) for _ in range(RACERS)]
    barrier = threading.Barrier(RACERS, timeout=30)
    with ThreadPoolExecutor(RACERS) as pool:
        for record in (str(uuid4()) for _ in range(ROUNDS)):

            def race(client: Store[Any], record: str = record) -> bool:
                barrier.wait()
                return client.take(record, str(uuid4()))

            assert sum(pool.map(race, clients)) == 1
            assert store.owner(record)
    for client in clients:
        client.close()


@each(*DURABLE)
def test_what_was_acknowledged_survives_a_crash(private_store: Store[Any], name: str) -> None:
    assert private_store.take("record", "somebody")
    private_store.server.kill()
    assert not private_store.server.running
    private_store.server.start()
    with closing(type(private_store)(private_store.server)) as later:
        assert later.owner("record") == "somebody"
        assert not later.take("record", "another")


@each(*IN_MEMORY)
def test_a_crash_loses_everything(private_store: Store[Any], name: str) -> None:
    """Where this fails, the emulator has become better: the docs may promise more."""
    url = private_store.server.url
    assert private_store.take("record", str(uuid4()))
    private_store.server.kill()
    private_store.server.start()
    assert private_store.server.url == url
    with closing(type(private_store)(private_store.server)) as later:
        later.create()
        assert later.owner("record") is None
        assert later.take("record", str(uuid4()))


@each(*STORES)
def test_a_client_goes_on_after_a_pause(store: Store[Any], name: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        store.server.pause()
        try:
            taken = pool.submit(store.take, str(uuid4()), str(uuid4()))
            with pytest.raises(TimeoutError):
                taken.result(timeout=0.2)
        finally:
            store.server.resume()
        assert taken.result(timeout=30)


@each("azurite")
def test_azurite_keeps_blobs_but_no_leases_over_an_orderly_restart(
    private_store: Store[Any], name: str
) -> None:
    assert private_store.take("record", str(uuid4()))
    assert private_store.owner("record") == "leased"
    private_store.server.restart()
    assert private_store.owner("record") == "expired"


@each("moto")
def test_moto_says_who_holds_what_was_refused(store: Store[Any], name: str) -> None:
    """It has what dynalite lacks, and what a backend wants to read in one round trip."""
    assert isinstance(store, DynamoDBStore)
    record = str(uuid4())
    assert store.take(record, "first")
    with pytest.raises(store.client.exceptions.ConditionalCheckFailedException) as caught:
        store.put(
            record,
            "second",
            ConditionExpression="attribute_not_exists(id)",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    assert caught.value.response["Item"]["owner"] == {"S": "first"}


# Without any server


def test_the_lock_file_names_no_registry() -> None:
    """So that npm asks whichever registry the machine is set up for."""
    text = Path(servers.__file__).with_name("package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in text
    assert '"integrity"' in text


def test_an_old_node_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "node", "echo v18.20.4")
    program(tmp_path / "npm", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(node, "_wheel", lambda: tmp_path)
    node._packages.cache_clear()
    try:
        reason = servers.get("dynalite").missing()
    finally:
        node._packages.cache_clear()
    assert reason == "Node.js 20 or newer is needed; `node` is v18.20.4."


def test_a_failed_npm_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "node", "echo v20.0.0")
    program(tmp_path / "npm", "echo no such network >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(node, "_wheel", lambda: tmp_path)
    monkeypatch.setattr("tests.servers.cache._root", lambda: tmp_path)
    node._packages.cache_clear()
    try:
        reason = servers.get("azurite").missing()
    finally:
        node._packages.cache_clear()
    assert reason == "`npm ci` could not fetch the packages of tests/servers: no such network"


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_a_missing_jar_names_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIRESTORE_EMULATOR_JAR", str(tmp_path / "none.jar"))
    monkeypatch.delenv("DYNAMODB_LOCAL_JAR", raising=False)
    assert "set FIRESTORE_EMULATOR_JAR" in str(Firestore().missing())
    assert "set DYNAMODB_LOCAL_JAR" in str(DynamoDBLocal().missing())


def test_a_given_jar_is_run_from_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DynamoDB Local is not run by anyone who has no licence for it: here its command line."""
    jar = tmp_path / "DynamoDBLocal.jar"
    jar.touch()
    monkeypatch.setenv("DYNAMODB_LOCAL_JAR", str(jar))
    with closing(DynamoDBLocal()) as server:
        command = server.command()
    assert f"-Djava.library.path={tmp_path}/DynamoDBLocal_lib" in command
    assert command[command.index("-jar") + 1] == str(jar)


@pytest.mark.parametrize("name", ["moto", "secantusdb"])
def test_a_missing_python_server_names_its_group(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.get(name)
    monkeypatch.setattr(type(server), "module", "no_such_module")
    assert "pip install --group test" in str(server.missing())
