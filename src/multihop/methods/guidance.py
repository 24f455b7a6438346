"""The register's guidance: what an agent is told before its turns, and how the register follows what it finds.

Paper 1, §3.2-3.4, App. A.2-A.5 and B. The agent issues every search (App. G). Choices that the paper leaves open:
docs/deviations.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict, Field

from multihop.methods.agent import AgentParams, final_answer, record
from multihop.methods.base import Tools
from multihop.methods.register import Initialisation, Item, ItemUpdate, Register, Update, brief, material
from multihop.retrieval.tokens import count_tokens, truncate_tokens
from multihop.retrieval.tools import AgentTools, ToolResult
from multihop.types import Answer, Question

SEED_CHARACTERS = 1200
"""Each seed chunk is shown to the initialisation up to this length."""
VERDICT_TOKENS = 80
"""Ceiling of one verifier's reply."""


class Verdict(BaseModel):
    """The verifier's answer: the words that settle it come first, so that the verdict rests on them."""

    model_config = ConfigDict(extra="ignore")

    stated: str = Field(default="", json_schema_extra={"maxLength": 120})
    supported: bool


class RegisterParams(AgentParams):
    """ExecutionRAG's options; their defaults are the paper's method, each other value an ablation or a control."""

    dedup: bool = True
    use_register: bool = True
    """False: no seed, no register; what stays is A-RAG (with the nudge, where it is on)."""
    seed_evidence: bool = True
    """False: the register is built from the question alone (Table 2)."""
    updates: bool = True
    """False: the register is built once and never updated (Table 2)."""
    query_with_question: bool = True
    """Whether the composed query holds the question too (eq. 5)."""
    warmup_loops: int = Field(1, ge=0)
    """Loops before the register is first shown to the agent (A.3)."""
    full_replay: bool = False
    """Show the whole register before every turn instead of what changed (App. B's 40 % is measured against this)."""
    verify: bool = False
    """Ask apart, before an item is resolved, whether its passages state its answer; if not, it stays open (outlook)."""
    nudge_at: float | None = Field(0.8, gt=0, le=1)
    """Share of the loop budget at which the agent is asked to conclude; null: never."""
    reminders: int = Field(1, ge=0)
    """How often an agent that answers with open items is sent back to them."""
    register_tokens: int = Field(16384, gt=0)
    """Ceiling of one register reply, tokens."""
    evidence_tokens: int = Field(6000, gt=0)
    """Most new evidence shown to one update, o200k tokens."""
    final_tokens: int = Field(8000, gt=0)
    """Most passage text shown to the final answer, o200k tokens."""


class Nudge:
    """The soft warning at 80 % of the loop budget, and nothing else."""

    def __init__(self, tools: Tools, params: RegisterParams):
        self.tools = tools
        self.params = params
        self.nudged = False

    async def before_turn(self, step: int) -> list[str]:
        due = self.params.nudge_at and step >= math.ceil(self.params.nudge_at * self.params.max_loops)
        if not due or self.nudged:
            return []
        self.nudged = True
        self.tools.trace.event(step, "nudge")
        left = self.params.max_loops - step + 1
        return [self.tools.prompts["nudge"].format(left=left)]

    async def after_tools(self, step: int, results: list[ToolResult]) -> bool:
        return False

    def reminder(self, step: int) -> str | None:
        return None

    def forced(self, step: int) -> None:
        pass

    async def final(self, step: int) -> Answer:
        raise AssertionError("a nudge never ends the search")


