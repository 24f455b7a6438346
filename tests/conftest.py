"""For every test: no network but loopback, no key, no address, a home of its own."""

from __future__ import annotations

import ipaddress
import os
import socket

import pytest


def _is_loopback(host: object) -> bool:
    if host in (None, "", "localhost", b"localhost"):
        return True
    try:
        return ipaddress.ip_address(str(host.decode() if isinstance(host, bytes) else host)).is_loopback
    except ValueError:
        return False


def _block_network() -> None:
    """Every socket but loopback (and Unix sockets) refuses to connect, and no name is looked up."""
    connect, connect_ex, getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def check(family: int, address: object) -> None:
        if family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise RuntimeError(f"a test tried to reach {address!r}; tests use loopback only")

    def guarded_connect(self, address):
        check(self.family, address)
        return connect(self, address)

    def guarded_connect_ex(self, address):
        check(self.family, address)
        return connect_ex(self, address)

    def guarded_lookup(host, *args, **kwargs):
        if not _is_loopback(host):
            raise RuntimeError(f"a test tried to look up {host!r}; tests use loopback only")
        return getaddrinfo(host, *args, **kwargs)

    socket.socket.connect = guarded_connect
    socket.socket.connect_ex = guarded_connect_ex
    socket.getaddrinfo = guarded_lookup


_block_network()


@pytest.fixture(autouse=True)
def isolated(tmp_path_factory, monkeypatch):
    """No key, address, proxy or setting of the machine reaches a test; MULTIHOP_HOME is a folder of its own."""
    for name in list(os.environ):
        if name.startswith(("MULTIHOP_", "OPENAI_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MULTIHOP_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def quick_retries(monkeypatch):
    """The openai client's retries without their waiting."""
    import openai._base_client

    monkeypatch.setattr(openai._base_client.BaseClient, "_calculate_retry_timeout", lambda *args, **kwargs: 0.001)
