"""What the suite's servers are made of: reserved ports, cached templates, fetched packages."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.servers import cache, origin, ports, sysroot

if TYPE_CHECKING:
    from pathlib import Path


def test_a_reserved_port_is_given_to_nobody_else() -> None:
    with ports.reserve() as reservation:
        port = ports.number(reservation)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with (
            socket.create_server(("127.0.0.1", port)),
            socket.create_connection(("127.0.0.1", port), 1),
        ):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1)


def test_a_template_is_built_once_by_two_that_ask_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_root", lambda: tmp_path)
    built = []

    def build(directory: Path) -> None:
        built.append(directory)
        (directory / "file").touch()

    def ask() -> None:
        both.wait(5)
        cache.made_once("template", "recipe", build)

    both = threading.Barrier(2)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(built) == 1
    assert (cache.made_once("template", "recipe", build) / "file").exists()
    assert cache.made_once("template", "another recipe", build) != built[0]
    assert len(built) == 2


def test_a_failed_template_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_root", lambda: tmp_path)

    def build(directory: Path) -> None:
        (directory / "file").touch()
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        cache.made_once("template", "recipe", build)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_package_that_cannot_be_fetched_is_an_error_with_apts_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_root", lambda: tmp_path)
    sources = {"nowhere.list": f"deb [trusted=yes] file:{tmp_path}/nowhere sid main\n"}
    with pytest.raises(sysroot.SysrootError, match="nowhere"):
        sysroot.unpacked(origin.Origin("mysql-server-core", "sid", sources))


def test_a_stanza_keeps_its_mirror_and_keyring_for_another_suite() -> None:
    text = (
        "# the mirror\n"
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n"
        "Components: main contrib\nSigned-By: /usr/share/keyrings/archive.gpg\n"
        "\n"
        "Types: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\n"
        "Components: main\n"
        "\n"
        "Enabled: no\nTypes: deb\nURIs: http://off.example/\nSuites: bookworm\nComponents: main\n"
    )
    assert origin.retargeted_stanzas(text, "bookworm", "sid") == (
        "URIs: http://mirror.example/debian\nSigned-By: /usr/share/keyrings/archive.gpg\n"
        "Types: deb\nSuites: sid\nComponents: main\n"
    )


def test_a_line_keeps_its_mirror_and_options_for_another_suite() -> None:
    text = (
        "# deb http://off.example/ bookworm main\n"
        "deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib\n"
        "deb-src http://mirror.example/debian bookworm main\n"
        "deb http://mirror.example/security bookworm-security main\n"
    )
    expected = "deb [signed-by=/k.gpg] http://mirror.example/debian sid main\n"
    assert origin.retargeted_lines(text, "bookworm", "sid") == expected
