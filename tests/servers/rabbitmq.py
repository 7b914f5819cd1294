"""RabbitMQ as packaged by Debian or Ubuntu."""

from __future__ import annotations

import functools
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import ports, spawn, wire
from tests.servers.base import Server

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
# Erlang's port mapper would stay behind for ever as a daemon. Here it is a child in the
# foreground, which dies with the broker: exec makes the shell's process the broker's.
_START = 'setpriv --pdeathsig=KILL -- epmd & exec "$0"'


class RabbitMQ(Server):
    """``settings`` are lines of rabbitmq.conf. The user is guest with the password guest."""

    name = "rabbitmq"
    title = "RabbitMQ"
    apt = ("rabbitmq-server",)
    user = "rabbitmq"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.settings = dict(settings or {})

    def installed(self) -> bool:
        return _SCRIPT.exists()

    def prepare(self) -> None:
        lines = [f"{name} = {value}\n" for name, value in self.settings.items()]
        (self.directory / "rabbitmq.conf").write_text("".join(lines))
        (self.directory / "enabled_plugins").write_text("[].\n")
        for file in self.directory.iterdir():
            spawn.give(file, self.account)

    def command(self) -> list[str]:
        return ["sh", "-c", _START, str(_SCRIPT)]

    def environment(self) -> dict[str, str]:
        distribution, mapper = (str(ports.number(port)) for port in self._internal)
        places = {
            "RABBITMQ_BASE": "",
            "RABBITMQ_MNESIA_BASE": "data",
            "RABBITMQ_LOG_BASE": "log",
            "RABBITMQ_GENERATED_CONFIG_DIR": "config",
            "RABBITMQ_FEATURE_FLAGS_FILE": "feature_flags",
            "RABBITMQ_PID_FILE": "pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": "enabled_plugins",
            "RABBITMQ_CONFIG_FILE": "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": "none",
        }
        return {
            **{name: str(self.directory / place) for name, place in places.items()},
            # Each instance has its own mapper, so all nodes can have one name.
            "RABBITMQ_NODENAME": "outbox@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": distribution,
            "ERL_EPMD_PORT": mapper,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_LOGS": "-",
            # Makes the script become the broker instead of waiting for it as its child.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 "
                f"-setcookie {secrets.token_hex(16)}"
            ),
        }

    def ping(self) -> None:
        wire.amqp(self.port)
        if find_spec("pika"):
            import pika

            pika.BlockingConnection(pika.URLParameters(self.url)).close()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def version(self) -> str:
        return wire.amqp(self.port)

    def close(self) -> None:
        super().close()
        for reservation in vars(self).pop("_internal", ()):
            reservation.close()

    @functools.cached_property
    def _internal(self) -> tuple[socket.socket, socket.socket]:
        return ports.reserve(), ports.reserve()
