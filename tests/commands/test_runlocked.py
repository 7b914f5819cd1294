"""``manage.py runlocked``: the command is a process, and so are these tests' holders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_outbox_lock import locks
from django_outbox_lock.backends.locks.lease import LeaseTableLock
from django_outbox_lock.backends.locks.memory import MemoryLock
from django_outbox_lock.management.commands import _child
from django_outbox_lock.models import Lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import ManageProcess, RunManage, StartManage, WaitUntil

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])

LEASE = {"BACKEND": "django_outbox_lock.backends.locks.lease.LeaseTableLock"}
# What the database has no part in runs once.
once = pytest.mark.server("sqlite")
ENV = {
    "OUTBOX_LOCK": json.dumps({"default": {"LOCK": {**LEASE, "OPTIONS": {"lease": 6}}}}),
    "PYTHONUNBUFFERED": "1",
}
WAIT = "import time; print('begun'); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"
TELLS = (
    "import signal, sys; signal.signal({number}, lambda *_: (print('told'), sys.exit(7))); " + WAIT
)


@pytest.fixture
def somebody() -> Iterator[LeaseTableLock]:
    """Another holder."""
    backend = LeaseTableLock("default", lease=30)
    yield backend
    backend.close()


def start(start_manage: StartManage, code: str, *options: str) -> ManageProcess:
    return start_manage("runlocked", "nightly", *options, "--", "shell", "-c", code, env=ENV)


def begun(process: ManageProcess, wait_until: WaitUntil) -> None:
    wait_until(lambda: "begun" in process.output, timeout=30, what="begun")


@pytest.mark.parametrize("env", [ENV, {}], ids=["lease table", "the database's own"])
def test_it_runs_the_command_and_releases(run_manage: RunManage, env: dict[str, str]) -> None:
    code = (
        "from django_outbox_lock.models import Lock; "
        "print('owned', Lock.objects.exclude(owner=None).count())"
    )
    done = run_manage("runlocked", "nightly", "--", "shell", "-c", code, env=env)
    assert "owned 1" in done.stdout
    assert Lock.objects.get().owner is None


@once
def test_the_exit_code_is_the_commands(run_manage: RunManage) -> None:
    run = ("runlocked", "nightly", "--", "shell", "-c", "raise SystemExit(3)")
    assert run_manage(*run, env=ENV, check=False).returncode == 3


@once
def test_the_error_about_forgotten_dashes_names_them(run_manage: RunManage) -> None:
    done = run_manage("runlocked", "nightly", "check", "--deploy", check=False)
    assert done.returncode == 2
    usage, error = done.stderr.strip().splitlines()
    assert usage.startswith("usage: manage.py runlocked NAME [options] -- COMMAND ")
    assert error.endswith("--deploy (the command and its options come after --)")


@once
def test_in_python_too_forgotten_dashes_are_named() -> None:
    with pytest.raises(CommandError, match="come after --"):
        call_command("runlocked", "nightly", "check", "--deploy")


@once
def test_busy_is_one_line_and_no_failure(run_manage: RunManage, somebody: LeaseTableLock) -> None:
    assert somebody.obtain("nightly")
    run = ("runlocked", "nightly", "--", "shell", "-c", "print('ran')")
    done = run_manage(*run, env=ENV)
    assert done.stdout.startswith("Not run: nightly is held by")
    assert done.stdout.count("\n") == 1
    busy = run_manage("runlocked", "--busy-exit-code", "9", *run[1:], env=ENV, check=False)
    assert busy.returncode == 9
    waited = run_manage("runlocked", "--timeout", "0.3", *run[1:], env=ENV)
    assert "It did not come free within 0.3 s." in waited.stdout


def test_the_loss_ends_the_command(
    start_manage: StartManage, wait_until: WaitUntil, somebody: LeaseTableLock
) -> None:
    """K27: SIGTERM, and the exit code says that it was not the command's own end."""
    process = start(start_manage, TELLS.format(number="signal.SIGTERM"))
    begun(process, wait_until)
    assert somebody.force_release("nightly", 1, by="test")
    assert process.wait(20) == 75
    assert "told" in process.output
    assert "nightly: the lock with token 1 is lost" in process.output
    assert somebody.obtain("nightly")


