"""Ports that stay ours for the life of a server."""

from __future__ import annotations

import socket


def reserve() -> socket.socket:
    """A socket bound to a free port of 127.0.0.1; the port is reserved while it is open.

    It never listens and has SO_REUSEADDR, so the server can bind the port too, again and again.
    Without it, a client that knocks in a loop while the server is down can be given the very
    port as its own and connect to itself, and the restart would find the address in use.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation


def number(reservation: socket.socket) -> int:
    port: int = reservation.getsockname()[1]
    return port