class RegisterGuide(Nudge):
    """Keeps the register for one question and turns it into guidance."""

    def __init__(self, question: Question, tools: Tools, params: RegisterParams, search: AgentTools):
        super().__init__(tools, params)
        self.question = question
        self.search = search
        self.model = tools.llm("register")
        self.register = Register()
        self.shown: dict | None = None
        """The items as the agent last saw them; None before the first injection."""
        self.read_before: set[str] = set()
        self.reminded = 0
        self.rebuilt = False

    async def start(self) -> None:
        """Seed retrieval (eq. 3) and S_0 (eq. 4)."""
        evidence = ""
        if self.params.seed_evidence:
            result = self.search.call("semantic_search", {"query": self.question.text, "top_k": self.params.k}, 0)
            record(self.tools, 0, "seed", result)
            evidence = "\n\n".join(f"[{c}] {self.tools.text(c)[:SEED_CHARACTERS]}" for c in result.chunk_ids)
        await self._build(0, evidence)

    async def _build(self, step: int, evidence: str) -> None:
        system = self.tools.prompts["init_system" if evidence else "init_question_only_system"]
        user = self.tools.prompts["init_user"].format(question=self.question.text, evidence=evidence or "(none)")
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        reply = await self.model.json(messages, Initialisation, max_tokens=self.params.register_tokens)
        if reply.error:
            self.tools.trace.event(step, "update_failed", why=f"initialisation: {reply.error}")
        self.register = Register.build(reply.value, self.question.text)
        self.tools.trace.event(step, "register", items=self.register.snapshot(), source="init")

    async def before_turn(self, step: int) -> list[str]:
        return [*self._injection(step), *await super().before_turn(step)]

    def _injection(self, step: int) -> list[str]:
        if step <= self.params.warmup_loops:
            return []
        items = self.register.items
        full, changed = self._full("[Register]"), [i for i in items.values() if self._changed(i)]
        if self.shown is None or self.params.full_replay:
            text, kind = full, "initial" if self.shown is None else "full"
        else:
            text, kind = (self._delta(changed), "delta") if changed else ("", "none")
        # What replaying the whole register would have cost: the paper's 40 % claim is measured from these two.
        self.tools.trace.event(step, "inject", inject=kind, tokens=count_tokens(text), full_tokens=count_tokens(full))
        if not text:
            return []
        self.shown = dict(items)
        return [text]

    def _changed(self, item: Item) -> bool:
        return material((self.shown or {}).get(item.id), item)

    def _full(self, tag: str) -> str:
        return f"{tag}\n" + "\n".join(self._line(i) for i in self.register.items.values()) + self._next_search()

    def _delta(self, changed: list) -> str:
        still_open = ", ".join(i.id for i in self.register.open_items()) or "none"
        return (
            "[Progress]\n" + "\n".join(self._line(i) for i in changed) + f"\nOpen: {still_open}" + self._next_search()
        )

    def _line(self, item) -> str:
        extra = item.reason if item.status == "retired" else item.note
        return f"{item.id} ({item.status}) {item.question}" + (f" -> {brief(extra)}" if extra else "")

    def _next_search(self) -> str:
        if self.register.active is None:
            return ""
        query = self.register.compose(self.question.text, self.params.query_with_question)
        return f"\nSearch for {self.register.active.id}: {query}"

    async def after_tools(self, step: int, results: list[ToolResult]) -> bool:
        if not self.params.updates:
            return False
        evidence = self._new_evidence(results)
        before = dict(self.register.items)
        if evidence:
            await self._update(step, evidence)
        else:
            self.tools.trace.event(step, "update_skipped")
        if self.register.void() and not self.rebuilt:
            self.rebuilt = True
            self._log_changes(step, before)
            await self._build(step, evidence or "(nothing new)")
            return False
        active = next((i for i in before.values() if i.status == "active"), None)
        progressed = active is not None and material(active, self.register.items[active.id])
        self.register.select(progressed)
        self._log_changes(step, before)
        return self.register.ready()

    def _log_changes(self, step: int, before: dict[str, Item]) -> None:
        for transition in self.register.transitions(before):
            self.tools.trace.event(step, "transition", **transition)
        if self.register.items != before:
            self.tools.trace.event(step, "register", items=self.register.snapshot(), source="update")

    def _new_evidence(self, results: list[ToolResult]) -> str:
        """What this loop brought: read chunks in full, search hits as their matched sentences; never what was
        read in an earlier loop (App. B)."""
        parts: dict[str, str] = {}
        for result in results:
            for chunk_id, text in result.evidence:
                if chunk_id not in self.read_before and len(text) > len(parts.get(chunk_id, "")):
                    parts[chunk_id] = text
        self.read_before.update(c for result in results if result.kind == "read" for c in result.new)
        return "\n".join(f"[{c}] {text}" for c, text in _fitting(parts.items(), self.params.evidence_tokens))

    async def _update(self, step: int, evidence: str) -> None:
        table = "\n".join(self._line(i) for i in self.register.items.values())
        messages = self.tools.messages("update", question=self.question.text, register=table, evidence=evidence)
        reply = await self.model.json(messages, Update, max_tokens=self.params.register_tokens)
        if reply.value is None:
            self.tools.trace.event(step, "update_failed", why=reply.error)
            return
        update = await self._verified(step, reply.value) if self.params.verify else reply.value
        _, notes = self.register.apply(update, set(self.tools.trace.retrieved))
        if notes:
            self.tools.trace.event(step, "guards", notes=notes)

    async def _verified(self, step: int, update: Update) -> Update:
        """The update in which an item whose own passages don't bear it out keeps its status; note and passages stay."""
        changes = []
        for change in update.updates:
            item = self.register.items.get(change.id)
            if change.status == "resolved" and item is not None and not await self._supported(step, item, change):
                change = change.model_copy(update={"status": item.status})
            changes.append(change)
        return update.model_copy(update={"updates": changes})

    async def _supported(self, step: int, item: Item, change: ItemUpdate) -> bool:
        """Whether the item's passages state what the update takes for settled. No verdict counts as no."""
        listed = dict.fromkeys((*item.passages, *(c for c in change.supporting_chunk_ids if self._surfaced(c))))
        if not listed or item.status in ("resolved", "retired"):
            return True  # the register's own guards decide
        shown = _fitting(((c, self.tools.text(c)) for c in listed), self.params.evidence_tokens)
        passages = "\n\n".join(f"[{c}] {text}" for c, text in shown)
        messages = self.tools.messages("verify", passages=passages, question=item.question, note=brief(change.note))
        reply = await self.tools.llm("verifier").json(messages, Verdict, max_tokens=VERDICT_TOKENS)
        supported = bool(reply.value and reply.value.supported)
        self.tools.trace.event(step, "verify", id=item.id, passages=list(listed), supported=supported, why=reply.error)
        return supported

    def _surfaced(self, chunk_id: str) -> bool:
        return chunk_id in self.tools.trace.retrieved

    def reminder(self, step: int) -> str | None:
        """Once, where the agent answers while items are open; silent without updates, when the register can't know."""
        open_items = self.register.open_items()
        last = step >= self.params.max_loops  # no loop is left in which to search
        if last or not open_items or not self.params.updates or self.reminded >= self.params.reminders:
            self._close(step)
            return None
        self.reminded += 1
        self.tools.trace.event(step, "reminder", open=[i.id for i in open_items])
        lines = "\n".join(self._line(i) for i in open_items)
        return self.tools.prompts["reminder"].format(open=lines) + self._next_search()

    def _close(self, step: int) -> None:
        self.tools.trace.event(step, "final_register", items=self.register.snapshot())

    def forced(self, step: int) -> None:
        self._close(step)

    async def final(self, step: int) -> Answer:
        """The answer from register and supporting passages: one call, tools off (§3.4)."""
        self._close(step)
        table = "\n".join(self._line(i) for i in self.register.items.values())
        supporting = dict.fromkeys(c for i in self.register.items.values() for c in i.passages)
        shown = dict(_fitting(((c, self.tools.text(c)) for c in supporting), self.params.final_tokens))
        passages = "\n\n".join(f"[{c}] {text}" for c, text in shown.items())
        messages = self.tools.messages("final", question=self.question.text, register=table, passages=passages)
        reply = await self.tools.llm().chat(messages, max_tokens=self.params.answer_tokens)
        return final_answer(reply.text, "ready", cited=tuple(shown))


def _fitting(parts: Iterable[tuple[str, str]], budget: int) -> Iterator[tuple[str, str]]:
    """(chunk id, text) pairs up to ``budget`` o200k tokens; the one that passes it is cut, the rest left out."""
    for chunk_id, text in parts:
        text = truncate_tokens(text, budget)
        if not text:
            return
        budget -= count_tokens(text)
        yield chunk_id, text
