"""How ``runlocked`` starts its command, and what the command inherits."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from django_outbox_lock.management.commands import _child, _signals
from django_outbox_lock.testing.lock_items.base import in_threads
from tests.commands.test_runlocked import RUNS
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]

SETTINGS = """
SECRET_KEY = "any"
INSTALLED_APPS = ["django_outbox_lock"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
OUTBOX_LOCK = {"default": {}}
"""
MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
WORKER = """
import os, sys
print("worker", *sys.argv[1:], flush=True)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
import django
django.setup()
from django.core.management import call_command
call_command("runlocked", "nightly", "--", "shell", "-c", "print('ran')")
"""
CAPTURES = """
import io
from django.core.management import CommandError
code = "import sys; print('said'); print('warned', file=sys.stderr); sys.exit(3)"
outputs = {"stdout": io.StringIO(), "stderr": io.StringIO()}
try:
    call_command("runlocked", "nightly", "--", "shell", "-c", code, **outputs)
except CommandError as error:
    print("status", error.returncode, error)
print([output.getvalue().split()[-1] for output in outputs.values()])
"""


@pytest.fixture
def project(tmp_path: Path) -> Run:
    """A function that runs Python in a project whose package has the settings and a manage.py."""
    (tmp_path / "config").mkdir()
    for name, text in (("__init__", ""), ("settings", SETTINGS), ("manage", MANAGE)):
        (tmp_path / "config" / f"{name}.py").write_text(text)
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "captures.py").write_text(WORKER.rpartition("call_command(")[0] + CAPTURES)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "DJANGO_SETTINGS_MODULE": "config.settings",
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert run("-m", "config.manage", "migrate", "-v0").returncode == 0
    return run


@pytest.mark.server("sqlite")
def test_a_module_and_options_of_python(project: Run) -> None:
    """The path of the module's file alone would not find the package that it is in."""
    flags = "import sys; print('flags', sys.flags.dev_mode, sys.flags.optimize)"
    start = ("-u", "-X", "dev", "-Om", "config.manage", "runlocked", "nightly", "--")
    done = project(*start, "shell", "-c", flags)
    assert done.returncode == 0, done.stderr
    assert "flags True 1" in done.stdout


@pytest.mark.server("sqlite")
def test_a_program_that_calls_it_is_not_started_anew(project: Run) -> None:
    """It would have run itself, once in the other, and never the command."""
    done = project("worker.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "worker"
    assert done.stdout.count("worker") == done.stdout.count("ran") == 1


@pytest.mark.server("sqlite")
def test_a_program_that_calls_it_hears_what_was_said(project: Run) -> None:
    """Case 079: the streams that were passed are used; the caller is not ended by an exit."""
    done = project("captures.py")
    assert done.returncode == 0, done.stderr
    _, status, said = done.stdout.splitlines()
    assert status == "status 3 runlocked ended with status 3."
    assert said == "['said', 'warned']"


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (["python", "manage.py", "-X"], []),
        (["python", "-u", "manage.py"], ["-u"]),
        (["python", "-um", "django"], ["-u"]),
        (["python", "-m", "django", "-u"], []),
        (["python", "-Wignore", "-W", "error", "-Xdev", "-c", "code"], "-Wignore -W error -Xdev"),
        (
            ["python", "--check-hash-based-pycs", "never", "-m", "x"],
            "--check-hash-based-pycs never",
        ),
        (["python", "-X", "utf8"], ["-X", "utf8"]),
        (["python", "-uW", "error", "manage.py"], "-uW error"),
        (["python", "-u", "-"], ["-u"]),
        (["python", "--", "manage.py"], []),
    ],
)
def test_options_of_python(
    monkeypatch: pytest.MonkeyPatch, given: list[str], options: list[str] | str
) -> None:
    monkeypatch.setattr(sys, "orig_argv", given)
    monkeypatch.setattr(sys, "argv", ["manage.py", "runlocked"])
    expected = options.split() if isinstance(options, str) else options
    assert _child.program() == [sys.executable, *expected, "manage.py"]


@pytest.mark.parametrize(
    ("name", "module"), [("shop.cli.__main__", "shop.cli"), ("shop.manage", "shop.manage")]
)
def test_the_whole_name_of_a_module(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    path = f"/srv/{name.replace('.', '/')}.py"
    spec = SimpleNamespace(name=name, origin=path)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", [path, "runlocked"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", module, "runlocked"])
    assert _child.program() == [sys.executable, "-m", module]


class Refusing(io.StringIO):
    """A stream of the caller's, such as one that is closed meanwhile."""

    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file")


def test_a_caller_who_takes_no_more_does_not_end_the_command() -> None:
    held: Any = SimpleNamespace(lost=False, wait_lost=lambda: False)
    code = "import sys; sys.stdout.writelines(['a line\\n'] * 100_000); sys.exit(3)"
    outputs = (Refusing(), io.StringIO())
    assert _child.Child([sys.executable, "-c", code], held, grace=1, outputs=outputs).run() == 3
    assert outputs[1].getvalue() == ""


def test_the_command_does_not_outlive_what_a_signals_handler_raises() -> None:
    """A time limit of the caller's: the lock is given back, and the command would go on."""
    prelude = "import signal; signal.signal(signal.SIGALRM, lambda *_: 1 / 0); "
    code = "import os, signal, time; os.kill(os.getppid(), signal.SIGALRM); time.sleep(60)"
    start = [sys.executable, "-c", prelude + RUNS, code]
    done = subprocess.run(start, capture_output=True, timeout=40, check=False)  # to the end of both
    assert b"ZeroDivisionError" in done.stderr


def test_a_child_whose_fork_was_not_announced() -> None:
    """A server that forks in C tells the child only, as uWSGI does."""
    in_threads([_signals._leave_to_the_parent])


def run_child(code: str, before: Callable[[], object], prelude: str = "") -> int:
    start = [sys.executable, "-c", prelude + RUNS, code]
    return subprocess.run(start, preexec_fn=before, timeout=30, check=False).returncode


def ignoring(number: signal.Signals) -> Callable[[], object]:
    return partial(signal.signal, number, signal.SIG_IGN)


def test_the_end_of_a_command_is_known_where_such_ends_are_ignored() -> None:
    """Some supervisors and shells hand that down; the system then forgets the exit code."""
    assert run_child("raise SystemExit(3)", ignoring(signal.SIGCHLD)) == 3


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_what_is_ignored_stays_so(number: signal.Signals) -> None:
    """As under nohup, and in the background of a script."""
    tell = f"import signal, sys; sys.exit(signal.getsignal({int(number)}) is signal.SIG_IGN)"
    assert run_child(tell, ignoring(number)) == 1
    assert run_child(tell, lambda: signal.signal(number, signal.SIG_DFL)) == 0


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_stream_that_is_closed(stream: str) -> None:
    prelude = f"import sys; sys.{stream}.close(); "
    assert run_child("raise SystemExit(3)", lambda: None, prelude) == 3
