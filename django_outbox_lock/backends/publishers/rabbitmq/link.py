"""A connection to RabbitMQ with one confirming channel, on a thread of its own."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import pika
from pika.adapters.utils.connection_workflow import (
    AMQPConnectionWorkflowFailed,
    AMQPConnectorPhaseErrorBase,
)
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosed,
    ChannelClosedByBroker,
    ConnectionClosed,
)
from pika.spec import Basic

from django_outbox_lock.backends.publishers.rabbitmq.window import Window
from django_outbox_lock.exceptions import TransportDown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_outbox_lock.backends.publishers.inflight import Batch
    from django_outbox_lock.backends.publishers.rabbitmq.window import Flight

_CLOSE_TIMEOUT = 5.0
_FRAME = 8  # bytes of a frame that are not payload
# Access refused, no such exchange: the broker's set-up, which is no message's fault.
_SETUP = frozenset({403, 404})


class Link:
    """Opened once, used until ``failure`` says why it cannot be used any more."""

    def __init__(self, parameters: Any, *, mandatory: bool, window: int) -> None:
        self.failure: str | None = None
        self._where = f"RabbitMQ at {parameters.host}:{parameters.port}"
        self._mandatory = mandatory
        self._window = Window(window)
        self._state = threading.Lock()
        self._ready = threading.Event()
        self._batches: set[Batch] = set()
        self._blocked = ""
        self._channel: Any = None
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_end,
            on_close_callback=self._on_end,
        )
        self._thread = threading.Thread(target=self._run, name="outbox-rabbitmq", daemon=True)

    # On the callers' threads

    @property
    def max_header_size(self) -> int:
        """Bytes of properties that the broker takes; known once the link is open."""
        return int(self._connection.params.frame_max) - _FRAME

    def open(self, timeout: float) -> None:
        """Connect; raises ``TransportDown`` when that fails or takes ``timeout`` seconds."""
        self._thread.start()
        if not self._ready.wait(timeout):
            self._hang_up(f"{self._where} gave no answer in {timeout} s.")
        if self.failure is not None:
            raise TransportDown(self.failure)

    def submit(self, batch: Batch, flights: Sequence[Flight]) -> None:
        """Publish in this order, as the window allows."""
        with self._state:
            if self.failure is None:
                self._batches.add(batch)
                self._call(self._on_submit, flights)
                return
        batch.fail(TransportDown(self.failure))

    def withdraw(self, batch: Batch) -> None:
        """Nobody waits for the batch any more: what is not published yet is not."""
        batch.cancelled = True
        with self._state:
            self._batches.discard(batch)

    def give_up(self, timeout: float) -> TransportDown:
        """What is in flight will not be known, so neither will what comes after it."""
        self._hang_up(f"{self._where} confirmed nothing in {timeout} s.{self._blocked}")
        return TransportDown(self.failure)

    def close(self) -> None:
        self._hang_up("The publisher was closed.")
        self._thread.join(_CLOSE_TIMEOUT)

    def _hang_up(self, reason: str) -> None:
        # Without waiting: where the broker gives no answer, the heartbeat ends the connection.
        with self._state:
            if self.failure is None:
                self._call(self._close)
        self._fail(reason)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        self._connection.ioloop.add_callback_threadsafe(functools.partial(function, *args))

    def _fail(self, reason: str) -> None:
        with self._state:
            self.failure = self.failure or reason
            batches, self._batches = self._batches, set()
        self._ready.set()
        for batch in batches:
            batch.fail(TransportDown(self.failure))

    # On the connection's thread

    def _run(self) -> None:
        reason = f"The connection to {self._where} is closed."
        try:
            self._connection.ioloop.start()
        except Exception as error:  # noqa: BLE001 (whatever it was, the callers are told)
            reason = f"The connection to {self._where} broke: {error!r}"
        self._fail(reason)
        with contextlib.suppress(AssertionError):  # pika's, where the start itself has failed
            self._connection.ioloop.close()

    def _close(self) -> None:
        if not (self._connection.is_closing or self._connection.is_closed):
            self._connection.close()

    def _on_open(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(
            self._on_confirm, callback=functools.partial(self._on_ready, channel)
        )

    def _on_ready(self, channel: Any, _frame: Any) -> None:
        self._channel = channel
        self._ready.set()
        self._publish()

    def _on_submit(self, flights: Sequence[Flight]) -> None:
        self._window.add(flights)
        self._publish()

    def _publish(self) -> None:
        while self._channel and not self.failure and (flight := self._window.take()):
            message = flight.message
            self._channel.basic_publish(
                message.exchange,
                message.routing_key,
                message.body,
                message.properties,
                mandatory=self._mandatory,
            )

    def _on_confirm(self, frame: Any) -> None:
        answer = frame.method
        self._window.confirmed(
            answer.delivery_tag,
            multiple=answer.multiple,
            kept=isinstance(answer, Basic.Ack),
        )
        self._publish()

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        words = (
            f"{method.reply_code} {method.reply_text}: "
            f"exchange {method.exchange!r}, routing key {method.routing_key!r}"
        )
        self._window.returned(properties.message_id, words)

    def _on_channel_closed(self, _channel: Any, reason: Exception) -> None:
        self._channel = None
        if not isinstance(reason, ChannelClosedByBroker):
            return  # along with the connection, which reports for itself
        words = _words(reason)
        if reason.reply_code not in _SETUP and self._window.interrupted(words):
            self._connection.channel(on_open_callback=self._on_channel)
        else:
            self._fail(f"{self._where}: {words}")
            self._close()

    def _on_blocked(self, _connection: Any, frame: Any) -> None:
        self._blocked = f" It blocks publishers: {frame.method.reason or 'no reason given'}."

    def _on_unblocked(self, _connection: Any, _frame: Any) -> None:
        self._blocked = ""

    def _on_end(self, connection: Any, error: BaseException) -> None:
        # pika ends a blocked connection by itself, and does not say what the broker lacks.
        self._fail(f"{self._where}: {_words(error)}{self._blocked}")
        connection.ioloop.stop()


def _words(error: BaseException) -> str:
    """What the broker or the system said, without the client library's wrappings."""
    match error:
        case AMQPConnectionWorkflowFailed():
            return _words(error.exceptions[-1])
        case AMQPConnectorPhaseErrorBase():
            return _words(error.exception)
        case AMQPConnectionError(args=(BaseException() as cause,)):
            return _words(cause)
        case ChannelClosed() | ConnectionClosed():
            return f"{error.reply_code} {error.reply_text}"
        case AMQPConnectionError(args=(str() as text,)):
            return text
    return repr(error)
