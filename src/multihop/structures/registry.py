"""Structures by name: ``src/multihop/structures/<name>.py`` holds a class that says ``name = "<name>"``."""

from __future__ import annotations

from multihop import config
from multihop.errors import ConfigError
from multihop.plugins import Plugins
from multihop.structures.base import Structure

STRUCTURES = Plugins(
    "structure",
    "multihop.structures",
    {
        "base",
        "registry",
        "ppr",
        "clustering",
        "steiner",
        "synonyms",
        "arrays",
        "gnn",
        "gnn_checkpoint",
        "gnn_fit",
        "lightrag_adapter",
        "lightrag_graph",
    },
)


def create(params: config.Params, name: str) -> Structure:
    """The structure of params.yaml's entry ``name``. Raises ConfigError that names the key and the valid ones."""
    entry = params.structure(name)
    return STRUCTURES.create(entry.structure, entry.options, f"params.yaml: {params.where_structure(name)}")


def check(params: config.Params) -> None:
    """Every structure of params.yaml can be made, and is built over what it needs."""
    problems = []
    for name in (*params.structures, *params.graphs):
        try:
            made = create(params, name)
        except ConfigError as e:
            problems.append(str(e))
            continue
        needs, over = getattr(made, "over", None), params.structure(name).over
        found = params.structure(over).structure if over else None
        if needs != found:
            problems.append(
                f"params.yaml: {params.where_structure(name)}.over: structure {made.name} is built over "
                + (f"one whose structure is {needs!r}, found {found!r}" if needs else "the corpus alone; leave it out")
            )
    if problems:
        raise ConfigError("\n".join(problems))
