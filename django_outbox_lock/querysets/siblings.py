"""The models, which import what is here, and whose app a project may have given another label."""

from __future__ import annotations

from typing import Any

from django.apps import apps


def model(name: str) -> Any:
    """The model of this app that is called so."""
    app: Any = apps.get_containing_app_config(__name__)
    return app.get_model(name)
