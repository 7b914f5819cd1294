"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoOutboxLockConfig(AppConfig):
    """Registers the checks, and tells OpenTelemetry of the locks where it is installed."""

    name = "django_outbox_lock"
    verbose_name = _("Outbox and locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_outbox_lock import checks, telemetry

        checks.register()
        telemetry.connect()
