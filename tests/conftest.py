"""For every test: no network but loopback, no key, no address, a home of its own."""

from __future__ import annotations

import ipaddress
import os
import shutil
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


# -- the scripted server and the small project (tests/scripted_server.py, tests/project_fixture.py)


@pytest.fixture
def serve(monkeypatch):
    """Start a scripted server, with a script or one outcome for all, and point the endpoint's variable at it."""
    from project_fixture import URL_ENV
    from scripted_server import Fail, Say, ScriptedServer, little_model

    servers = []

    def start(script=little_model, **options) -> ScriptedServer:
        outcome = script
        if isinstance(outcome, Say | Fail):
            script = lambda body: outcome  # noqa: E731
        servers.append(ScriptedServer(script, **options).__enter__())
        monkeypatch.setenv(URL_ENV, servers[-1].url)
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    from project_fixture import make_project

    return make_project(tmp_path_factory.mktemp("template") / "project")


@pytest.fixture
def project(template, tmp_path):
    """A fresh copy of the small project; ``changes`` replace top-level params."""
    from project_fixture import params_for, write_params

    def copy(name: str = "project", **changes):
        root = tmp_path / name
        shutil.copytree(template, root, symlinks=True)
        if changes:
            write_params(root, params_for(**changes))
        return root

    return copy


@pytest.fixture
def three(project):
    """A copy with three questions only."""
    from multihop import jsonl

    def copy(name: str):
        root = project(name)
        for file in ("questions", "gold"):
            path = root / f"data/prepared/musique/{file}.jsonl"
            jsonl.write(path, list(jsonl.read(path))[:3])
        return root

    return copy


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """Use another, empty store from here on."""

    def use(name: str, **env: str) -> None:
        monkeypatch.setenv("MULTIHOP_HOME", str(tmp_path / f"home-{name}"))
        for key, value in env.items():
            monkeypatch.setenv(key, value)

    return use
