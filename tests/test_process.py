"""How a process calls itself in the registry of locks."""

from __future__ import annotations

import sys

import pytest

from django_outbox_lock import process


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/srv/shop/manage.py", "runsweeper", "--once"], "manage.py runsweeper"),
        (["/usr/bin/django-admin", "runarchiver"], "django-admin runarchiver"),
        (["/usr/lib/django/__main__.py", "runsweeper"], "django runsweeper"),
        (["/usr/bin/gunicorn", "shop.wsgi"], "gunicorn"),
        (["/usr/lib/celery/__main__.py", "worker", "--password=x"], "celery"),
        ([""], "python"),
        ([], "python"),
    ],
)
def test_an_application_is_named_without_its_options(
    arguments: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert process.application() == name


def test_names_fit_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["x" * 1000])
    monkeypatch.setattr("socket.gethostname", lambda: "h" * 1000)
    assert len(process.application()) == 200
    assert len(process.host()) == 255
    assert len(process.session_name("outbox").encode()) <= 63
