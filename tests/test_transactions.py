"""Whether the application is inside a transaction of its own."""

from __future__ import annotations

import pytest
from django.db import connections, transaction

from django_outbox_lock.transactions import aliases_in_transaction, in_transaction

BOTH = pytest.mark.django_db(databases=["default", "other"])


@BOTH
def test_the_blocks_of_a_testcase_do_not_count() -> None:
    assert connections["default"].in_atomic_block
    assert not in_transaction("default")
    assert aliases_in_transaction() == []


@BOTH
def test_a_block_counts_however_deep() -> None:
    with transaction.atomic(using="other"), transaction.atomic(using="other", savepoint=False):
        assert in_transaction("other")
        assert aliases_in_transaction() == ["other"]
    assert not in_transaction("other")


@pytest.mark.django_db(transaction=True)
def test_a_connection_without_autocommit_is_always_inside_one() -> None:
    connection = connections["default"]
    assert not in_transaction("default")
    connection.set_autocommit(False)
    try:
        assert in_transaction("default")
        assert "default" in aliases_in_transaction()
    finally:
        connection.set_autocommit(True)
    assert not in_transaction("default")


@pytest.mark.parametrize("autocommit", [True, False])
def test_asking_opens_no_connection(monkeypatch: pytest.MonkeyPatch, *, autocommit: bool) -> None:
    fresh = connections["default"].copy()
    fresh.settings_dict["AUTOCOMMIT"] = autocommit
    monkeypatch.setattr("django_outbox_lock.transactions.connections", {"default": fresh})
    assert in_transaction("default") is not autocommit
    assert fresh.connection is None
