"""What runs, settings and policies show of themselves: a line in a terminal, a card in a notebook.

These functions read an object and change nothing.
"""

import math
from typing import TYPE_CHECKING, Any

from uavlab.core.cards import Html, card, folded, notes, table
from uavlab.core.errors import ConfigError
from uavlab.core.text import one_line, quote
from uavlab.core.types import observation_shapes
from uavlab.experiment.run_state import not_exact
from uavlab.experiment.settings import format_kind, settings_of

if TYPE_CHECKING:
    from uavlab.experiment.config import Config
    from uavlab.experiment.policy import TeamPolicy, TrainedPolicy
    from uavlab.experiment.run import Run

FEW = 8  # changed settings in a line, and seeds in a table that is not folded
SCORE = "eval/"  # how the names of scores begin


def run_line(run: "Run") -> str:
    where = run.folder or "memory"
    return one_line(f"<Run of {run.config.preset}: {run.status}, update {run.number}, in {where}>")


def run_card(run: "Run") -> str:
    """Return a run's state, its last scores, why it is not exact, what fell back, and its symptoms."""
    settings, first = run.config.run, run.rng.seeds[0]
    updates = "" if settings.updates is None else f" of {settings.updates:,}"
    minutes = "" if settings.minutes is None else f" of {60 * settings.minutes:,.0f}"
    facts = {
        **_task(run.config),
        "status": run.status,
        "update": f"{run.number:,}{updates}",
        "seconds": f"{run.seconds:,.1f}{minutes}",
        "seeds": first if len(run.rng.seeds) == 1 else f"{first} to {run.rng.seeds[-1]}",
        "digest": run.digest[:12],
        "device": f"{run.rt.device}, {run.machine['device']}",
        "threads": run.machine["threads"],
        "folder": run.folder or "none, in memory",
    }
    texts = [f"Not exact: {reason}" for reason in not_exact(run)]
    texts += [f"Fell back: {name}, {reason}" for name, reason in run.rt.fell_back.items()]
    texts += [f"Note: {name}, {text}" for name, text in run.rt.notes.items()]
    texts += [f"Symptom at update {each.update}: {each.text}" for each in run.symptoms]
    return card(f"Run of {run.config.preset}", facts, notes(texts), _last_scores(run))


def _last_scores(run: "Run") -> Html:
    """Return the last score of each metric: its mean over seeds, and the least and largest of several seeds."""
    last = {name: row for row in run.recorder.rows for name in row if name.startswith(SCORE)}
    units = run.config.task.evaluation.units(run.config.evaluation) if last else {}
    rows = []
    for name, row in last.items():
        metric, seeds = name.removeprefix(SCORE), row.get("each", {}).get(name, [])
        ends = f"{min(seeds):.4g} to {max(seeds):.4g}" if seeds else ""
        rows.append((metric, f"{row[name]:.4g}", ends, units.get(metric, ""), f"{row['update']:,}"))
    return table(("score", "mean", "over seeds", "unit", "at update"), rows)


def config_line(config: "Config") -> str:
    """Describe settings in a line: preset, learner, and the first of the settings that differ from the preset's."""
    changed = [f"{name}={_text(config.values[name])}" for name in usual_values(config)]
    more = [f"{len(changed) - FEW} more"] * (len(changed) > FEW)
    parts = ", ".join([f"learner {config.task.learner}", *changed[:FEW], *more])
    return one_line(f"<Config of {config.preset}: {parts}>")


