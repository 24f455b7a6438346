"""Prompts are files: each is used by a method (or the judge), each placeholder is filled, and none hides in python."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest
from dynakrag_fixture import FakeController, script
from fake_embedder import small_retriever
from project_fixture import REPO, FakeClient, answer, prompts_of
from scripted_server import Say, act, conclude, for_kind, in_turn, kind_of, little_model, settle, turns

from multihop.methods import registry
from multihop.structures.registry import STRUCTURES

PROMPTS = REPO / "prompts"
SRC = REPO / "src/multihop"
QUESTION = "Who is the mayor of the birthplace of Ilva Dorn?"
NOT_METHODS = {"shared", "judge", "extract"}


def stems(folder: str) -> set[str]:
    return {p.stem for p in (PROMPTS / folder).glob("*.txt")} - {"README"}


class Text(str):
    """A prompt that remembers what it was filled with."""

    __slots__ = ("filled",)

    def format(self, *args: object, **given: object) -> str:
        self.filled.append(set(given))
        return super().format(*args, **given)


class Watched(dict):
    """Prompts by name that remember which were looked up."""

    def __init__(self, method: str):
        super().__init__()
        self.used: set[str] = set()
        for name, text in prompts_of(method).items():
            self[name] = Text(text)
            self[name].filled = []

    def __getitem__(self, name: str) -> Text:
        self.used.add(name)
        return super().__getitem__(name)


def searching(body):
    return act(body, "semantic_search", f"search {turns(body)}")


def ready():
    both = [settle("R1", ["p0"], "there"), settle("R2", ["p1"], "her")]
    return for_kind(
        agent=in_turn([lambda b: act(b, "read_chunk", ["p0"]), lambda b: act(b, "read_chunk", ["p1"])], then=searching),
        update=in_turn(both),
    )


PROSE = in_turn([Say("Ilva Dorn was born in Marrow Bay."), Say("Who is the mayor?")], then=lambda b: Say("Something."))
ASKING = in_turn(
    [Say('{"need_followup": true, "followup": "Where was Ilva Dorn born?", "final": ""}')], then=lambda b: Say("x")
)


CASES = [
    ("direct", {}, little_model, "native"),
    ("vanilla", {}, little_model, "native"),
    ("cot_rag", {}, little_model, "native"),
    ("cot_rag", {"variant": "query"}, little_model, "native"),
    ("arag", {"max_loops": 2}, for_kind(agent=searching), "native"),
    ("arag", {}, lambda body: Say("prose") if kind_of(body) == "agent" else little_model(body), "json_action"),
    ("executionrag", {}, ready(), "native"),
    ("executionrag", {"verify": True}, ready(), "native"),
    (
        "executionrag",
        {"seed_evidence": False},
        lambda b: conclude(b, "x") if kind_of(b) == "agent" else little_model(b),
        "native",
    ),
    ("executionrag", {"max_loops": 5}, for_kind(agent=searching, update=Say("prose")), "json_action"),
    ("fixed_k", {"k": 2}, little_model, "native"),
    ("ircot", {}, PROSE, "native"),
    ("self_ask", {}, ASKING, "native"),
    ("crag", {}, PROSE, "native"),
    ("crag", {}, lambda body: Say('{"grades": [0, 0, 0, 0, 0]}'), "native"),
    ("s2g_rag", {}, PROSE, "native"),
    ("corag", {}, PROSE, "native"),
    ("par2_rag", {}, PROSE, "native"),
    ("adaptive_rag", {"strategy": "A"}, PROSE, "native"),
    ("adaptive_rag", {"strategy": "C"}, PROSE, "native"),
    ("adaptive_rag", {"router": "zero_shot"}, PROSE, "native"),
    ("dynakrag", {"continuation": "fixed"}, script(), "native"),
]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Every method once through each branch that says something: [(method, its prompts, its client)]."""
    retriever = small_retriever(tmp_path_factory.mktemp("prompts"))
    seen = []
    for method, options, reply, mode in CASES:
        prompts, client = Watched(method), FakeClient(reply, tool_calling=mode)
        trained = {"controller": FakeController({"S": 0.9, "W": 0.8})}
        record = answer(retriever, method, client, QUESTION, prompts=prompts, trained=trained, **options)[2]
        assert record.error is None, record.error
        seen.append((method, prompts, client))
    return seen


def test_every_prompt_file_is_used_and_none_is_missing(watched):
    used: dict[str, set[str]] = {"shared": {f"query_entities_{part}" for part in ("system", "user")}}
    for method, prompts, _ in watched:
        for name in prompts.used:
            used.setdefault(method if name in stems(method) else "shared", set()).add(name)
    assert used["shared"] == stems("shared")
    for method in {method for method, *_ in CASES}:
        assert used.get(method, set()) == stems(method), method


# -- structures, and the methods that need one: what their source says, for an index is too dear to build here


