"""The scripted server with OpenAI's Batch API: /files, /batches, /files/{id}/content. Answers as it does one by one."""

from __future__ import annotations

import email
import email.policy
import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scripted_server import Body, Handler, Say, ScriptedServer, completion


@dataclass
class BatchServer(ScriptedServer):
    """``polls``: looks at a batch until it is done. ``skip``: whether a batch leaves a body unanswered."""

    polls: int = 1
    skip: Callable[[Body], bool] = lambda body: False
    ends_as: str = "completed"
    lose_creations: int = 0
    """The answers to so many creations are dropped, though the batch was made."""
    broken: str = ""
    """What is answered with 500: "upload", "create", "poll" or "content"."""
    refuses: str = ""
    """What is answered with 400."""
    may_create: threading.Event = field(default_factory=threading.Event)
    """Cleared, a creation waits; ``creating`` says that one does."""
    creating: threading.Event = field(default_factory=threading.Event)
    lists: int = 0
    """How often all batches were asked for."""
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    in_batches: list[Body] = field(default_factory=list)
    """Bodies that a batch answered, each as often as it was paid for."""
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.may_create.set()

    def handler(self) -> type[Handler]:
        return BatchHandler

    def add_file(self, content: bytes) -> dict[str, Any]:
        name = f"file-{next(self.numbers)}"
        self.files[name] = content
        about = {"object": "file", "created_at": 0, "filename": "f", "purpose": "batch", "status": "processed"}
        return about | {"id": name, "bytes": len(content)}

    def add_batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        batch = {"id": f"batch_{next(self.numbers)}", "object": "batch", "created_at": 0, "status": "in_progress",
                 "errors": None, "output_file_id": None, "error_file_id": None, "left": self.polls} | asked  # fmt: skip
        self.batches[batch["id"]] = batch
        return batch

    def look(self, name: str) -> dict[str, Any]:
        """A batch, a poll nearer to its end."""
        batch = self.batches[name]
        batch["left"] -= 1
        if batch["left"] < 0 and batch["status"] == "in_progress":
            batch["status"] = self.ends_as
            if self.ends_as != "failed":
                batch["output_file_id"] = self.add_file(self.results(self.files[batch["input_file_id"]]))["id"]
        return batch

    def results(self, lines: bytes) -> bytes:
        rows = []
        for line in map(json.loads, reversed(lines.splitlines())):  # the order of results is anyone's
            if not self.skip(line["body"]):
                self.in_batches.append(line["body"])
                said = self.script(line["body"])
                good = isinstance(said, Say)
                body = completion(line["body"], said) if good else {"error": {"message": said.message}}
                response = {"status_code": 200 if good else said.status, "body": body}
                rows.append({"custom_id": line["custom_id"], "response": response, "error": None})
        return "".join(json.dumps(row) + "\n" for row in rows).encode()


class BatchHandler(Handler):
    owner: BatchServer

    def fails(self, what: str) -> bool:
        for status, failing in ((500, self.owner.broken), (400, self.owner.refuses)):
            if what == failing:
                self._send(status, {"error": {"message": f"{what} fails"}})
                return True
        return False

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].split("/")[2:]
        if len(parts) > 1 and self.fails("poll" if parts[0] == "batches" else "content"):
            return
        if parts == ["batches"]:
            self.owner.lists += 1
            found = list(reversed(self.owner.batches.values()))
            self._send(200, {"object": "list", "data": found, "has_more": False})
        elif parts[0] == "batches":
            self._send(200, self.owner.look(parts[1]))
        elif parts[0] == "files":
            data = self.owner.files[parts[1]]
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()
        else:
            super().do_GET()

    def do_POST(self) -> None:
        kind = self.path.split("/")[2]
        if kind not in ("files", "batches"):
            return super().do_POST()
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.fails("upload" if kind == "files" else "create"):
            return None
        if kind == "files":
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            form = email.message_from_bytes(head + data, policy=email.policy.HTTP)
            [content] = [part.get_payload(decode=True) for part in form.iter_parts() if part.get_filename()]
            return self._send(200, self.owner.add_file(content))
        self.owner.creating.set()
        self.owner.may_create.wait(timeout=60)
        batch = self.owner.add_batch(json.loads(data))
        if self.owner.lose_creations:
            self.owner.lose_creations -= 1
            return self.drop()
        return self._send(200, batch)
