"""The shop's process: orders and their messages in the same transactions, some rolled back."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path

import django
from django.db import transaction


class CustomerLeftError(Exception):
    """The customer went away before paying: the order never happened."""


def sell(number: int, *, paid: bool) -> str:
    """Write one order and its message in one transaction; returns the message id."""
    from django_outbox_lock import publish
    from testproject.shop.models import Order

    message_id = ""
    try:
        with transaction.atomic():
            order = Order.objects.create(number=f"A-{number:05}", total=Decimal("9.90") + number)
            content = {"number": order.number, "total": order.total}
            message_id = str(publish("order.placed", content, key=order.number))
            if not paid:
                raise CustomerLeftError
    except CustomerLeftError:
        pass
    return message_id


def main(orders: int, rolled_back: Path) -> None:
    """Sell ``orders`` orders; after every tenth one more is rolled back and noted in the file."""
    django.setup()
    with rolled_back.open("w", encoding="utf-8") as notes:
        for number in range(orders):
            sell(number, paid=True)
            if number % 10 == 0:
                print(sell(orders + number, paid=False), file=notes)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
