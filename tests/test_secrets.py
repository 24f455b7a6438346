"""A marked key, and a marked login in an address, are in nothing that a run leaves behind or prints.

The commands run in a process of their own, as a user runs them, with all of their files in one folder.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import nbformat
import pytest
import zstandard
from project_fixture import REPO, make_client, params_for
from scripted_server import Fail, Say, ScriptedServer, for_kind, in_turn, little_model

from multihop import config, guard, jsonl
from multihop.errors import ConfigError, EndpointError
from multihop.llm.client import ChatClient

KEY = "sk-MARK/7f3a+Zq9~key-0123"
LOGIN = "MARK~login/55+aa:x"
KEY_ENV, URL_ENV = "WHAT_OPENS_IT", "WHERE_IT_IS"
"""Names by which nobody could guess that a secret is in them."""


def needles(secret: str) -> list[bytes]:
    """The secret as it stands, URL-encoded, JSON-escaped, and in base64 whatever precedes it."""
    found = {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], secret.replace("/", "\\/")}
    for before in range(3):
        coded = base64.b64encode(b"x" * before + secret.encode())
        first, last = -(-before * 4 // 3), (len(secret) + before) * 4 // 3
        found |= {coded[first:last].decode(), coded[first:last].translate(bytes.maketrans(b"+/", b"-_")).decode()}
    return [text.encode() for text in found]


NEEDLES = [*needles(KEY), *needles(LOGIN)]


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file's name and bytes, and what is packed in it."""
    for path in sorted(p for p in folder.rglob("*") if not p.is_symlink()):
        yield path, str(path.relative_to(folder)).encode()
        if path.is_file():
            data = path.read_bytes()
            yield path, data
            if path.suffix == ".zst":
                yield path, zstandard.ZstdDecompressor().decompressobj().decompress(data)


def leaks(folder: Path) -> list[str]:
    return sorted({str(p.relative_to(folder)) for p, data in contents(folder) if any(n in data for n in NEEDLES)})


@pytest.mark.parametrize("secret", [KEY, LOGIN])
def test_what_looks_for_it_finds_it(tmp_path, secret):
    """So that the tests below can fail."""
    coded = [base64.b64encode(f"{before}{secret}".encode()).decode() for before in ("", "us:", "Bearer ", "x")]
    forms = [secret, quote(secret, safe=""), json.dumps({"a": secret}), *coded]
    for number, form in enumerate(forms):
        (tmp_path / f"{number}.bin").write_text(f"before {form} after")
    (tmp_path / "packed.zst").write_bytes(zstandard.compress(secret.encode()))
    (tmp_path / "clean").write_text("sk-")
    assert leaks(tmp_path) == [f"{n}.bin" for n in range(len(forms))] + ["packed.zst"]


DRIVER = """
import sys, time
from multihop import cli

def command(*arguments):
    sys.argv = ["multihop", *arguments]
    print("$", *arguments, "at", round(time.process_time(), 1), flush=True)
    try:
        cli.main()
    except SystemExit as e:
        print("exit", e.code, flush=True)

for line in sys.stdin.read().splitlines():
    if line.startswith("!"):
        exec(line[1:])
    else:
        command(*line.split("|"))
"""


def commands(root: Path, home: Path, lines: str, **env: str) -> str:
    """Run command lines one after another in a process; returns and keeps what they printed."""
    folders = {"HOME": home, "TMPDIR": home / "tmp", "MULTIHOP_HOME": home / "store", "XDG_CACHE_HOME": home / "cache"}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    environ = os.environ | {k: str(v) for k, v in folders.items()} | {"PYTHONPATH": str(REPO / "src"), **env}
    done = subprocess.run([sys.executable, "-c", DRIVER], input=lines, cwd=root, env=environ, capture_output=True,
                          text=True, timeout=120)  # fmt: skip
    printed = done.stdout + done.stderr
    with (home / "printed.txt").open("a", encoding="utf-8") as f:
        f.write(printed)
    return printed


PAGE = """import json, os
from multihop.report.load import Report
print(len(Report(".").scores), "scores")
print(json.dumps(dict(os.environ)))"""


