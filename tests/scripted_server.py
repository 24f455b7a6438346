"""A scripted stand-in for a language model: an OpenAI-compatible server on loopback, and the small deterministic
"model" behind it.

In a test: ``with ScriptedServer(script) as server:`` and use ``server.url``. A script is a function of the request
body that returns :class:`Say` or :class:`Fail`. As a program, for subprocess tests:
``python tests/scripted_server.py --port 0 [--delay 0.05]`` prints ``listening <base address>``; ``GET /counts``
returns how often each request body was asked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """A completion. ``tool_calls``: (name, arguments as a string) pairs, native form."""

    content: str | None = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    finish: str = ""
    """Default: "tool_calls" with tool calls, else "stop"."""
    refusal: str | None = None
    usage: bool = True
    """False: the field is missing, as some servers leave it out."""


@dataclass(frozen=True)
class Fail:
    """An error status, or (``drop``) a connection that is closed without an answer."""

    status: int = 500
    code: str = ""
    message: str = "scripted failure"
    drop: bool = False


Script = Callable[[Body], "Say | Fail"]
DROP = Fail(drop=True)
OVERFLOW = Fail(400, "context_length_exceeded", "This model's maximum context length is 8000 tokens; you sent 9000.")
QUOTA = Fail(429, "insufficient_quota", "You exceeded your current quota.")


# -- the little model: a plausible agent, register keeper, reader and judge, by rules alone


def kind_of(body: Body) -> str:
    """agent, initialisation, update, verdict, judge, extract, reader or chat (a plain answer)."""
    form = (body.get("response_format") or {}).get("json_schema", {}).get("name")
    if form in ("initialisation", "update", "verdict"):
        return form
    if form == "action" or body.get("tools"):
        return "agent"
    last = body["messages"][-1]["content"] or ""
    if last.rstrip().endswith("Verdict:"):
        return "judge"
    if last.rstrip().endswith("\nAnswer:"):
        return "extract"
    return "reader" if '"Answer: ..."' in last else "chat"


def little_model(body: Body) -> Say:
    """Searches twice, reads, answers; settles the active item with the first evidence that shares a word."""
    return _ROLES[kind_of(body)](body)


def act(body: Body, tool: str, argument: str | list[str]) -> Say:
    """A tool call in whichever form ``body`` asks for."""
    key = {"semantic_search": "query", "keyword_search": "keywords"}.get(tool, "chunk_ids")
    if body.get("tools"):
        value = argument if key == "query" or isinstance(argument, list) else [argument]
        return Say(None, ((tool, json.dumps({key: value})),))
    text = ", ".join(argument) if isinstance(argument, list) else argument
    action = {"known": "", "missing": "a fact", "enough": False, "tool": tool, "argument": text}
    return Say(json.dumps(action))


def conclude(body: Body, text: str) -> Say:
    """An agent's final answer in whichever form ``body`` asks for."""
    if body.get("tools"):
        return Say(text)
    return Say(json.dumps({"known": "it all", "missing": "nothing", "enough": True, "answer": text}))


def turns(body: Body) -> int:
    """How many turns the assistant has had."""
    return sum(m["role"] == "assistant" for m in body["messages"])


def question_of(body: Body) -> str:
    texts = [m["content"] or "" for m in body["messages"] if m["role"] == "user"]
    found = re.findall(r"^Question: (.*)$", "\n".join(texts), re.MULTILINE)
    return found[-1] if found else texts[-1]


def shown_ids(body: Body) -> list[str]:
    """Chunk ids in the order in which tools or prompts showed them."""
    text = "\n".join(m["content"] or "" for m in body["messages"] if m["role"] in ("user", "tool"))
    return list(dict.fromkeys(re.findall(r"\[([pc]\d+)\]", text)))


def _agent(body: Body) -> Say:
    question, turn = question_of(body), turns(body)
    hints = re.findall(r"^Search for R\d+: (.*)$", body["messages"][-1]["content"] or "", re.MULTILINE)
    if turn == 0 or (turn < 4 and hints):
        return act(body, "semantic_search", hints[-1] if hints else question)
    if turn == 1:
        names = re.findall(r"(?<!^)\b[A-ZÀ-Þ]\w+", question)
        return act(body, "keyword_search", names or question.split()[-1:])
    if turn == 2 and shown_ids(body):
        return act(body, "read_chunk", shown_ids(body)[:2])
    return conclude(body, f"{_evidence(body)} [{(shown_ids(body) or ['p0'])[0]}]")


def _evidence(body: Body) -> str:
    lines = re.findall(r"\[[pc]\d+\] (\S.*)", "\n".join(m["content"] or "" for m in body["messages"][1:]))
    return " ".join(lines[-1].split()[:8]) if lines else "unknown"


