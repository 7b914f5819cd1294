"""Users with and without permissions, logged in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

if TYPE_CHECKING:
    from collections.abc import Iterable

VIEW = (
    "view_outboxmessage",
    "view_archivedmessage",
    "view_processinglog",
    "view_lock",
    "view_hold",
    "view_topicstate",
)


class LogIn(Protocol):
    """Logs in a member of the staff who has these permissions of the app, and no others."""

    def __call__(self, *permissions: str) -> Client: ...


@pytest.fixture
def log_in(db: None) -> LogIn:
    def client(*permissions: str) -> Client:
        user = User.objects.create_user("operator", is_staff=True)
        user.user_permissions.set(_permissions(permissions))
        client = Client()
        client.force_login(user)
        return client

    return client


def _permissions(names: Iterable[str]) -> list[Permission]:
    found = list(
        Permission.objects.filter(content_type__app_label="django_outbox_lock", codename__in=names)
    )
    assert len(found) == len(set(names))
    return found


@pytest.fixture
def root(db: None) -> Client:
    """A superuser, logged in."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def url_of(model: str, page: str = "changelist", *args: Any, **query: Any) -> str:
    """A page of this app's admin; ``query`` is the query string."""
    return reverse(f"admin:django_outbox_lock_{model}_{page}", args=args, query=query or None)
