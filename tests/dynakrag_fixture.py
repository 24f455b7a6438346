"""A controller that says what a test wants, and a scripted model that knows DynaKRAG's three control calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scripted_server import Say

from multihop.controller.model import Gate

READ = Say("Because: it says so.\nAnswer: Tomas Reed")


@dataclass
class FakeController:
    """Scores by action and a gate by step; keeps the features it was shown."""

    scores: dict[str, float] = field(default_factory=lambda: {"R": 0.1, "B": 0.5, "G": 0.9, "W": 0.2, "S": 0.7})
    go_on: Callable[[list[float]], bool] = lambda vector: True
    tokens: dict[str, float] = field(default_factory=dict)
    seen: list[list[float]] = field(default_factory=list)

    @property
    def expected_tokens(self) -> dict[str, float]:
        return self.tokens

    def advantage(self, vector, actions, action_features) -> dict[str, float]:
        self.seen.append(list(vector))
        assert len(action_features) == len(actions)
        return {a: self.scores.get(a, 0.0) for a in actions}

    def gate(self, vector, vote="majority") -> Gate:
        self.seen.append(list(vector))
        go_on = self.go_on(vector)
        return Gate(go_on, 0.9 if go_on else 0.1, 0.2, 0.3, 3 if go_on else 0)


def kind(body: dict[str, Any]) -> str:
    """Which of DynaKRAG's calls a request is: check, rewrite, compress or read."""
    last = body["messages"][-1]["content"]
    for name, mark in (("check", "Do the passages give"), ("compress", "Which sentences?"), ("rewrite", "Last query:")):
        if mark in last:
            return name
    return "read"


def script(
    check: Any = ({"found": "", "sufficient": False, "missing": "the mayor of Marrow Bay town"},),
    rewrite: str = "mayor of Marrow Bay",
    compress: Any = None,
    read: Say = READ,
) -> Callable[[dict[str, Any]], Say]:
    """Replies by kind of call; ``check`` in turn, the last one again and again; strings go out as they are."""
    asked = {"check": 0}

    def reply(body: dict[str, Any]) -> Say:
        what = kind(body)
        if what == "check":
            value = check[min(asked["check"], len(check) - 1)]
            asked["check"] += 1
        elif what == "compress":
            value = {"keep": [1, 2]} if compress is None else compress
        elif what == "rewrite":
            value = rewrite
        else:
            return read
        return Say(value if isinstance(value, str) else json.dumps(value))

    return reply
