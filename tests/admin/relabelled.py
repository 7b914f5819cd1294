"""Settings of a project that has a "django_outbox_lock" already, and gives ours another label."""

from __future__ import annotations

from django_outbox_lock.apps import DjangoOutboxLockConfig
from testproject.settings import *  # noqa: F403 (settings are made so)
from testproject.settings import INSTALLED_APPS as GIVEN


class Messaging(DjangoOutboxLockConfig):
    label = "messaging"


OURS = f"{__name__}.{Messaging.__name__}"
INSTALLED_APPS = [OURS if app == "django_outbox_lock" else app for app in GIVEN]
