"""What the controller did and learned, as tables: actions, skill, targets, sensitivities, the model card."""

from __future__ import annotations

from typing import Any

from multihop.controller.state import ACTIONS, NAMES
from multihop.report.controller_data import (
    MODELS,
    TRAINED_NOTE,
    Decision,
    all_cards,
    all_decisions,
    cards,
    controller_name,
    records,
    serves,
)
from multihop.report.frames import Table, frame, note
from multihop.report.load import Report

RULES = {"majority": "two of three", "any": "one of three", "all": "all three"}
"""Vote rule -> how many models must say "go on"."""


def actions(report: Report) -> Table:
    """How often each operation was valid and was chosen, by step: in our runs, and in the training trajectories."""
    report = report.of("dynakrag")
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for dataset in report.datasets:
        taken = all_decisions(report, dataset)
        for step in sorted({d.step for d in taken}):
            rows["run dynakrag", report.label_dataset(dataset), str(step)] = _decided(taken, step)
    for dataset, card in cards(report).items():
        for row in [r for r in card["actions"]["steps"] if r["valid"]]:  # In a last state nothing can be done.
            shares = {c: f"{_percent(row['chosen'].get(c))} / {_percent(row['valid'].get(c))}" for c in ACTIONS}
            key = ("train trajectories", report.label_dataset(dataset), str(row["step"] + 1))
            rows[key] = {"states": f"{row['states']:,}", **{f"{c} {NAMES[c]}": v for c, v in shares.items()}}
    counts = ", ".join(f"{report.label_dataset(d)} {len(records(report, d))}" for d in report.datasets)
    text = (
        "Operations by step: chosen / valid, in percent of the states. In training random and scripted roll-outs visit "
        f"the states, so their choices are not the controller's. {_states(report)}n (questions of the run): {counts}."
    )
    names = ["where", "dataset", "step"]
    return Table(text, frame(rows or {("not run", "", ""): {"states": "0"}}, names), note(report))


def _decided(taken: list[Decision], step: int) -> dict[str, str]:
    here = [d for d in taken if d.step == step]
    row = {"states": f"{len(here):,}"}
    for code in ACTIONS:
        chosen, valid = sum(d.chosen == code for d in here), sum(code in d.valid for d in here)
        row[f"{code} {NAMES[code]}"] = f"{_percent(chosen / len(here))} / {_percent(valid / len(here))}"
    return row


def _states(report: Report) -> str:
    """How the card's count of states, this table's and the targets' hang together; empty without a card."""
    parts = []
    for dataset, card in cards(report).items():
        steps = card["actions"]["steps"]
        ends, later = ([s for s in steps if test(s)] for test in (lambda s: not s["valid"], lambda s: s["step"] > 0))
        total, end, evidence = (sum(s["states"] for s in of) for of in (steps, ends, later))
        open_ = sum(s["states"] for s in later if s["valid"])
        parts.append(
            f"Trained on {report.label_dataset(dataset)}: of the card's {total:,} states {total - end:,} are here, "
            f"{end:,} are end states with no step left; {evidence:,} come after the first search "
            f"({open_:,} here, the others ends). "
        )
    return "".join(parts)


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0):.0f}"


def skill(report: Report) -> Table:
    """Out-of-fold skill of each model against a constant, training by training."""
    report = report.of("dynakrag")
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for (name, dataset), card in all_cards(report).items():
        for model, label in MODELS.items():
            each = [t["skill"][model] for t in card["trainings"]]
            values = [s["model"] for s in each if s["model"] is not None]
            rows[name, report.label_dataset(dataset), label] = {
                "measure": each[0]["metric"],
                **{f"training {i}": _number(s["model"]) or "undefined" for i, s in enumerate(each, 1)},
                "mean": _number(sum(values) / len(values)) if values else "",
                "a constant": _number(each[0]["constant"]),
                "better than a constant": f"{sum(v > 0 for v in values)} of {len(each)}",
                "n (train questions)": f"{card['questions']:,}",
            }
    text = f"Skill of the learned models. {TRAINED_NOTE} R2: of a value; Brier skill: of a probability."
    return _card_table(report, f"{text} {_stop_note(report)}", rows, ["controller", "trained on", "model"])


