"""The documentation says what is there, and its examples run."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import inspect
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser, _SubParsersAction
from typing import TYPE_CHECKING

import django
import pytest
from django.core.management import BaseCommand, load_command_class

from django_outbox_lock import Envelope, conf, publish, publish_many
from django_outbox_lock.backends import archives, locks, publishers
from django_outbox_lock.backends.archives.base import BaseArchive
from django_outbox_lock.backends.locks.base import BaseLockBackend
from django_outbox_lock.backends.publishers.base import BasePublisher
from django_outbox_lock.engines.archiver import Archiver
from django_outbox_lock.engines.routing import Policy
from django_outbox_lock.engines.sweeper import Sweeper
from django_outbox_lock.handlers import option_names
from django_outbox_lock.locking import COMMON_OPTIONS
from django_outbox_lock.outbox import PublishOptions
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests import servers

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<path>[\w/]+\.py)\n")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [m["text"] for m in _BLOCK.finditer(text) if m["language"] == language]


def files(page: Path) -> dict[str, str]:
    """The blocks that name their file in the first line."""
    return {m["path"]: text for text in blocks(page, "python") if (m := _FILE.match(text))}


def run(command: list[str], folder: Path, **environment: str) -> str:
    """What the command says; fails unless it ends well."""
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR")
    base = {name: os.environ[name] for name in kept if name in os.environ}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**base, "PYTHONWARNINGS": "error", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{command} exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def keeps_its_contract(folder: Path, example: str, database_url: str) -> None:
    """Run the test module that stands beside the example, in a process of its own."""
    written = files(DOCS / "writing-a-backend.md")
    for name in (f"{example}.py", f"test_{example}.py"):
        (folder / name).write_text(written[name], encoding="utf-8")
    said = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{example}.py"],
        folder,
        PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]),
        DJANGO_SETTINGS_MODULE="testproject.settings",
        DATABASE_URL=database_url,
    )
    assert re.search(r"\d+ passed", said)


@pytest.mark.parametrize("example", ["spool", "folderarchive"])
def test_the_example_keeps_its_contract(tmp_path: Path, example: str) -> None:
    keeps_its_contract(tmp_path, example, f"sqlite:///{tmp_path}/default.sqlite3")


@pytest.mark.server("postgresql")
@pytest.mark.timeout(300)
def test_the_example_of_a_lock_keeps_its_contract(tmp_path: Path, server: servers.Server) -> None:
    """On a database that lets others write while the caller's transaction is open."""
    keeps_its_contract(tmp_path, "folderlock", f"{server.url}_folderlock")


# The quick start and the README, in a throwaway project


class Project:
    """A fresh project into which the blocks of a page are pasted."""

    def __init__(self, folder: Path, page: Path) -> None:
        self.folder = folder
        self.django("startproject", "mysite", ".")
        self.django("startapp", "shop")
        for name, text in files(page).items():
            self.paste(name, text)

    def paste(self, name: str, text: str) -> None:
        """Add to the settings; any other file is the page's alone."""
        with (self.folder / name).open("a" if name.endswith("settings.py") else "w") as file:
            file.write(text)

    def django(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "django", *arguments]
        path = os.pathsep.join([str(self.folder), str(ROOT)])
        settings = (
            {}
            if arguments[0].startswith("start")
            else {"DJANGO_SETTINGS_MODULE": "mysite.settings"}
        )
        return run(command, self.folder, PYTHONPATH=path, **settings)

    def type(self, line: str) -> str:
        """A line of a shell block that starts manage.py."""
        return self.django(*shlex.split(line)[2:])


def lines(page: Path) -> list[str]:
    """What the shell blocks of a page say about manage.py, in order."""
    return [
        line
        for block in blocks(page, "sh")
        for line in block.splitlines()
        if line.startswith("python manage.py") and " startapp " not in line
    ]


def test_the_quick_start_can_be_pasted(tmp_path: Path) -> None:
    page = DOCS / "quickstart.md"
    project = Project(tmp_path, page)
    said = [project.type(line) for line in lines(page)]
    *_, printed, tested = said
    assert printed.endswith("A-1\n")
    assert "Found 1 test" in tested


