"""The house's walls: imports run one way, gold never meets a method, methods touch no file, variable or terminal."""

from __future__ import annotations

import ast
import configparser
import socket
from pathlib import Path

import pytest
from project_fixture import REPO

from multihop.methods import registry

SRC = REPO / "src/multihop"
CONTRACTS = REPO / ".importlinter"
BEFORE_GOLD = sorted(p for d in ("methods", "structures", "retrieval", "llm") for p in (SRC / d).glob("*.py"))


def test_import_contracts_hold(capsys, monkeypatch):
    from importlinter.cli import lint_imports

    monkeypatch.chdir(REPO)
    code = lint_imports(config_filename=str(CONTRACTS), no_cache=True, no_logo=True)
    assert code == 0, capsys.readouterr().out


def test_a_broken_contract_is_found(tmp_path, capsys, monkeypatch):
    """So that the test above can fail: running does import methods."""
    from importlinter.cli import lint_imports

    monkeypatch.chdir(tmp_path)
    Path("wrong").write_text(
        "[importlinter]\nroot_package = multihop\n\n[importlinter:contract:x]\nname = x\ntype = forbidden\n"
        "source_modules = multihop.running\nforbidden_modules = multihop.methods\n"
    )
    assert lint_imports(config_filename="wrong", no_cache=True, no_logo=True) == 1


def test_every_module_and_every_method_stands_in_a_contract():
    parser = configparser.ConfigParser()
    parser.read(CONTRACTS, encoding="utf-8")
    listed = set(" ".join(v for s in parser.sections() for v in parser[s].values()).replace("|", " ").split())
    tops = {p.stem if p.is_file() else p.name for p in SRC.iterdir() if p.name not in ("__init__.py", "__pycache__")}
    assert {f"multihop.{name}" for name in tops} <= listed
    assert {f"multihop.methods.{name}" for name in registry.names()} <= listed


def names(path: Path) -> set[str]:
    """Every name, attribute (with its dot) and imported module of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(f".{node.attr}")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(alias.name for alias in node.names)}
    return found


@pytest.mark.parametrize(
    "path",
    [*BEFORE_GOLD, *(SRC / f"{n}.py" for n in ("opening", "building", "running", "asking"))],
    ids=lambda p: f"{p.parent.name}-{p.stem}",
)
def test_gold_is_not_even_named_before_evaluation(path):
    assert not names(path) & {"gold", ".gold", "Gold", ".Gold", "gold_from_row", ".gold_from_row"}


@pytest.mark.parametrize("path", sorted((SRC / "methods").glob("*.py")), ids=lambda p: p.stem)
def test_a_method_opens_no_file_reads_no_variable_and_prints_nothing(path):
    if path.stem == "registry":
        return
    forbidden = {
        "open",
        "print",
        "input",
        "os",
        "sys",
        "io",
        "pathlib",
        "Path",
        "logging",
        "openai",
        ".environ",
        ".read_text",
        ".write_text",
    }
    found = names(path)
    if ".StringIO" in found:  # text in memory is no file
        found -= {"io"}
    assert not found & forbidden


@pytest.mark.parametrize("path", sorted((SRC / "structures").glob("*.py")), ids=lambda p: p.stem)
def test_a_structure_reads_no_variable_and_prints_nothing(path):
    assert not names(path) & {"print", "input", "environ", ".environ", "getenv", ".getenv", "openai", "sys"}


@pytest.mark.parametrize("name", registry.names())
def test_a_method_does_not_catch_what_a_provider_raises(name):
    for file in (f"{name}.py", "agent.py", "reading.py"):
        for node in ast.walk(ast.parse((SRC / "methods" / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "everything"
                assert caught == "json.JSONDecodeError", (file, caught)


def test_no_test_reaches_another_machine():
    for connect in (
        lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
        lambda: socket.getaddrinfo("example.org", 443),
        lambda: socket.socket().connect_ex(("192.0.2.1", 80)),
    ):
        with pytest.raises(RuntimeError, match="loopback only"):
            connect()


def test_files_stay_readable():
    """A file that has outgrown one sitting is two files."""
    long = {
        str(p.relative_to(SRC)): n
        for p in SRC.rglob("*.py")
        if (n := len(p.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}