@once
def test_the_loss_kills_a_command_that_does_not_end(
    start_manage: StartManage, wait_until: WaitUntil, somebody: LeaseTableLock
) -> None:
    process = start(start_manage, STUBBORN, "--grace", "0.2")
    begun(process, wait_until)
    assert somebody.force_release("nightly", 1, by="test")
    assert process.wait(20) == 75


@pytest.fixture
def heard(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """The signal, although who runs the tests may ignore it (``nohup``): that is inherited."""
    number: signal.Signals = request.param
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
    yield number
    signal.signal(number, before)


@once
@pytest.mark.parametrize("heard", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], indirect=True)
def test_signals_are_passed_on(
    start_manage: StartManage, wait_until: WaitUntil, heard: signal.Signals
) -> None:
    """The command decides what it makes of them, and the lock is released after it."""
    process = start(start_manage, TELLS.format(number=f"signal.{heard.name}"))
    begun(process, wait_until)
    process.send_signal(heard)
    assert process.wait(20) == 7
    assert process.output.count("told") == 1
    assert Lock.objects.get().owner is None


@once
def test_a_command_that_is_killed(start_manage: StartManage, wait_until: WaitUntil) -> None:
    """As in a shell: 128 and the number of the signal."""
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert start(start_manage, kill).wait(30) == 128 + signal.SIGKILL


@once
def test_an_early_signal_is_passed_on_later() -> None:
    """One that comes while the command is being started is not lost."""
    with pytest.MonkeyPatch.context() as patch:
        backend = LeaseTableLock("default", lease=30)
        handle = backend.obtain("nightly")
        assert handle is not None
        child = _child.Child([sys.executable, "-c", "import time; time.sleep(60)"], handle, grace=1)
        patch.setattr(child, "_early", [signal.SIGTERM])
        assert child.run() == 128 + signal.SIGTERM
        backend.close()


@once
@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("manage.py", ["manage.py"]),
        ("/venv/bin/django-admin", ["/venv/bin/django-admin"]),
        ("/venv/lib/site-packages/django/__main__.py", ["-m", "django"]),
    ],
)
def test_the_program_is_started_as_this_one_was(
    monkeypatch: pytest.MonkeyPatch, started: str, expected: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [started, "runlocked"])
    assert _child.program() == [sys.executable, *expected]


@once
def test_a_command_that_takes_too_long_is_ended(start_manage: StartManage) -> None:
    """The lock is given up after the maximum hold, and the command ends with it."""
    process = start(start_manage, WAIT, "--maximum-hold", "3")
    assert process.wait(30) == 75
    assert "held for the 3 s" in process.output


@once
def test_a_command_that_ends_too_soon(run_manage: RunManage) -> None:
    """The lock is held for the minimum."""
    begin = time.monotonic()
    run_manage("runlocked", "nightly", "--minimum-hold", "3", "--", "shell", "-c", "1", env=ENV)
    assert time.monotonic() - begin >= 3
    assert Lock.objects.get().owner is None


@once
def test_limits_that_contradict_each_other(run_manage: RunManage) -> None:
    limits = ("--minimum-hold", "3", "--maximum-hold", "2")
    done = run_manage("runlocked", "nightly", *limits, "--", "check", env=ENV, check=False)
    assert done.returncode == 1
    assert "maximum_hold (2 s) is below minimum_hold (3 s)." in done.stderr


