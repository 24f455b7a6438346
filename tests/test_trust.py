"""Passages, model answers and names are somebody else's text: it is data wherever it goes, and runs nowhere."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_texts import DEEP, HOSTILE
from project_fixture import (
    REPO,
    WORLD,
    FakeClient,
    answer,
    events,
    make_project,
    params_for,
    records_of,
    run_project,
)
from scripted_server import Say, for_kind, in_turn, little_model

from multihop import cli, config, jsonl, profiles
from multihop.errors import ConfigError
from multihop.llm import structured, tool_calling
from multihop.llm.client import ToolCall
from multihop.report import render
from multihop.retrieval.tools import TOOL_NAMES, AgentTools
from multihop.store import Store

# -- a whole run over hostile passages, questions, gold and answers


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Path:
    """A project in which all text is hostile, indexed."""
    root = tmp_path_factory.mktemp("attacked") / "project"
    texts = [t for k, t in HOSTILE.items() if k != "surrogate"]
    world = [(f"{t} {WORLD[i % 12][0]}", f"{WORLD[i % 12][1]} {t} It is {t}.") for i, t in enumerate(texts)]
    patch = pytest.MonkeyPatch()
    patch.setattr("project_fixture.WORLD", world)
    patch.setattr("project_fixture.QUESTIONS", {f"../{k}/$(x)": (f"Who is {HOSTILE[k]}?", HOSTILE[k]) for k in
                                                ("html", "braces", "ansi", "formula", "path", "tex")})  # fmt: skip
    runs = {name: params_for()["runs"][name] for name in ("cot_rag", "arag", "executionrag")}
    make_project(root, runs=runs)
    patch.undo()
    return root


def hostile_model(body: dict[str, Any]) -> Say:
    """The little model, whose every answer, note and query carries an attack; some tools were never offered."""
    texts = list(HOSTILE.values())
    pick = texts[sum(map(ord, json.dumps(body["messages"]))) % len(texts)]
    said = little_model(body)
    if said.tool_calls:
        odd = (("os.system", '{"command": "touch TOUCHED"}'), ("../read_chunk", '{"chunk_ids": ["../../etc/passwd"]}'),
               ("read_chunk", json.dumps({"chunk_ids": ["../../etc/passwd", pick]})), ("semantic_search", DEEP),
               ("keyword_search", json.dumps({"keywords": [pick, DEEP[:5000]], "top_k": 10**400})[:4000]),
               ("semantic_search", json.dumps({"query": pick})))  # fmt: skip
        return Say(said.content, (*said.tool_calls, *odd))
    if said.content.startswith("{"):
        return Say(said.content.replace('"note": "', f'"note": {json.dumps(pick)[:-1]} '))
    return Say(f"{said.content}\nAnswer: {pick} {said.content}" if body["messages"][-1]["role"] else "")


def run_all(root: Path) -> None:
    for name in ("cot_rag", "arag", "executionrag"):
        run_project(root, name)


@pytest.fixture
def hostile(attacked, tmp_path, serve, monkeypatch):
    """A copy of that project, as the working directory, before a model whose answers are attacks, too."""
    root = tmp_path / "p"
    shutil.copytree(attacked, root, symlinks=True)
    monkeypatch.chdir(root)
    serve(hostile_model)
    return root


def command(monkeypatch, capsys, *arguments: str) -> tuple[str, int]:
    monkeypatch.setattr(sys, "argv", ["multihop", *arguments])
    code = 0
    try:
        cli.main()
    except SystemExit as e:
        code = e.code
    out, err = capsys.readouterr()
    return out + err, code


def test_a_run_in_which_every_text_is_an_attack(hostile, monkeypatch, capsys):
    before = {p for p in hostile.parent.rglob("*") if "p/results" not in str(p)}
    run_all(hostile)
    for arguments in (("score",), ("ask", f"Who is {HOSTILE['ansi']} {HOSTILE['html']}?"), ("export", "scores.csv"),
                      ("show-prompt", "executionrag", "../ansi/$(x)"), ("run", HOSTILE["ansi"])):  # fmt: skip
        printed, code = command(monkeypatch, capsys, *arguments)
        assert code == (1 if arguments[0] == "run" else 0), printed  # there is no run of that name
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", printed), arguments
        assert arguments[0] not in ("ask", "show-prompt") or "\\x1b[2J" in printed
    # Every question has a record whose status is no error, and what was asked for wrongly is a tool error.
    for name in ("cot_rag", "arag", "executionrag"):
        assert [r.status for r in records_of(hostile, name)] == ["ok"] * 6, [r.error for r in records_of(hostile, name)]
    wrong = [e["tool"] for r in records_of(hostile, "arag") for e in events(r, "tool_error")]
    assert {"os.system", "../read_chunk", "semantic_search"} <= set(wrong)
    for record in records_of(hostile, "arag"):
        assert {e["tool"] for e in events(record, "retrieve")} <= {"semantic_search", "keyword_search"}
        assert {c for e in events(record, "read") for c in e["chunk_ids"]} <= {f"p{i}" for i in range(len(HOSTILE))}
        assert all("../../etc/passwd" in e["unknown"] for e in events(record, "read") if e["unknown"])
    # The store survived, and no file is anywhere that a run does not write.
    made = {p for p in hostile.parent.rglob("*") if "p/results" not in str(p)} - before
    assert {p.name for p in made} <= {"scores.csv"}
    assert not list(hostile.parent.rglob("*TOUCHED*")) and not list(REPO.glob("*TOUCHED*"))
    with (hostile / "scores.csv").open(newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 18 and any(HOSTILE["html"][:20] in str(r) for r in rows)
    assert not [v for r in rows for v in r.values() if re.match(r"[=+@\t\r]|-(?![\d.]+$)", v)]


# -- tools, arguments, structured answers


@pytest.mark.parametrize("text", [*HOSTILE.values(), DEEP, "1" * 10_000, '{"query": ' + "9" * 5000 + "}", "NaN", "null",
                                  '{"query": {"a": 1}}', '{"query": "' + DEEP + '"}', '{"chunk_ids": "' + DEEP + '"}',
                                  '{"chunk_ids": [1e999, -1, "__class__"]}', '"x"', "[]"])  # fmt: skip
@pytest.mark.parametrize("tool", [*TOOL_NAMES, "eval", "__init__", "_read", "call"])
def test_no_argument_does_more_than_search_or_read(template, text, tool):
    retriever = opened(template)
    tools = AgentTools(retriever)
    result = tools.call(tool, tool_calling.arguments(ToolCall("1", tool, text)), 1)
    assert result.kind == "tool_error" or tool in TOOL_NAMES
    assert set(result.chunk_ids) <= {c.id for c in retriever.chunks}
    result.text.encode()


def opened(root: Path) -> Any:
    from multihop.environment import Environment
    from multihop.opening import open_index
    from multihop.session import Session

    if root not in _opened:
        session = Session(config.load(root / "params.yaml"), Environment.read(), root)
        _opened[root] = open_index(session, "musique", "small")
    return _opened[root]


_opened: dict[Path, Any] = {}


MANY = 50_000


@pytest.mark.parametrize("text", [*HOSTILE.values(), DEEP, "{" * MANY, '{"a":' * MANY, "{" + "9" * 5000, '{"a": 1e99}'])
def test_no_structured_answer_does_more_than_parse(text):
    for wrapped in (text, json.dumps({"enough": True, "answer": text, "tool": "os.system", "argument": text})):
        value, _, error = structured.parse(wrapped, tool_calling.Action)
        assert value is not None or error
        if value is not None:
            jsonl.dumps(value.model_dump()).encode()


def test_the_store_keeps_a_hostile_text_as_it_is(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    texts = [t for k, t in HOSTILE.items() if k != "surrogate"]
    for text in texts:
        store.put_values(text, {text: text})
        store.put_vectors(text, {t: np.ones(2) for t in texts})
        store.put({"model": text, "messages": []}, {"content": text, "usage": {}})
    for text in texts:
        assert store.get_values(text, [text]) == {text: text} and set(store.get_vectors(text, texts)) == set(texts)
        assert store.get({"model": text, "messages": []})["content"] == text
    store.export(tmp_path / "r.jsonl.zst")
    store.close()
    assert len(Store(tmp_path / "t.sqlite", [tmp_path / "r.jsonl.zst"]).layers[0].responses) == len(texts)


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_prompt_takes_a_text_in_as_it_stands(template, name):
    """No template is filled in twice: braces of a passage or question stay what they are."""
    text = HOSTILE[name]
    search = Say(None, (("semantic_search", json.dumps({"query": text})),))
    script = for_kind(in_turn([Say(text)], little_model), agent=in_turn([search]))
    client = FakeClient(script)
    _, _, record = answer(opened(template), "executionrag", client, f"Who is {text}?", max_loops=3)
    assert record.status in ("ok", "budget"), record.error
    assert any(f"Who is {text}?" in (m["content"] or "") for body in client.bodies for m in body["messages"])


# -- names that become paths


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc", "..", ".hidden", "a\\b", "a b", "$(touch TOUCHED)", "x;y", "",
                                  "a\n", "a\x00b", "-rf"])  # fmt: skip
@pytest.mark.parametrize("block", ["settings", "embedders", "runs", "datasets", "structures"])
def test_a_name_that_leads_elsewhere_is_refused(name, block):
    params = params_for()
    if block == "datasets":
        params |= {"datasets": [name], "data": {name: {}}}
    elif block == "structures":
        params["structures"] = {name: {"structure": "entities", "settings": ["small"]}}
    else:
        params[block][name] = next(iter(params[block].values()))
    with pytest.raises(ConfigError, match=rf"params\.yaml: .*(a name has letters|{block})"):
        config.parse(params)


def test_a_notebook_or_profile_outside_its_folder_is_refused(tmp_path, monkeypatch):
    for path in ("p/notebooks/in.ipynb", "out.ipynb", "p/profiles/in.yaml", "out.yaml"):
        jsonl.write_text(tmp_path / path, "{}")
    for name in ("../../out", "../out", "/etc/passwd", str(tmp_path / "out")):
        with pytest.raises(ConfigError, match="no such notebook"):
            render.render(tmp_path / "p", name)
        with pytest.raises(ConfigError, match="no profile"):
            profiles.checkout(tmp_path / "p", name)
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["notebooks", "profiles"]
