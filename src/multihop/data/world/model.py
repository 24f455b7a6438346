"""The finished world: passages, and the facts with the place where each is stated."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from multihop.data.world.entities import Entity, Fact
from multihop.data.world.graph import Graph
from multihop.data.world.prose import Writer
from multihop.errors import DataError

LEAST_PASSAGES = 60


@dataclass(slots=True)
class World:
    """``facts`` holds the stated facts only; each is stated in exactly one sentence of one passage."""

    seed: int
    passages: list[tuple[str, str]]
    """(title, text), the text being the sentences joined with one space."""
    sentences: list[list[str]]
    """The sentences of each passage."""
    entities: list[Entity]
    about: list[int]
    """The id of the entity that each passage is about."""
    facts: list[Fact]
    forward: dict[tuple[int, str], Fact] = field(default_factory=dict)
    """(subject, relation) -> the fact: every relation has one object."""
    inverse: dict[tuple[str, int], list[Fact]] = field(default_factory=dict)
    """(relation, object) -> the facts with that object."""
    by_relation: dict[str, list[Fact]] = field(default_factory=dict)
    mentions: dict[int, list[int]] = field(default_factory=dict)
    """Entity -> the passages that are about it or name it."""
    same_kind: dict[str, list[int]] = field(default_factory=dict)
    """Kind -> the passages about entities of that kind."""


def build_world(seed: int, passages: int) -> World:
    """A world with ``passages`` passages (rarely one or two fewer), the same for the same arguments.

    Raises DataError below 60 passages: so small a world has no two-step facts worth asking for.
    """
    if passages < LEAST_PASSAGES:
        raise DataError(f"demo world: {passages} passages asked, but a world needs at least {LEAST_PASSAGES}")
    rng = random.Random(f"world {seed}")
    graph = Graph(rng, passages)
    writer = Writer(graph, rng)
    written: list[tuple[Entity, list[str]]] = []
    for page in graph.pages:
        if sentences := writer.write(page, len(written)):
            written.append((page.entity, sentences))
    spare = [
        p for p in graph.pages if p.entity.kind != "office" and sum(f.passage is None for f in p.facts) >= 3
    ]
    rng.shuffle(spare)
    for page in spare:
        if len(written) >= passages:
            break
        # a passage that had no room for a first excerpt never gets a second
        if any(f.passage is not None for f in page.facts):
            if sentences := writer.write(page, len(written), second=True):
                written.append((page.entity, sentences))
    return _world(seed, graph, written, rng)


def _world(seed: int, graph: Graph, written: list[tuple[Entity, list[str]]], rng: random.Random) -> World:
    order = list(range(len(written)))
    rng.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    facts = [f for f in graph.facts if f.passage is not None]
    for f in facts:
        f.passage = place[f.passage]
    sentences = [written[i][1] for i in order]
    about = [written[i][0] for i in order]
    passages = [(e.title, " ".join(s)) for e, s in zip(about, sentences, strict=True)]
    world = World(seed, passages, sentences, graph.entities, [e.id for e in about], facts)
    inverse, mentions, kinds = defaultdict(list), defaultdict(set), defaultdict(list)
    relations = defaultdict(list)
    for i, e in enumerate(about):
        mentions[e.id].add(i)
        kinds[e.kind].append(i)
    for f in facts:
        world.forward[f.subject, f.relation] = f
        relations[f.relation].append(f)
        mentions[f.subject].add(f.passage)
        if f.object is not None:
            inverse[f.relation, f.object].append(f)
            mentions[f.object].add(f.passage)
    world.inverse, world.by_relation, world.same_kind = dict(inverse), dict(relations), dict(kinds)
    world.mentions = {e: sorted(where) for e, where in mentions.items()}
    return world