def _stop_note(report: Report) -> str:
    """How much of the advantage's variance is stopping against the rest, which no decision rests on."""
    shares = {f"{name}, {report.label_dataset(d)}": (card["options"]["lambda"], _stop_share(card))
              for (name, d), card in all_cards(report).items()}  # fmt: skip
    said = "; ".join(f"λ = {lam:g}: {share:.2f} ({who})" for who, (lam, share) in shares.items() if share is not None)
    return (
        "An advantage's R2 also counts that stop keeps the present recall in its target while λ takes its share off "
        "the others'; but the gate, not the scorer, settles stopping, so compare the rows of other λ. "
        + (f"R2 from nothing but stop or not, on the targets: {said}." if said else "")
    ).strip()


def _stop_share(card: dict[str, Any]) -> float | None:
    """Share of the variance of the advantage targets between stopping and the other operations."""
    found = {c: a for c, a in card["targets"]["advantage"].items() if a["n"]}
    others = sum(a["n"] for c, a in found.items() if c != "T")
    if "T" not in found or not others:
        return None
    stop, n = found["T"], others + found["T"]["n"]
    rest = sum(a["n"] * a["mean"] for c, a in found.items() if c != "T") / others
    mean = (others * rest + stop["n"] * stop["mean"]) / n
    total = sum(a["n"] * (a["sd"] ** 2 + (a["mean"] - mean) ** 2) for a in found.values())
    between = others * (rest - mean) ** 2 + stop["n"] * (stop["mean"] - mean) ** 2
    return between / total if total > 0 else None


def target_table(report: Report) -> Table:
    """Distribution of the training targets, and what each operation costs."""
    report = report.of("dynakrag")
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for dataset, card in cards(report).items():
        where, found = report.label_dataset(dataset), card["targets"]
        for code in [c for c in ACTIONS if c in found["advantage"]]:
            a, cost = found["advantage"][code], card["costs"].get(code, {})
            rows[where, f"advantage of {code} {NAMES[code]}"] = {
                "n": f"{a['n']:,}", **{k: _number(a[k]) for k in ("mean", "sd", "min", "max")},
                "tokens": _number(cost.get("tokens"), 0), "retrievals": _number(cost.get("retrievals"), 2),
                "cost": _number(cost.get("cost")),
            }  # fmt: skip
        gain = found["gain"]
        quartiles = " / ".join(_number(q) for q in gain["quartiles"])
        rows[where, MODELS["gain"]] = {
            "n": f"{gain['n']:,}", "mean": _number(gain["mean"]), "sd": _number(gain["sd"]), "quartiles": quartiles
        }  # fmt: skip
        for model in ("continuation", "premature"):
            n, positives = found[model]["n"], found[model]["positives"]
            share = f" ({100 * positives / n:.0f} %)" if n else ""
            rows[where, MODELS[model]] = {"n": f"{n:,}", "positives": f"{positives:,}{share}"}
    text = (
        "Training targets. Advantage: eq. 1, in recall; tokens and retrievals: means over the trajectories; cost: "
        "thousands of tokens, with what a retrieval counts. Gate: over the states with evidence."
    )
    return _card_table(report, text, rows, ["trained on", "target"])