@pytest.fixture(scope="module")
def left(template, tmp_path_factory) -> tuple[Path, str]:
    """A folder with all that several commands left behind, good and failing ones; and what they printed."""
    home = tmp_path_factory.mktemp("left")
    root = home / "project"
    shutil.copytree(template, root, symlinks=True)
    endpoints = {"scripted": {"url_env": URL_ENV, "key_env": KEY_ENV}}
    params = params_for(endpoints=endpoints, notebooks=["page"], max_error_share=1.0)
    params["runs"] = {name: params["runs"][name] for name in ("arag", "executionrag")}
    (root / "params.yaml").write_text(json.dumps(params))
    params["runs"] = {"late": {"method": "direct", "max_tokens": 99}}
    (root / "later.yaml").write_text(json.dumps(params))
    shutil.rmtree(root / "data/index")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PAGE)], metadata=kernel)
    jsonl.write_text(root / "notebooks/page.ipynb", nbformat.writes(notebook))
    (root / "dvc.yaml").write_text(json.dumps({"stages": {"go": {"cmd": "echo done"}}}))
    echo = [Fail(400, "odd", f"bad header Authorization: Bearer {KEY}"), Fail(400, "content_filter", f"no: {KEY}"),
            Fail(400, "", f"{quote(KEY, safe='')} and {base64.b64encode(KEY.encode()).decode()}"),
            Say(None, refusal="no"), Fail(400, "context_length_exceeded", KEY)]  # fmt: skip
    export = "from pathlib import Path; from multihop.store import Store; Store(Path('{}')).export(Path('r.jsonl.zst'))"
    good = f"""index|musique
run|arag
run|executionrag
score
validate
show-prompt|arag|q1
ask|Where was Jon Ekeby born?
export|scores.csv
render|page
!{export.format(home / "store/store.sqlite")}
!from dvc.cli import main; main(["init", "--no-scm", "-q"]); main(["repro", "-q"])"""
    # A wrong key, a key that can't be one, an address with a login, and one that is none.
    wrong = f"""!import os, shutil; from multihop import guard; shutil.copy("later.yaml", "params.yaml")
run|late
!guard._secrets.clear(); os.environ["{KEY_ENV}"] = "{KEY}\\n"
run|late
!guard._secrets.clear(); os.environ["{KEY_ENV}"] = "{KEY}"
!url = os.environ["{URL_ENV}"]; os.environ["{URL_ENV}"] = url.replace("//", "//me:{quote(LOGIN, safe="")}@")
run|late
!guard._secrets.clear(); os.environ["{URL_ENV}"] = "http://me:{quote(LOGIN)}"
run|late"""
    bad = f"""!guard._secrets.clear(); os.environ["{URL_ENV}"] = os.environ["ANOTHER"]
run|late
!from multihop import stages
!def broken(*a): raise RuntimeError("unexpected: Bearer {KEY} at http://me:{LOGIN}@there")
!stages.score_all = broken
score
run|no such run"""
    texts = []
    with ScriptedServer(little_model, key=KEY) as server, ScriptedServer(in_turn(echo, for_kind())) as other:
        texts.append(commands(root, home, good, **{URL_ENV: server.url, KEY_ENV: KEY}))
        assert server.bodies, texts[-1]
        login = other.url.replace("//", f"//me:{quote(LOGIN, safe='')}@")
        environ = {URL_ENV: server.url, KEY_ENV: KEY + "-wrong", "ANOTHER": login, "MULTIHOP_WORKERS": "1"}
        texts.append(commands(root, home, f"{wrong}\n{bad}", **environ))
        assert len(other.bodies) == 6, texts[-1]
    return home, "\n".join(texts)


def test_nothing_that_a_run_leaves_or_prints_holds_a_key_or_login(left):
    home, _ = left
    assert leaks(home) == []


def test_all_of_it_was_there_to_be_searched(left):
    """What the test above reads holds the runs, their errors and the refusals, in every kind of file."""
    home, printed = left
    root = home / "project"
    for name in ("results/runs/executionrag/musique/small.jsonl", "results/scores/musique/small/arag.jsonl",
                 "results/notebooks/page.html", "results/notebooks/page.ipynb", "scores.csv", "r.jsonl.zst",
                 "data/index/musique/lsa-passages/meta.json", ".dvc/config", "dvc.lock", "../store/store.sqlite",
                 "../store/logs/run-arag-musique-small.jsonl"):  # fmt: skip
        assert (root / name).is_file(), (name, printed)
    assert "12 scores" in (root / "results/notebooks/page.html").read_text()
    rows = [json.loads(line) for line in (root / "results/runs/late/musique/small.jsonl").read_text().splitlines()]
    assert [r["status"] for r in rows] == ["error", "refused", "error", "refused", "budget", "ok"]
    assert guard.HIDDEN in rows[0]["error"] and rows[2]["error"].count(guard.HIDDEN) == 2
    assert guard.HIDDEN in str(rows[1]["events"])
    for text in ("refuses the key: check WHAT_OPENS_IT", "WHAT_OPENS_IT: holds a blank", "WHERE_IT_IS: no address",
                 "Traceback", f"unexpected: Bearer {guard.HIDDEN} at", "unknown run", "Answer (answered)"):  # fmt: skip
        assert text in printed, (text, printed)


