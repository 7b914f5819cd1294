"""Messages go to RabbitMQ, with pipelined publisher confirms."""

from __future__ import annotations

try:
    import pika  # noqa: F401
except ImportError as error:
    raise ImportError(
        "RabbitMQPublisher needs pika: run `pip install django-outbox-lock[rabbitmq]`."
    ) from error

from django_outbox_lock.backends.publishers.rabbitmq.messages import to_envelope
from django_outbox_lock.backends.publishers.rabbitmq.publisher import RabbitMQPublisher

__all__ = ["RabbitMQPublisher", "to_envelope"]
