"""Methods by name: ``src/multihop/methods/<name>.py`` holds a class ``<Name>`` that says ``name = "<name>"``."""

from __future__ import annotations

from multihop import config
from multihop.errors import ConfigError
from multihop.methods.base import Method
from multihop.plugins import Plugins

METHODS = Plugins(
    "method",
    "multihop.methods",
    {"base", "registry", "agent", "register", "guidance", "reading", "documents", "operations", "chain"}
    | {"query_entities"},
)
names, find = METHODS.names, METHODS.find


def create(run: config.RunConfig, where: str) -> Method:
    """The run's method with its overrides. Raises ConfigError that names the key and the valid ones."""
    return METHODS.create(run.method, run.options, where)


def check(params: config.Params) -> None:
    """Every run of params.yaml can be made: called before anything runs."""
    problems = []
    for name, run in params.runs.items():
        where = f"params.yaml: {params.where(name)}"
        try:
            method = create(run, where)
        except ConfigError as e:
            problems.append(str(e))
            continue
        problems += [where + said for said in (*_training(params, run, method), *_structure(params, run, method))]
    if problems:
        raise ConfigError("\n".join(problems))


_TRAINED_AS = {"baselines": "baselines", "controller": "a name of controllers", "network": "a name of networks"}


def _training(params: config.Params, run: config.RunConfig, method: Method) -> list[str]:
    """What is wrong with ``trained``: the method's kind of training and the run's must agree."""
    kind, given = getattr(method, "trained_as", None), params.kind_of_training(run.trained)
    if kind and given != kind:
        return [f".trained: method {run.method} needs {_TRAINED_AS[kind]}, found {run.trained!r}"]
    if given and not kind:
        return [f": method {run.method} is not trained; it belongs under runs, without `trained`"]
    return []


def _structure(params: config.Params, run: config.RunConfig, method: Method) -> list[str]:
    """What is wrong with ``structure``: the entry must be of the kind that the method reads."""
    needs = getattr(method, "structure", None)
    found = params.structure(run.structure).structure if run.structure else None
    if needs == found:
        return []
    if needs:
        return [f".structure: method {run.method} needs an entry whose structure is {needs!r}, found {run.structure!r}"]
    return [f".structure: method {run.method} uses none; leave it out"]