def fillings(path: Path) -> dict[str, set[str]]:
    """Prompt file -> the fields it is filled with in a source file; None as it stands."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(attr="messages"), args=[ast.Constant(name)], keywords=fields):
                found |= {f"{name}_system": set(), f"{name}_user": {k.arg for k in fields}}
            case ast.Call(
                func=ast.Attribute(attr="format", value=ast.Subscript(slice=ast.Constant(name))), keywords=fields
            ):
                found[name] = {k.arg for k in fields}
            case ast.keyword(arg="prompt", value=ast.Constant(name)):  # read_and_answer
                found |= {f"{name}_system": set(), f"{name}_user": {"passages", "question"}}
            case ast.Subscript(value=ast.Attribute(attr="prompts"), slice=ast.Constant(name)):
                found.setdefault(name, set())
            case ast.Subscript(value=ast.Attribute(attr="prompts"), slice=ast.JoinedStr([ast.Constant(name), *_])):
                found |= {f"{name}system": set(), f"{name}user": placeholders(f"{path.stem}/{name}user")}
    return found


def placeholders(place: str) -> set[str]:
    text = (PROMPTS / f"{place}.txt").read_text(encoding="utf-8")
    return {field for _, field, _, _ in string.Formatter().parse(text) if field is not None}


UNWATCHED = sorted({*registry.names(), *STRUCTURES.names()} - {method for method, *_ in CASES})


@pytest.mark.parametrize("owner", [*UNWATCHED, "query_entities"])
def test_the_source_names_and_fills_its_prompts(owner):
    files = [SRC / folder / f"{owner}.py" for folder in ("methods", "structures")]
    given = {name: fields for path in files if path.exists() for name, fields in fillings(path).items()}
    assert stems(owner) <= set(given) if owner != "query_entities" else given
    for name, fields in given.items():
        folder = owner if name in stems(owner) else "shared"
        assert name in stems(folder), f"{owner}: prompts/{folder}/{name}.txt is missing"
        if not name.endswith("_system"):
            assert placeholders(f"{folder}/{name}") == fields, name


def test_every_placeholder_is_filled_and_every_value_has_its_placeholder(watched):
    for method, prompts, _ in watched:
        for name in prompts.used:
            text = dict.__getitem__(prompts, name)
            for given in text.filled:
                fields = {field for _, field, _, _ in string.Formatter().parse(str(text)) if field is not None}
                assert fields == given, (method, name)


def test_no_placeholder_reaches_the_model(watched):
    names = {
        field
        for path in PROMPTS.rglob("*_user.txt")
        for _, field, _, _ in string.Formatter().parse(path.read_text(encoding="utf-8"))
        if field
    } | {"left", "open", "error"}
    assert {"question", "evidence", "register"} <= names
    for method, _, client in watched:
        text = str([m["content"] for b in client.bodies for m in b["messages"]])
        assert not [name for name in names if f"{{{name}}}" in text], method


def test_prompt_folders_match_methods_and_structures():
    folders = {p.name for p in PROMPTS.iterdir() if p.is_dir()}
    assert folders - NOT_METHODS == {*registry.names(), *STRUCTURES.names()} and folders >= NOT_METHODS
    for folder in folders:
        assert any((PROMPTS / folder).glob("*.txt")), folder


def test_evaluation_prompts_load_and_are_filled():
    from multihop.evaluation.judge import Prompts

    prompts = Prompts.load(PROMPTS)
    assert prompts.judge_user.format(answer="a", gold="g") and prompts.extract_user.format(question="q", answer="a")
    assert stems("judge") == {"system", "user", "retry"} and stems("extract") == {"system", "user"}


# -- no prompt text in python

FOLDERS = ("methods", "structures", "llm", "evaluation")
SOURCES = [p for d in FOLDERS for p in sorted((SRC / d).rglob("*.py"))]


def sentences(path: Path) -> list[str]:
    """String constants of a file that read like instructions, docstrings and error messages apart."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            skipped |= {id(n) for n in ast.walk(node)}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))  # docstrings, of attributes too
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith(
            ("Error", "Miss", "Overflow", "Refused", "Exceeded")
        ):
            skipped |= {id(n) for n in ast.walk(node)}
    texts = [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in skipped
    ]
    return [t for t in texts if len(t.split()) >= 12]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_no_prompt_text_in_python(path):
    other = ("make model", "`checkpoint`", "UNION ALL")  # advice and SQL
    assert [t for t in sentences(path) if not any(word in t for word in other)] == []


CONSTANT = {
    "lightrag/extract_system": {
        "tuple_delimiter", "completion_delimiter", "max_entity_records", "max_total_records"
    }
}  # fmt: skip
"""Placeholders that the same words fill for every passage."""


def test_the_fixed_part_of_every_call_comes_first():
    """A server's prefix cache then keeps it from one question to the next: nothing of a question stands in a system
    message, and the user message comes after it."""
    systems = [p for p in sorted(PROMPTS.rglob("*system.txt"))]
    assert len(systems) > 30
    for path in systems:
        name = path.relative_to(PROMPTS).with_suffix("").as_posix()
        # A system message that nothing fills may show JSON in braces.
        assert {f for f in placeholders(name) if f.isidentifier()} == CONSTANT.get(name, set()), name
