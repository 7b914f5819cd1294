"""scripts/dev.py: what a newcomer meets first, on machines that lack something."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts import _commands, _environments, _machine, _migrations, _suite, dev

if TYPE_CHECKING:
    from tests.conftest import WaitUntil

ROOT = Path(__file__).resolve().parent.parent
DEV = ROOT / "scripts" / "dev.py"


def missing_part(*packages: str) -> _machine.Part:
    return _machine.Part("a thing", packages, lambda: False)


def test_an_old_interpreter_can_read_it() -> None:
    ast.parse(DEV.read_text(encoding="utf-8"), feature_version=(3, 7))


def test_an_old_interpreter_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dev.main(["test"], version=(3, 10)) == 1
    said = capsys.readouterr().err
    assert "Python 3.11 or newer is needed; this is 3.10" in said
    assert "apt-get install --yes python3 python3-venv" in said


def test_an_old_interpreter_hands_over_to_a_newer_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A shim that does not start is passed over; the arguments arrive."""
    write_program(tmp_path / "python3.12", "exit 1")
    write_program(tmp_path / "python3.11", f'[ "$1" = -c ] || echo "$@" >{tmp_path}/arguments')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dev.main(["demo", "--fast"], version=(3, 8)) == 0
    assert (tmp_path / "arguments").read_text().split() == [str(DEV), "demo", "--fast"]


def write_program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_an_unknown_command_is_named_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert dev.main(["tests"]) == 2
    said = capsys.readouterr().err
    assert "Unknown command 'tests'" in said
    assert all(command in said for command in dev.COMMANDS)


def test_without_a_command_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main([]) == 2
    assert "usage: python3 scripts/dev.py COMMAND" in capsys.readouterr().out


def test_every_command_is_there_and_has_its_alias() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    targets = next(line for line in makefile if line.endswith(":"))
    assert set(dev.COMMANDS) == set(_commands.COMMANDS) == set(targets.rstrip(":").split())


def test_without_root_the_exact_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as stopped:
        _machine.provide([missing_part("gcc", "libc6-dev"), missing_part("postgresql")])
    line = "apt-get install --yes --no-install-recommends gcc libc6-dev postgresql"
    assert line in str(stopped.value)


def test_root_installs_what_is_missing_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = tmp_path / "calls"
    write_program(tmp_path / "apt-get", f'echo "$DEBIAN_FRONTEND" "$@" >>{calls}')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    present = _machine.Part("what is there", ("already",), lambda: True)
    _machine.provide([present, missing_part("postgresql")])
    update, install = calls.read_text().splitlines()
    assert update == "noninteractive update -qq"
    assert install == "noninteractive install --yes --no-install-recommends -qq postgresql"
    assert "Installing a thing with apt: postgresql" in capsys.readouterr().out


def test_the_demo_needs_no_driver_and_no_compiler() -> None:
    demo = _environments.demo()
    assert demo.parts == ()
    assert {name.partition(">")[0] for name in demo.requirements} == {"Django", "django-environ"}


def test_an_environment_is_made_once_for_its_requirements(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[str, ...]] = []

    def install(environment: _environments.Environment, folder: Path, _: str) -> None:
        folder.mkdir(exist_ok=True)
        made.append(environment.requirements)

    monkeypatch.setattr(_environments, "VENVS", tmp_path)
    monkeypatch.setattr(_environments.Environment, "_install", install)
    for requirements in (("a",), ("a",), ("a", "b")):
        _environments.Environment("one", requirements).python()
    assert made == [("a",), ("a", "b")]


def test_two_commands_at_once_make_an_environment_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each would clear away what the other one is installing."""
    begun, finish = threading.Semaphore(0), threading.Event()

    def install(_: _environments.Environment, folder: Path, _python: str) -> None:
        begun.release()
        assert finish.wait(30)
        folder.mkdir()

    monkeypatch.setattr(_environments, "VENVS", tmp_path)
    monkeypatch.setattr(_environments.Environment, "_install", install)
    environment = _environments.Environment("one", ("a",))
    commands = [threading.Thread(target=environment.python) for _ in range(2)]
    for command in commands:
        command.start()
    assert begun.acquire(timeout=30)
    assert not begun.acquire(timeout=0.2)
    finish.set()
    for command in commands:
        command.join(30)
    assert not begun.acquire(blocking=False)


def test_a_failing_step_is_a_status_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(arguments: list[str]) -> int:
        raise subprocess.CalledProcessError(3, ["pip", *arguments])

    monkeypatch.setitem(_commands.COMMANDS, "docs", fails)
    assert dev.main(["docs"]) == 1
    assert "Failed with status 3: ['pip']" in capsys.readouterr().err


def test_a_django_without_interpreter_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_migrations, "interpreters", lambda _: iter(()))
    assert set(_migrations.check().missing) == {"Django 5.2", "Django 6.0", "Django 6.1"}


def test_the_suite_is_told_to_end_by_sigterm(tmp_path: Path, wait_until: WaitUntil) -> None:
    """Its runs are interrupted, so that they stop their servers; the queued one never starts."""
    body = (
        'trap "echo ended >>$0.log; exit 2" INT; echo begun >>$0.log; while :; do sleep 0.1; done'
    )
    write_program(tmp_path / "python", body)
    log = tmp_path / "python.log"
    script = (
        "from scripts import _environments, _suite;"
        f"_environments.Environment.python = lambda _: {str(tmp_path / 'python')!r};"
        "_suite.provide_servers = lambda _: None;"
        "import sys; from scripts import dev; sys.exit(dev.main(['test', '--jobs', '2', '-x']))"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT) as process:
        wait_until(lambda: log.exists() and log.read_text().count("begun") == 2)
        process.terminate()
        try:
            assert process.wait(30) == 130
        finally:
            process.kill()
    assert sorted(log.read_text().split()) == ["begun", "begun", "ended", "ended"]


def test_the_closing_list_names_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """It stands at the end of some thousand lines, of which a log keeps the last."""
    report = {"exercised": [], "not_exercised": {}, "passed": 3, "failed": ["test_it.py::test_it"]}
    _suite.close([_suite.Result("sqlite", 1, report)], {}, ["sqlite"])
    said = capsys.readouterr()
    assert said.out.endswith("\nsqlite: test_it.py::test_it\n3 passed, 1 failed\n")
    assert said.err == "Failed: sqlite\n"