@once
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nightly", "--maximum-hold", "0"), "--maximum-hold: it must be a number above 0"),
        (("nightly", "--minimum-hold", "-1"), "--minimum-hold: it must be 0 seconds or more"),
        (("nightly", "--timeout", "-1"), "--timeout: it must be 0 seconds or more, not -1.0."),
        (("nightly", "--timeout", "nan"), "--timeout: it must be 0 seconds or more, not nan."),
        (("nightly", "--timeout", "soon"), "--timeout: invalid seconds value: 'soon'"),
        (("nightly", "--grace", "nan"), "--grace: it must be 0 seconds or more, not nan."),
        (("nightly", "--busy-exit-code", "256"), "--busy-exit-code: it must be at most 255"),
        (("",), "NAME: resource must have 1 to 255 bytes, not 0."),
        (("x" * 256,), "NAME: resource must have 1 to 255 bytes, not 256."),
    ],
)
def test_a_wrong_argument_is_named(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(CommandError) as told:
        call_command("runlocked", *arguments, "--", "check")
    assert words in str(told.value)


@once
def test_a_wrong_argument_ends_with_status_2(run_manage: RunManage) -> None:
    done = run_manage("runlocked", "nightly", "--timeout", "-1", "--", "check", check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@once
def test_the_in_memory_lock_is_refused() -> None:
    dotted = f"{MemoryLock.__module__}.{MemoryLock.__qualname__}"
    with (
        override_settings(OUTBOX_LOCK={"default": {"LOCK": {"BACKEND": dotted}}}),
        pytest.raises(CommandError, match="no other process"),
    ):
        call_command("runlocked", "nightly", "check")
    locks.close()


@once
def test_without_a_command(run_manage: RunManage) -> None:
    done = run_manage("runlocked", "nightly", check=False)
    assert done.returncode != 0
    assert "COMMAND" in done.stderr


@once
def test_the_loss_ends_what_the_command_has_started(
    tmp_path: Path, wait_until: WaitUntil, somebody: LeaseTableLock
) -> None:
    """The command ends at once, its own child does not: it would work on beside the next holder."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    works = f"import time; kept = open({str(pipe)!r}, 'w'); kept.write('.'); kept.flush(); {WAIT}"
    runs = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {works!r}])"
    handle = somebody.obtain("nightly")
    assert handle is not None
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def lose() -> None:
        wait_until(lambda: _read(reader) == b".", timeout=30, what="the child's work")
        handle.lose("test")

    losing = threading.Thread(target=lose)
    losing.start()
    child = _child.Child([sys.executable, "-c", runs], handle, grace=0.2)
    assert child.run() == 128 + signal.SIGTERM
    losing.join()
    wait_until(lambda: _read(reader) == b"", what="the end of the child's work")
    os.close(reader)


def _read(reader: int) -> bytes | None:
    """What there is to read: nothing at all when nobody can write."""
    try:
        return os.read(reader, 1)
    except BlockingIOError:
        return None


# A program with a lock that is never lost, and a command that it runs.
RUNS = (
    "import sys, threading; from types import SimpleNamespace; "
    "from django_outbox_lock.management.commands._child import Child; "
    "held = SimpleNamespace(lost=False, wait_lost=lambda: threading.Event().wait()); "
    "sys.exit(Child([sys.executable, '-c', sys.argv[1]], held, grace=1).run())"
)


@once
def test_a_command_that_asks_is_not_stopped_for_ever() -> None:
    """At a terminal: only the group in the foreground may read from it, and that is ours."""
    on_a_terminal = (
        "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    )
    asks = "import sys; sys.exit(3 if sys.stdin.readline() else 4)"
    done = subprocess.run(
        [sys.executable, "-c", on_a_terminal, sys.executable, "-c", RUNS, asks],
        input=b"yes\n",
        timeout=30,
        check=False,
    )
    assert done.returncode == 4


@once
def test_a_command_reads_what_is_piped_to_it() -> None:
    asks = "import sys; sys.exit(3 if sys.stdin.readline() == 'yes\\n' else 4)"
    run = [sys.executable, "-c", RUNS, asks]
    assert subprocess.run(run, input=b"yes\n", timeout=30, check=False).returncode == 3


@once
def test_ctrl_z_stops_the_command_too(tmp_path: Path, wait_until: WaitUntil) -> None:
    """It would go on without a lock: nobody renews one while this process is stopped."""
    log = tmp_path / "log"
    works = "import time\nfor _ in range(3000): print('.', flush=True); time.sleep(0.01)"
    run = [sys.executable, "-c", RUNS, works]
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb"))
        process = stack.enter_context(subprocess.Popen(run, stdout=output, process_group=0))
        stack.callback(process.kill)
        wait_until(lambda: log.stat().st_size > 0, timeout=30, what="begun")
        process.send_signal(signal.SIGTSTP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        written = log.stat().st_size
        time.sleep(0.3)  # the period in which nothing may happen
        assert log.stat().st_size == written
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: log.stat().st_size > written, what="going on")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
