"""Where messages arrive: answered only after what they caused has been committed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_outbox_lock import run_once
from testproject.billing.models import Delivery, Invoice

if TYPE_CHECKING:
    from django.http import HttpRequest


@csrf_exempt
@require_POST
def receive(request: HttpRequest) -> HttpResponse:
    """Invoice an order once, however often its message arrives."""
    message_id = request.headers["Message-Id"]
    Delivery.objects.create(message_id=message_id)
    run_once("billing", message_id, write_invoice, message_id, json.loads(request.body))
    return HttpResponse(status=204)


def write_invoice(message_id: str, order: dict[str, Any]) -> None:
    """The effect; it commits together with the entry of the processing log."""
    Invoice.objects.create(message_id=message_id, order=order["number"], total=order["total"])
