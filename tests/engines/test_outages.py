"""Outages that leave the sessions alive: what was refused in them must be tried in new ones."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import StartManage, WaitUntil

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

WRITE = """
from django.db import transaction
from django_outbox_lock import publish
with transaction.atomic():
    for n in range(10): publish('t', n)
"""
READ_ONLY = "ALTER DATABASE outbox SET default_transaction_read_only = on"
END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
)
WRITABLE = "ALTER DATABASE outbox RESET default_transaction_read_only"


@pytest.mark.server("postgresql")
def test_a_database_that_was_read_only_for_a_while_is_written_again(
    start_manage: StartManage,
    tmp_path: Path,
    private_server: Callable[..., Any],
    run_manage: Any,
    wait_until: WaitUntil,
) -> None:
    """As hosted servers are while their disk is full; what begins then stays read-only."""
    server = private_server("postgresql")
    path = tmp_path / "sent.txt"
    options = {"path": str(path)}
    publisher = {"BACKEND": "tests.engines.recording.Recording", "OPTIONS": options}
    outbox = {"PUBLISHERS": {"default": publisher}, "SWEEPER": {"interval": 0.2}}
    env = {"DATABASE_URL": server.url, "OUTBOX_LOCK": json.dumps({"default": outbox})}
    run_manage("migrate", "-v0", env=env)
    process = start_manage("runsweeper", env=env)
    wait_until(lambda: "runs every" in process.output, timeout=30)
    writable = {"DATABASE_URL": f"{server.url}?options=-c%20default_transaction_read_only%3Doff"}
    with psycopg.connect(server.url, autocommit=True) as operator:
        operator.execute(READ_ONLY)
        operator.execute(END_SESSIONS)
        run_manage("shell", "-v0", "-c", WRITE, env=writable)
        wait_until(lambda: "read-only" in process.output, timeout=30)
        operator.execute(WRITABLE)
    wait_until(lambda: path.exists() and len(path.read_text().splitlines()) == 10, timeout=20)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
