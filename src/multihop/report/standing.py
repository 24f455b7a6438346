"""How a project's settings stand to a paper's own: which of them plays which role, and what differs.

The roles of a paper's settings differ in one thing: the embedder (paper 1) or the backbone (paper 2). A setting with
the paper's own embedder or backbone takes that role; the roles left over go to the other settings, in the order of
params.yaml, as stand-ins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multihop.report.expected import OwnRole

if TYPE_CHECKING:
    from multihop.report.load import Report


def cast(report: Report) -> dict[str, str | None]:
    """Role -> the setting that plays it; None where none is left."""
    own = report.expected.own
    free: dict[str, str] = {}
    for name in report.params.settings:
        free.setdefault(_varied(report, name), name)
    left = list(free.values())
    played: dict[str, str | None] = dict.fromkeys(own.roles)
    for role, wanted in own.roles.items():
        if found := next((s for s in left if same(report, own.varies, s, wanted)), None):
            played[role] = found
            left.remove(found)
    for role in own.roles:
        if played[role] is None and left:
            played[role] = left.pop(0)
    return played


def _varied(report: Report, setting: str) -> str:
    """What the roles differ in, of one setting."""
    s = report.params.settings[setting]
    return s.embedder if report.expected.own.varies == "embedder" else report.reader(setting)


def same(report: Report, what: str, setting: str, wanted: OwnRole) -> bool:
    """Whether a setting has the role's own embedder or backbone."""
    if what == "backbone":
        return same_model(report.reader(setting), wanted.reader)
    embedder = report.params.embedders[report.params.settings[setting].embedder]
    name, preset, model = wanted.embedder.lower(), (embedder.preset or "").lower(), (embedder.model or "").lower()
    return name in model or bool(preset and preset in name)


def same_model(model: str, wanted: str) -> bool:
    """A model id is the wanted one, or a dated release of it; an owner before a slash is of no account."""
    name, wanted = model.rpartition("/")[2].lower(), wanted.lower()
    return name == wanted or name.startswith(f"{wanted}-20")


def differences(
    report: Report, dataset: str | None = None, role: str | None = None, data_only: bool = False
) -> list[str]:
    """What is not the paper's own, in a few words each; empty when the setting is the paper's.

    ``dataset`` and ``role`` narrow it to one cell's; None asks for all. ``data_only``: for numbers that no model and no
    limit has a part in.
    """
    own = report.expected.own
    roles = [r for r in ([role] if role else own.roles) if report.setting(r)]
    found = ["a generated world, not the benchmarks"] if report.is_demo else []
    if data_only:
        return found + _counts(report, [dataset] if dataset else report.datasets)
    for r in roles:
        setting, wanted = report.setting(r), own.roles[r]
        if not same(report, "backbone", setting, wanted):
            found.append(f"reader {report.reader(setting)} in place of {wanted.reader}")
    if own.judge and not same_model(report.judge, own.judge):
        found.append(f"judge {report.judge} in place of {own.judge}")
    found += _counts(report, [dataset] if dataset else report.datasets)
    for r in roles:
        setting, wanted = report.setting(r), own.roles[r]
        if not same(report, "embedder", setting, wanted):
            name = report.label_setting(setting) if own.varies == "embedder" else _embedder(report, setting)
            found.append(f"{name} in place of {wanted.embedder}")
    for limit in own.limits:
        values = sorted({v for v in report.param(limit.param) if v is not None and v != limit.value})
        found += [f"{limit.label} {v} instead of {limit.value:g}" for v in values]
    return list(dict.fromkeys([*found, *_training(report)]))


def _embedder(report: Report, setting: str) -> str:
    """The label of the setting that is named after this one's embedder, else the embedder's own name."""
    name = report.params.settings[setting].embedder
    namesake = report.params.settings.get(name)
    return report.label_setting(name) if namesake and namesake.embedder == name else name


def _counts(report: Report, datasets: list[str]) -> list[str]:
    """How many questions are scored, where that is not the paper's number."""
    ours = {d: report.questions(d) for d in datasets if report.questions(d)}
    wanted = {d: report.expected.own.questions.get(d) for d in ours}
    if ours == wanted:
        return []
    shown = (" / ".join(dict.fromkeys(f"{n:,}" for n in counts.values() if n)) for counts in (ours, wanted))
    return ["n = {} per dataset instead of {}".format(*shown)]


def _training(report: Report) -> list[str]:
    """How the learned method was trained, by its cards, where that is not as in the paper."""
    wanted = report.expected.own.training
    run = report.params.runs.get(wanted.run) if wanted else None
    if not run or not run.trained:
        return []
    by = {d: report.served_by(run.trained, d) for d in report.datasets}
    folders = report.trained.get(run.trained, {})
    cards = [folders[d]["card"] for d in dict.fromkeys(by.values()) if "card" in folders.get(d, {})]
    questions, trainings = ({c["questions"] for c in cards}, {len(c["trainings"]) for c in cards})
    found = [f"{n:,} train questions instead of {wanted.questions:,}" for n in sorted(questions - {wanted.questions})]
    found += [f"{n} trainings instead of {wanted.trainings}" for n in sorted(trainings - {wanted.trainings})]
    for trained_on in dict.fromkeys(by.values()):
        served = [report.label_dataset(d) for d, own in by.items() if own == trained_on != d]
        if served:
            name = report.label_dataset(trained_on)
            found.append(f"{', '.join(served)} served by a controller trained on {name}")
    return found


def note(report: Report) -> str:
    """One line to print beside every table and figure: what is not the paper's own setting."""
    params = report.params
    facts: list[Any] = [f"corpus {' / '.join(sorted({s.corpus for s in params.settings.values()}))}"]
    if report.expected.own.judge:
        facts.append(f"judges: {report.judge} and a string rule")
    found = differences(report)
    if not found:
        readers = sorted({report.reader(s) for s in params.settings})
        return f"Profile {params.profile}: reader {' / '.join(readers)}, {', '.join(facts)}."
    verdict = "not evidence on the paper's claims" if report.is_demo else "not comparable as it stands"
    return f"Not the paper's setting: {'; '.join(found)}; {', '.join(facts)}: {verdict}."