def test_a_key_typed_into_params_is_refused_and_not_quoted():
    for block in ({"key_env": KEY}, {"url_env": f"http://me:{LOGIN}@there/v1"}):
        with pytest.raises(ConfigError, match=r"endpoints\.scripted\..*_env: the name of an environment variable") as e:
            config.parse(params_for(endpoints={"scripted": {"url_env": URL_ENV} | block}))
        assert "MARK" not in str(e.value)


async def hello(client: ChatClient) -> None:
    try:
        await client.chat([{"role": "user", "content": "hi"}], role="reader")
    finally:
        await client.endpoints.close()


def test_a_library_error_is_free_of_the_key_down_its_chain(tmp_path, serve, monkeypatch):
    serve(Fail(401, "invalid_api_key", f"Incorrect API key provided: {KEY}"))
    monkeypatch.setenv(KEY_ENV, KEY)
    client = make_client(tmp_path, endpoint={"key_env": KEY_ENV})
    with pytest.raises(EndpointError) as error:
        asyncio.run(hello(client))
    assert "MARK" not in "".join(traceback.format_exception(error.value)) and error.value.__cause__ is not None


def test_a_redirect_to_another_place_takes_no_key_along(tmp_path, serve, monkeypatch):
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    elsewhere = serve(Say("from elsewhere"))
    seen: list[str] = []
    monkeypatch.setattr(elsewhere, "reply", lambda body, authorization: seen.append(authorization) or Say("hi"))

    class Redirect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(307)
            self.send_header("Location", elsewhere.url.replace("127.0.0.1", "localhost") + "/chat/completions")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    front = HTTPServer(("127.0.0.1", 0), Redirect)
    Thread(target=front.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv(KEY_ENV, KEY)
    monkeypatch.setenv(URL_ENV, f"http://127.0.0.1:{front.server_address[1]}/v1")
    client = make_client(tmp_path, endpoint={"key_env": KEY_ENV, "url_env": URL_ENV})
    try:
        asyncio.run(hello(client))
    finally:
        front.shutdown()
    assert seen and not any("MARK" in header for header in seen)


# -- the guard itself


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """What one test hides, the next does not know of."""
    monkeypatch.setattr(guard, "_secrets", {})


@pytest.mark.parametrize(
    ("address", "hidden"),
    [
        ("http://user:pass-word@host:1/v1", ["pass-word", "user:pass-word"]),
        ("http://only-a-token@host/v1", ["only-a-token"]),
        ("http://user:p%40ss-word@host", ["p%40ss-word", "p@ss-word"]),
        ("http://host/v1?key=abc-def-1", ["abc-def-1"]),
        ("http://user:pass-word", ["pass-word"]),
        ("http://host:8000/v1", []),
        ("http://[::1]:8000/v1", []),
        ("", []),
        (None, []),
    ],
)
def test_what_is_secret_in_an_address(address, hidden):
    guard.keep_secrets_of(address)
    assert all(guard.told(f"a {text} b") == f"a {guard.HIDDEN} b" for text in hidden)
    assert guard.told("user host 8000 v1 http://host:8000/v1") == "user host 8000 v1 http://host:8000/v1"


def test_variables_named_as_keys_and_logins_of_proxies_are_secret_and_placeholders_are_not(monkeypatch):
    environ = {"SOME_API_KEY": "abcdefgh", "https_proxy": "http://me:the-login@proxy:1", "KEYBOARD": "colemak",
               "B_TOKEN": "none", "PATH": "/usr/bin"}  # fmt: skip
    guard.keep_secrets_in(environ)
    said = guard.told("abcdefgh the-login colemak none /usr/bin")
    assert said == f"{guard.HIDDEN} {guard.HIDDEN} colemak none /usr/bin"
    monkeypatch.setattr(os, "environ", environ)
    assert set(guard.public_environment()) == {"KEYBOARD", "B_TOKEN", "PATH"}