def sensitivity(report: Report) -> Table:
    """The mean target of a sufficiency check by what it is credited with, and of every operation by λ."""
    report = report.of("dynakrag")
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for dataset, card in cards(report).items():
        where, used = report.label_dataset(dataset), card["options"]
        for kind, value in card["s_target_sensitivity"].items():
            row = {f"S {NAMES['S']}": _number(value["mean"]) or "undefined", "n of S": f"{value['n']:,}"}
            rows[where, f"s_target: {kind}" + (" (used)" if kind == used["s_target"] else "")] = row
        for lam, means in sorted(card["lambda_sensitivity"].items(), key=lambda kv: float(kv[0])):
            row = {f"{c} {NAMES[c]}": _number(means.get(c)) for c in ACTIONS}
            rows[where, f"λ = {float(lam):g}" + (" (used)" if float(lam) == used["lambda"] else "")] = row
    text = (
        "Mean advantage targets if an option were another; the rest as used. s_target says what a sufficiency check is "
        "credited with (docs/deviations.md). F1 of controllers fitted with other λ: notebook dynakrag."
    )
    return _card_table(report, text, rows, ["trained on", "option"])


def model_card(report: Report) -> Table:
    """The model cards side by side, a column for each controller."""
    report = report.of("dynakrag")
    found = {f"{name}, trained on {report.label_dataset(d)}": _facts(report, name, d, card)
             for (name, d), card in all_cards(report).items()}  # fmt: skip
    sizes = ", ".join(f"{report.label_dataset(d)} {card['questions']:,}" for d, card in cards(report).items())
    text = f"Model cards (results/trained/<controller>/<dataset>/card.json). n (train questions): {sizes or '0'}."
    if not found:
        return _card_table(report, text, {}, ["fact"])
    facts = dict.fromkeys(fact for column in found.values() for fact in column)
    rows = {(fact,): {name: column.get(fact, "") for name, column in found.items()} for fact in facts}
    return Table(text, frame(rows, ["fact"]), note(report))


def _facts(report: Report, name: str, dataset: str, card: dict[str, Any]) -> dict[str, str]:
    served = serves(report, dataset) if name == controller_name(report) else []
    features, options = card["features"], card["options"]
    facts = {
        "setting, profile": f"{card.get('setting', '')}, {card.get('profile', '')}",
        "serves in this project": ", ".join(map(report.label_dataset, served)) or "runs that name it",
        "train questions / states": f"{card['questions']:,} / {card['states']:,}",
        "features of the state / action": f"{features['count']} / {features['action_count']}",
        "feature list": features["hash"][:16],
        "options": ", ".join(f"{k} {v}" for k, v in options.items() if v is not None),
        "scikit-learn": card["sklearn"],
    }
    for i, t in enumerate(card["trainings"], 1):
        chosen = {RULES[r]: t["thresholds"][r] for r in RULES if r in t["thresholds"]}
        votes = "; ".join(f"{rule}: {' / '.join(f'{v:g}' for v in of)}" for rule, of in chosen.items())
        facts[f"training {i}: questions to fit / calibrate"] = f"{t['fit_questions']} / {t['calibration_questions']}"
        facts[f"training {i}: thresholds (continuation / gain / premature)"] = votes
        facts[f"training {i}: fallbacks"] = "; ".join(t["fallbacks"]) or "none"
        facts[f"training {i}: file"] = f"{t['file']}, {t['bytes']:,} bytes, sha256 {t['sha256'][:16]}"
    return facts


def _card_table(report: Report, text: str, rows: dict[tuple[str, ...], dict[str, str]], names: list[str]) -> Table:
    """The rows, or one that says that nothing is trained; the caption gains n and who is served."""
    if not rows:
        missing = ("not run: no controller is trained yet", *[""] * (len(names) - 1))
        return Table(text, frame({missing: {"n": "0"}}, names), note(report))
    sizes = [
        f"{report.label_dataset(d)} n = {card['questions']:,} train questions"
        + (f", serves {', '.join(map(report.label_dataset, serves(report, d)))}" if serves(report, d) else "")
        for d, card in cards(report).items()
    ]
    return Table(f"{text} Trained on {'; '.join(sizes)}.", frame(rows, names), note(report))


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"