def config_card(config: "Config") -> str:
    """Return the settings that differ from the preset's, then all in a folded table."""
    from uavlab.experiment.config import parts  # late: it imports this module

    settings, values = [each for part in parts(config.task.settings) for each in settings_of(part)], config.values
    kinds = {each.name: format_kind(each.kind) for each in settings}  # a toggle registered later has no value
    abouts = {each.name: each.about for each in settings}
    abouts |= {f"eval_{name}": f"In evaluation: {about}" for name, about in abouts.items()}
    usual = usual_values(config)
    changed = [(name, _text(values[name]), _text(before), abouts.get(name, "")) for name, before in usual.items()]
    whole = [
        (name, _text(value), kinds.get(name, ""), abouts.get(name, ""))
        for name, value in values.items()
        if name in kinds or value is not None  # None under ``eval_`` is the value of training
    ]
    return card(
        f"Settings of {config.preset}",
        {**_task(config), "settings": f"{len(whole)}, {len(changed)} of them changed"},
        table(("changed", "value", "in the preset", "meaning"), changed),
        notes(f"{name}: {why}" for name, why in config.chosen.items()),
        folded(f"All {len(whole)} settings", table(("setting", "value", "kind", "meaning"), whole)),
    )


def usual_values(config: "Config") -> dict[str, Any]:
    """Return what the preset alone would set, with the same learner, of each setting that has another value.

    It is empty where the preset is not registered any more.
    """
    from uavlab.experiment.config import configure

    try:
        usual = configure(config.preset, {"learner": config.task.learner}).values
    except ConfigError:
        return {}
    return {name: usual[name] for name, value in config.values.items() if name in usual and value != usual[name]}


def trained_line(trained: "TrainedPolicy") -> str:
    """Describe the policies of a run in a line."""
    seeds, where = f"{len(trained.parameters)} seed(s)", f"in {trained.folder or 'memory'}"
    return one_line(f"<TrainedPolicy of {trained.config.preset}: {seeds}, updates {list(trained.updates)}, {where}>")


def trained_card(trained: "TrainedPolicy") -> str:
    """Return the networks of a run's policies, and the highest score in training of each seed, with its update."""
    (seeds, networks, parameters), first = trained.parameters.shape, trained.config.run.seed
    facts = {
        **_task(trained.config),
        "update": f"{trained.update:,}",
        "networks": f"{networks:,} of {parameters:,} parameters for each seed",
        "device": trained.rt.device,
        "folder": trained.folder or "none, in memory",
    }
    rows = [
        (first + at, f"{score:.4g}" if math.isfinite(score) else "unknown", f"{update:,}" if update >= 0 else "unknown")
        for at, (score, update) in enumerate(zip(trained.score.tolist(), trained.updates, strict=True))
    ]
    whole = table(("seed", "highest score in training", "policy of update"), rows)
    part = whole if seeds <= FEW else folded(f"{seeds} seeds", whole)
    return card(f"Trained policy of {trained.config.preset}", facts, part)


def team_line(team: "TeamPolicy") -> str:
    shapes = ", ".join(" ".join(filter(None, row)) for row in _observations(team))
    return one_line(f"<TeamPolicy of {team.spec.agents} agent(s) on {team.device}: {shapes} -> {_actions(team)}>")


def team_card(team: "TeamPolicy") -> str:
    """Return the agents of a team, and the shapes of what its policy takes and returns."""
    memory = team.start(1)
    facts = {
        "agents": team.spec.agents,
        "groups": ", ".join(f"{part.agents} {part.name}" for part in team.spec.parts),
        "actions": _actions(team),
        "memory": "none" if memory is None else f"{memory.shape[-1]} numbers for each agent",
        "device": team.device,
    }
    return card("Policy of a team", facts, table(("observations", "shape"), _observations(team)))


def _observations(team: "TeamPolicy") -> list[tuple[str, str]]:
    shapes = observation_shapes(team.spec).items()
    return [(name or "obs", f"(B, {', '.join(map(str, shape))})") for name, shape in shapes]


def _actions(team: "TeamPolicy") -> str:
    agents, action, moves = team.spec.agents, team.spec.action, team.spec.choices
    return f"(B, {agents}) of moves 0 to {moves - 1}" if moves else f"(B, {agents}, {action}) in [-1, 1]"


def _task(config: "Config") -> dict[str, str]:
    return {"environment": type(config.env).__name__, "learner": config.task.learner}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else quote(value)