def test_the_readme_can_be_pasted(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    project = Project(tmp_path, page)
    if django.VERSION < (6, 1):  # whose new projects print their mail anyway
        project.paste(
            "mysite/settings.py", 'EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"'
        )
    *before, runsweeper = lines(page)
    for line in before:
        project.type(line)
    mail = project.type(f"{runsweeper} --once")
    assert "Subject: Order A-1" in mail
    assert "To: jo@example.com" in mail


# What there is, is documented


def rooms() -> list[tuple[type, int]]:
    """Every backend, with the number of arguments that the settings do not give it."""
    for package in (locks, publishers, archives):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    bases = {BaseLockBackend: 1, BasePublisher: 0, BaseArchive: 1}
    return [
        (cls, given)
        for base, given in bases.items()
        for cls in subclasses(base)
        if cls.__module__.startswith("django_outbox_lock.backends") and not cls.__subclasses__()
    ]


def subclasses(cls: type) -> set[type]:
    return {cls}.union(*map(subclasses, cls.__subclasses__()))


def test_every_option_stands_on_a_page_that_names_its_class() -> None:
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    missing = {
        f"{cls.__name__}: {option}"
        for cls, given in rooms()
        for option in option_names(cls, given)
        if option not in COMMON_OPTIONS  # on the settings page, with their defaults
        and not any(f"`{option}`" in text and cls.__name__ in text for text in pages)
    }
    assert missing == set()


@pytest.mark.parametrize("name", ["runsweeper", "runarchiver", "runlocked", "outbox"])
def test_every_argument_of_a_command_is_documented(name: str) -> None:
    """Apart from those that Django gives every command."""
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    command = load_command_class("django_outbox_lock", name)
    for heading, parser in parsers(command.create_parser("manage.py", name), name):
        section = page.partition(f"\n## `{heading}`\n")[2].partition("\n## ")[0]
        told = set(re.findall(r"^\| `(--[\w-]+)` \|", section, re.MULTILINE))
        assert told == arguments(parser) - arguments(BaseCommand().create_parser("", "")), heading


def parsers(parser: ArgumentParser, name: str) -> list[tuple[str, ArgumentParser]]:
    """The parser of a command or, where it has verbs, those of its verbs."""
    verbs = [a.choices for a in parser._actions if isinstance(a, _SubParsersAction)]
    if not verbs:
        return [(name, parser)]
    return [(f"{name} {verb}", verb_parser) for verb, verb_parser in verbs[0].items()]


def arguments(parser: ArgumentParser) -> set[str]:
    return {s for a in parser._actions for s in a.option_strings if s.startswith("--")} - {"--help"}


@pytest.mark.parametrize(
    ("function", "heading"), [(publish, "# Publishing"), (publish_many, "## Many at once")]
)
def test_every_argument_of_publishing_is_documented(
    function: Callable[..., object], heading: str
) -> None:
    page = (DOCS / "publishing.md").read_text(encoding="utf-8")
    section = page.partition(f"{heading}\n")[2].partition("\n## ")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert told == set(inspect.signature(function).parameters) - {"drafts"}


def test_every_attribute_of_an_envelope_is_documented() -> None:
    page = (DOCS / "publishing.md").read_text(encoding="utf-8")
    section = page.partition("\n## What arrives: the envelope\n")[2].partition("\n## ")[0]
    told = {
        name
        for row in re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert told == {field.name for field in dataclasses.fields(Envelope)}


def test_every_section_is_documented() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert {section for section in conf._SECTIONS if f"`{section}`" not in text} == set()


@pytest.mark.parametrize(
    ("cls", "heading"),
    [
        (Sweeper, "`SWEEPER`"),
        (Archiver, "`ARCHIVER`"),
        (PublishOptions, "`PUBLISH`"),
        (Policy, "`TOPICS`"),
        (BaseLockBackend, "`LOCK`"),
    ],
)
def test_the_settings_page_has_each_option_with_its_default(cls: type, heading: str) -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = section.partition("\n| option | default | meaning |\n")[2].partition("\n\n")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", table, re.MULTILINE))
    owner = next(c for c in cls.__mro__ if "__init__" in vars(c))
    parameters = inspect.signature(vars(owner)["__init__"]).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert told == {name: written(value) for name, value in defaults.items()}


def written(value: object) -> str:
    """A default as the page has it."""
    if isinstance(value, dt.timedelta):
        return f"timedelta(days={value.days})"
    return '""' if value == "" else repr(value)


@pytest.mark.parametrize("page", sorted(DOCS.glob("locks-*.md")), ids=lambda page: page.stem)
def test_the_page_of_a_lock_tells_what_an_operator_asks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = "\n".join(re.findall(r"^## (.+)$", text, re.MULTILINE)).casefold()
    for wanted in ("promises", "settings", "privileges", "provisioning", "loss shows", "failover"):
        assert wanted in headings
    assert "outbox locks --after-restore" in text