def _initialisation(body: Body) -> Say:
    words = question_of(body).rstrip("?").split()
    half = max(len(words) // 2, 1)
    items = [
        {"id": "R1", "question": " ".join(words[half:]) or "What is it?", "depends_on": []},
        {"id": "R2", "question": f"{' '.join(words[:half])} R1?", "depends_on": ["R1"]},
    ]
    return Say(json.dumps({"requirements": items, "active_id": "R1"}))


def _update(body: Body) -> Say:
    text = body["messages"][-1]["content"]
    items = re.findall(r"^(R\d+) \(active\) (.*)$", text, re.MULTILINE)
    for item_id, question in items:
        words = {w for w in re.findall(r"\w+", question.lower()) if len(w) > 3}
        for chunk, evidence in re.findall(r"^\[([pc]\d+)\] (.*)$", text, re.MULTILINE):
            if words & set(re.findall(r"\w+", evidence.lower())):
                note = " ".join(evidence.split()[:8])
                return settle(item_id, [chunk], note)
    return Say(json.dumps({"updates": [], "new_requirements": []}))


def settle(item_id: str, chunks: list[str], note: str = "", status: str = "resolved", reason: str = "") -> Say:
    """An update of one item."""
    change = {"id": item_id, "note": note, "supporting_chunk_ids": chunks, "status": status, "reason": reason}
    return Say(json.dumps({"updates": [change], "new_requirements": []}))


def _reader(body: Body) -> Say:
    text = _evidence(body)
    return Say(f"Because: {text}\nAnswer: {text}")


def _judge(body: Body) -> Say:
    found = re.search(r"Gold: (.*)\nGenerated: (.*)", body["messages"][-1]["content"], re.DOTALL)
    right = bool(found) and found[1].strip().lower() in found[2].lower()
    return Say("correct" if right else "incorrect")


def _extract(body: Body) -> Say:
    found = re.search(r"Response: (.*)", body["messages"][-1]["content"])
    return Say(" ".join(found[1].split()[:3]) if found else "no answer")


_ROLES: dict[str, Callable[[Body], Say]] = {
    "agent": _agent,
    "initialisation": _initialisation,
    "update": _update,
    "verdict": lambda body: Say('{"stated": "", "supported": true}'),
    "judge": _judge,
    "extract": _extract,
    "reader": _reader,
    "chat": lambda body: Say(f"{_evidence(body)} [{(shown_ids(body) or ['p0'])[0]}]"),
}


def in_turn(outcomes: Iterable[Say | Fail | Script], then: Script = little_model) -> Script:
    """A script that plays ``outcomes`` one a request, in order of arrival, then goes on with ``then``."""
    queue, lock = list(outcomes), threading.Lock()

    def script(body: Body) -> Say | Fail:
        with lock:
            outcome = queue.pop(0) if queue else then
        return outcome(body) if callable(outcome) else outcome

    return script


def for_kind(then: Script = little_model, **scripts: Say | Fail | Script) -> Script:
    """A script with its own outcome for some kinds of request: ``for_kind(update=Say("prose"))``."""

    def script(body: Body) -> Say | Fail:
        outcome = scripts.get(kind_of(body), then)
        return outcome(body) if callable(outcome) else outcome

    return script


# -- completions


def body_hash(body: Body) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def completion(body: Body, said: Say) -> dict[str, Any]:
    """The JSON of a chat completion; the same for the same body."""
    calls = [
        {"id": f"call_{turns(body)}_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(said.tool_calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": said.refusal}
    if calls:
        message["tool_calls"] = calls
    result: dict[str, Any] = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [
            {"index": 0, "message": message, "finish_reason": said.finish or ("tool_calls" if calls else "stop")}
        ],
    }
    if said.usage:
        prompt = sum(len((m.get("content") or "").split()) for m in body["messages"])
        written = len((said.content or "").split()) + sum(len(a.split()) + 1 for _, a in said.tool_calls)
        result["usage"] = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    return result


# -- the server


@dataclass
class ScriptedServer:
    """A server in a thread. ``delay``: seconds before each answer."""

    script: Script = little_model
    port: int = 0
    delay: float = 0.0
    key: str | None = None
    """Where set, every other key is refused with 401."""
    models: tuple[str, ...] | None = None
    """Where set, every other model is a 404."""
    bodies: list[Body] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    """Like ``counts``, of the requests whose answer was written out."""

    def __enter__(self) -> ScriptedServer:
        self._lock = threading.Lock()
        server = self

        class Handler(self.handler()):
            owner = server

        self._http = _Http(("127.0.0.1", self.port), Handler)
        self._http.handle_error = lambda request, address: None  # a client that was killed is no news
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def count_answer(self, body: Body) -> None:
        with self._lock:
            self.answered[body_hash(body)] += 1

    def handler(self) -> type[Handler]:
        return Handler

    def reply(self, body: Body, authorization: str) -> Say | Fail:
        with self._lock:
            self.bodies.append(body)
            self.counts[body_hash(body)] += 1
        if self.delay:
            time.sleep(self.delay)
        if self.key is not None and authorization != f"Bearer {self.key}":
            return Fail(401, "invalid_api_key", "Incorrect API key provided.")
        if self.models is not None and body["model"] not in self.models:
            return Fail(404, "model_not_found", f"The model {body['model']!r} does not exist.")
        return self.script(body)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class Handler(BaseHTTPRequestHandler):
    owner: ScriptedServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self._send(200, dict(self.owner.counts) if self.path == "/counts" else {"object": "list", "data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(body, self.owner.reply(body, self.headers.get("Authorization", "")))

    def answer(self, body: Body, outcome: Say | Fail) -> None:
        if isinstance(outcome, Say):
            self._send(200, completion(body, outcome))
            self.owner.count_answer(body)
        elif outcome.drop:
            self.drop()
        else:
            self._send(
                outcome.status, {"error": {"message": outcome.message, "code": outcome.code, "type": "scripted"}}
            )

    def drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    options = parser.parse_args()
    with ScriptedServer(port=options.port, delay=options.delay) as server:
        print(f"listening {server.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
