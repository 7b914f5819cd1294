"""Signals to a sweeper whose main thread cannot hear them, and to the children of its handlers."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock.models import OutboxMessage
from tests.engines.test_processes import Sweepers, all_sent, write
from tests.sessions import SERVERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import ManageProcess, StartManage, WaitUntil

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


@pytest.fixture
def sweepers(start_manage: StartManage, tmp_path: Path) -> Sweepers:
    return Sweepers(start_manage, tmp_path)


@pytest.mark.parametrize("name", SERVERS)
def test_a_second_signal_is_heard_while_the_database_gives_no_answer(
    name: str,
    sweepers: Sweepers,
    private_server: Callable[..., Any],
    run_manage: Any,
    wait_until: WaitUntil,
) -> None:
    """Some drivers wait in C, where no handler of a signal can run."""
    server = private_server(name)
    sweepers.env = {"DATABASE_URL": server.url}
    run_manage("migrate", "-v0", env=sweepers.env)
    process = sweepers.start()
    wait_until(lambda: "runs every" in process.output, timeout=30)
    server.pause()
    for _ in range(2):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)  # at first until the next look is under way
        process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 1


def start_forking(start_manage: StartManage, handler: str) -> ManageProcess:
    publisher = {
        "BACKEND": "django_outbox_lock.backends.publishers.callables.CallablePublisher",
        "OPTIONS": {"handlers": {"*": f"tests.engines.forking.{handler}"}},
    }
    outbox = {"PUBLISHERS": {"default": publisher}, "SWEEPER": {"interval": 0.2}}
    env = {"OUTBOX_LOCK": json.dumps({"default": outbox}), "LOG_LEVEL": "DEBUG"}
    return start_manage("runsweeper", env=env)


@pytest.mark.parametrize("handler", ["ends_its_children", "forks_by_hand"])
def test_a_child_of_a_handler_ends_and_the_sweeper_goes_on(
    handler: str, start_manage: StartManage, wait_until: WaitUntil
) -> None:
    """``multiprocessing`` ends its workers in this way; what they inherit must not ignore it.

    And one that leaves with ``sys.exit`` ends, too, instead of waiting for the next message.
    """
    write(1)
    process = start_forking(start_manage, handler)
    wait_until(
        lambda: OutboxMessage.objects.get().state != OutboxMessage.State.OUTSTANDING, timeout=30
    )
    assert all_sent(), OutboxMessage.objects.get().last_error
    write(2)
    wait_until(all_sent, timeout=30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_a_child_of_a_handler_does_not_end_the_parents_sessions(
    start_manage: StartManage, wait_until: WaitUntil
) -> None:
    """A connection that is thrown away in a child says goodbye to the server (mysqlclient)."""
    write(*range(3))
    process = start_forking(start_manage, "has_garbage_collected")
    wait_until(all_sent, timeout=30)
    write(*range(3))
    wait_until(all_sent, timeout=30)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert "sent 6" in process.output
    assert "made again" not in process.output
    assert "lost" not in process.output
