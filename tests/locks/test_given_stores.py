"""A real store whose address is in the environment gets the contract, too.

Here the addresses are those of emulators, so that it is known to be asked before somebody has one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT
from tests.servers.firestore import PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests import servers


def dynamodb(server: Any) -> dict[str, str]:
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "outbox")
    place = {"AWS_DEFAULT_REGION": "eu-central-1", "AWS_ENDPOINT_URL_DYNAMODB": server.url}
    return {"DYNAMODB_TABLE": "given", **keys, **place}


def firestore(server: Any) -> dict[str, str]:
    return {"FIRESTORE_PROJECT": PROJECT, "FIRESTORE_EMULATOR_HOST": server.host}


GIVEN: dict[str, tuple[str, Callable[[Any], dict[str, str]]]] = {
    "azurite": (
        "test_azure.py::TestContractOnTheGivenAccount",
        lambda server: {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string},
    ),
    "dynalite": ("test_dynamodb.py::TestContractOnTheGivenTable", dynamodb),
    "firestore": ("test_firestore.py::TestContractOnTheGivenProject", firestore),
    "secantusdb": (
        "test_mongodb.py::TestContractOnTheGivenServer",
        lambda server: {"MONGODB_URL": server.url},
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.server("sqlite", name)) for name in GIVEN]
)
def test_the_contract_is_asked_of_a_store_that_is_given(
    running_server: Callable[[str], servers.Server], name: str
) -> None:
    contract, variables = GIVEN[name]
    databases = ("DATABASE_URL", "SECOND_DATABASE_URL")  # a run of its own makes its own
    kept = {name: value for name, value in os.environ.items() if name not in databases}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"tests/locks/{contract}", "-k", "test_exclusive"],
        cwd=ROOT,
        env={**kept, **variables(running_server(name))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert re.search(r"^1 passed", done.stdout, re.MULTILINE), done.stdout + done.stderr
