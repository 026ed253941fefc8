"""The curriculum of a run: the rules of its stages, its table as people write it, its worlds, and where each seed is.

After each score a seed stays, advances by a stage or falls back, by pure functions of its scores.

curriculum:
  metric: completion
  stages:
    - {obstacles: 1, mark: 0.9}
    - {obstacles: 3, mark: 0.8, rate: 0.5, mix: [0.7, 0.3]}
"""

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt, Le, Len
from torch import Tensor

from uavlab.core.errors import ConfigError, TrainingWarning
from uavlab.core.protocols import Collector
from uavlab.core.registry import Settings
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.text import quote
from uavlab.core.types import differences, leaves, tree_map
from uavlab.envs.staged import AtStages, Staged
from uavlab.evaluation import random_policy
from uavlab.experiment.settings import fields_of, problems_of, settings_of, strict_model, violations, with_tuples

LOG = logging.getLogger(__name__)
MOST_STAGES = 100
COUNTS = ("stage", "scores", "passed", "failed", "stale", "fallbacks", "reached")  # of a position
TRIED = 32  # worlds, and steps of each

Kind = Literal["stay", "advance", "fall_back", "complete"]


@dataclass(frozen=True)
class Stage:
    """What a run trains on for a while, and when it goes on.

    Attributes:
        settings: Settings of the environment that differ from those of the task.
        mark: Score that passes.
        passes: Scores in a row that pass, with which a run advances.
        patience: Scores in a row without a new best one of the stage, after which it advances anyway; 0 for never.
        rate: Share of the learning rates.
        mix: Share of what a run learns from that is of this stage, and share that is of the stages before: of new
            worlds, of which former stages have equal parts; with replay also of the rows of each batch.
    """

    settings: Mapping[str, Any]
    mark: float = 0.8
    passes: Annotated[int, Ge(1), Le(1000)] = 5
    patience: Annotated[int, Ge(0), Le(100_000)] = 10
    rate: Annotated[float, Gt(0), Le(100)] = 1.0
    mix: tuple[Annotated[float, Gt(0), Le(1)], Annotated[float, Ge(0), Le(1)]] = (1.0, 0.0)


@dataclass(frozen=True)
class Fallback:
    """When a run falls back to the stage before.

    Attributes:
        settle: Scores at a stage before it may fall back.
        failures: Scores in a row below the margin, with which it falls back.
        margin: Share of the final score of the stage before that must be left.
        scale: Size of scores near zero, for margins: at least this much counts as the size of a final score.
        fallbacks: Most fallbacks of a run.
        decay: Factor of the learning rates at each fallback.
    """

    settle: Annotated[int, Ge(1), Le(1000)] = 5
    failures: Annotated[int, Ge(1), Le(1000)] = 3
    margin: Annotated[float, Ge(0), Le(1)] = 0.6
    scale: Annotated[float, Gt(0), Le(1e6)] = 0.1
    fallbacks: Annotated[int, Ge(0), Le(1000)] = 2
    decay: Annotated[float, Gt(0), Le(1)] = 0.5


ADVANCE = {
    "conservative": {"mark": 0.8, "passes": 5, "patience": 10},
    "aggressive": {"mark": 0.7, "passes": 3, "patience": 5},
}
"""The published rules of advancing, for stages that do not set their own."""


@dataclass(frozen=True)
class Curriculum:
    """Stages of a run, and the name of the figure by which it is judged."""

    metric: str
    stages: tuple[Stage, ...]
    fallback: Fallback = Fallback()


@dataclass(frozen=True)
class Position:
    """Where a seed is in its curriculum."""

    stage: int = 0  # from 0
    scores: int = 0  # at this stage
    passed: int = 0  # last scores in a row
    failed: int = 0  # last scores in a row below the margin
    best: float = -math.inf  # score at this stage
    stale: int = 0  # scores since the best one
    finals: tuple[float, ...] = ()  # scores at the end of the stages before, from the first on
    fallbacks: int = 0  # so far
    reached: int = 0  # the highest stage so far


class Decision(NamedTuple):
    kind: Kind
    reason: str


def threshold(final: float, rules: Fallback) -> float:
    """Return the score below which a run does worse than ``margin`` of a final score; for scores of either sign."""
    return final - (1 - rules.margin) * max(abs(final), rules.scale)


def decide(position: Position, score: float, stages: Sequence[Stage], rules: Fallback) -> tuple[Position, Decision]:
    """Return the position of a run after a score, and the decision that led there.

    A score that is not a number neither passes nor is it a best one, and it counts as a failure.
    """
    stage, last = stages[position.stage], position.stage == len(stages) - 1
    better = score > position.best
    low = threshold(position.finals[-1], rules) if position.stage else -math.inf
    here = replace(
        position,
        scores=position.scores + 1,
        passed=position.passed + 1 if score >= stage.mark else 0,
        failed=0 if score >= low else position.failed + 1,
        best=score if better else position.best,
        stale=0 if better else position.stale + 1,
    )
    if here.passed >= stage.passes:
        reason = f"{here.passed} scores in a row of at least {stage.mark:g}"
        return (here, Decision("complete", reason)) if last else (_next(here, score), Decision("advance", reason))
    settled = position.stage > 0 and here.scores >= rules.settle
    if settled and here.failed >= rules.failures and here.fallbacks < rules.fallbacks:
        reason = f"{here.failed} scores in a row below {low:g}, {rules.margin:g} of the stage before"
        back = Position(
            stage=here.stage - 1, finals=here.finals[:-1], fallbacks=here.fallbacks + 1, reached=here.reached
        )
        return back, Decision("fall_back", reason)
    if stage.patience and here.stale >= stage.patience and not last:
        reason = f"no better score than {here.best:g} in {here.stale}"
        return _next(here, here.best), Decision("advance", reason)
    return here, Decision("stay", "")


def _next(here: Position, final: float) -> Position:
    stage, finals = here.stage + 1, (*here.finals, final)
    return Position(stage=stage, finals=finals, fallbacks=here.fallbacks, reached=max(stage, here.reached))


def shares(curriculum: Curriculum, stage: int) -> list[float]:
    """Return the share of new worlds that start at each stage while a run is at ``stage``."""
    now, before = curriculum.stages[stage].mix if stage else (1.0, 0.0)
    later = len(curriculum.stages) - stage - 1
    return [before / max(stage, 1)] * stage + [now] + [0.0] * later


def learning_rate(curriculum: Curriculum, position: Position) -> float:
    return curriculum.stages[position.stage].rate * curriculum.fallback.decay**position.fallbacks


def parse(table: Mapping[str, Any], env: Any) -> Curriculum:
    """Return the curriculum of a table for a task; an error lists all problems."""
    problems, stages = _problems(table, env)
    if problems:
        raise ConfigError("; ".join(problems) + ".")
    return Curriculum(table["metric"], tuple(stages), _fallback(table))


def curriculum_problems(values: Mapping[str, Any], kind: type[Any]) -> list[str]:
    if values["curriculum"] is None:
        return []
    given = {setting.name: values[setting.name] for setting in settings_of(kind)}
    if not hasattr(kind, "initial"):
        return [f"curriculum: {kind.__name__} has no worlds that could start in stages; leave it out"]
    problems, stages = _problems(values["curriculum"], kind(**given))
    changes = {name: values[f"eval_{name}"] for name in given if values[f"eval_{name}"] is not None}
    for number, stage in enumerate(stages, 1):
        scored = {**given, **stage.settings, **changes}
        broken = violations(getattr(kind, "rules", ()), scored, set(), {})
        problems += [f"curriculum: stage {number}, as policies are evaluated: {text}" for text in broken]
    return problems


def _problems(table: Mapping[str, Any], env: Any) -> tuple[list[str], list[Stage]]:
    """Return what is wrong with a table, and its stages where nothing is."""
    kind, of_stage = type(env), fields_of(Stage, "settings")
    names = {
        "metric": (str, ...),
        "advance": (Literal["conservative", "aggressive"], "conservative"),
        "stages": (Annotated[list[dict[str, Any]], Len(1, MOST_STAGES)], ...),
    }
    if problems := problems_of(strict_model(names | fields_of(Fallback)), table):
        return [f"curriculum: {text}" for text in problems], []
    name, known = table["metric"], {metric.name: metric for metric in env.metrics}
    if name not in known:
        problems = [f"curriculum: metric {quote(name)}: expected one of {', '.join(known)}"]
    elif known[name].better != "high":
        problems = [f"curriculum: metric {name}: low is better; expected one of which more is better"]
    model = strict_model(of_stage | fields_of(kind))
    stages = []
    for number, row in enumerate(table["stages"], 1):
        texts = problems_of(model, row, getattr(kind, "rules", ()), vars(env))
        if not texts:
            row = with_tuples(model, {**ADVANCE[table.get("advance", "conservative")], **row})
            changes = {name: value for name, value in row.items() if name not in of_stage}
            stages.append(Stage(changes, **{name: value for name, value in row.items() if name in of_stage}))
            texts = _stage_problems(stages, env, table["metric"], _fallback(table))
        problems += [f"curriculum: stage {number}: {text}" for text in texts]
    return problems, stages


def _fallback(table: Mapping[str, Any]) -> Fallback:
    return Fallback(**{field.name: table[field.name] for field in fields(Fallback) if field.name in table})


def _stage_problems(stages: Sequence[Stage], env: Any, metric: str, rules: Fallback) -> list[str]:
    """Return what is wrong with the last one of some stages."""
    stage, before, kind = stages[-1], stages[-2] if len(stages) > 1 else None, type(env)
    free = getattr(kind, "initial_settings", ())
    expected = (
        f"settings that initial alone reads: {', '.join(free) or 'none here'} (initial_settings of {kind.__name__})"
    )
    problems = [f"{name}: expected {expected}" for name in stage.settings if name not in free]
    if abs(sum(stage.mix) - 1) > 1e-6:
        problems.append(f"mix {list(stage.mix)}: expected two shares that sum to 1, of this stage and of those before")
    elif before is None and stage.mix[1] > 0:
        problems.append(f"mix {list(stage.mix)}: there is no stage before; expected [1, 0]")
    ranges = {m.name: (0, 1) if m.over == "outcome" else m.bounds for m in env.metrics}
    low, high = ranges.get(metric, (-math.inf, math.inf))
    if not low <= stage.mark <= high:
        problems.append(f"mark {stage.mark:g}: expected a value of {metric}, from {low:g} to {high:g}")
    if before is not None and (least := threshold(before.mark, rules)) > stage.mark:
        problems.append(
            f"mark {stage.mark:g}: below {least:g}, at which a seed falls back after the mark {before.mark:g} of the "
            f"stage before; raise the mark, or lower margin {rules.margin:g}"
        )
    here = replace(env, **stage.settings)
    for name in getattr(env, "sizes", ()):
        got = getattr(here, name)
        earlier = got if before is None else getattr(replace(env, **before.settings), name)
        if got is not None and earlier is not None and got < earlier:
            problems.append(f"{name} {got} after {earlier}: expected stages in order, from small to large")
    if here.spec != env.spec:
        problems.append(
            f"spec of the task, then of the stage: {differences(env.spec, here.spec)}; expected equal ones: let "
            "stages have as many slots as the largest one"
        )
    return problems


def first_difference(env: Any, stage: Any) -> str:
    """Return the first function whose results differ in worlds that start at a stage; empty if there is none."""
    rng, spec = Streams([0]), env.spec
    state = stage.initial(rng.uniform("start", TRIED, spec.initial_noise)[0])
    for _ in range(min(spec.horizon, TRIED)):
        seen = tree_map(lambda leaf: leaf[None], env.observe(state))
        action = random_policy(seen, acting_noise(rng, "act", TRIED, spec))[0]
        noise = rng.uniform("step", TRIED, spec.step_noise)[0]
        after = env.transition(state, action, noise)
        for name, given in (
            ("transition", (state, action, noise)),
            ("observe", (after,)),
            ("reward", (state, action, after)),
            ("terminated", (after,)),
            ("measure", (state, action, after)),
        ):
            expected, result = (getattr(task, name)(*given) for task in (env, stage))
            if not all(map(torch.equal, _tensors(expected), _tensors(result))):
                return name
        state = after
    return ""


def _tensors(result: Any) -> list[Tensor]:
    return [*result.values()] if isinstance(result, dict) else [leaf for _, leaf in leaves(result)]


def start_in_stages(plan: Curriculum, env: Any, implement: Callable[[Any], Any]) -> Staged:
    """Return an environment whose worlds start in the stages of a curriculum; ``implement`` is applied to each."""
    stages = tuple(replace(env, **stage.settings) for stage in plan.stages)
    for number, stage in enumerate(stages, 1):
        if function := first_difference(env, stage):
            raise ConfigError(
                f"curriculum: stage {number}: {function} differs from that of the task, which steps the worlds of all "
                f"stages; expected settings that initial alone reads, and a task in which all of them have an effect."
            )
    return Staged(implement(env), tuple(implement(stage) for stage in stages))


class Progression:
    """Where each seed of a run is in its curriculum; the ``changes`` for evaluation hold at each stage."""

    def __init__(self, plan: Curriculum, evaluation: Any, changes: Mapping[str, Any], seeds: Sequence[int]) -> None:
        self.plan, self.evaluation, self.seeds = plan, evaluation, tuple(seeds)
        self.scored = tuple(replace(evaluation, **{**stage.settings, **changes}) for stage in plan.stages)
        self.positions = [Position() for _ in seeds]
        self.log: list[dict[str, Any]] = []  # decisions but those to stay, with update, seed, stages and reason

    @property
    def stages(self) -> tuple[int, ...]:
        """The stage of each seed, from 0."""
        return tuple(position.stage for position in self.positions)

    @property
    def env(self) -> AtStages:
        """The task of which each seed's worlds start at its stage."""
        return AtStages(self.evaluation, self.scored, self.stages)

    @property
    def counts(self) -> Tensor:
        """Whether each seed is at the highest stage that it has reached, so that its scores count."""
        return torch.tensor([position.stage == position.reached for position in self.positions])

    @property
    def since(self) -> list[int]:
        """The update at which each seed came to its stage."""
        moves = [row for row in self.log if row["from"] != row["to"]]
        return [max((row["update"] for row in moves if row["seed"] == seed), default=0) for seed in self.seeds]

    def judge(self, scores: Sequence[float], update: int) -> list[bool]:
        """Take the score of each seed at its stage, and decide; return which seeds reached a higher stage than ever."""
        new = []
        for at, score in enumerate(scores):
            before = self.positions[at]
            after, decision = decide(before, score, self.plan.stages, self.plan.fallback)
            self.positions[at] = after
            new.append(after.reached > before.reached)
            seed, kind = self.seeds[at], decision.kind
            completed = any(row["seed"] == seed and row["decision"] == "complete" for row in self.log)
            if kind != "stay" and not (kind == "complete" and completed):
                moved = {"decision": kind, "from": before.stage + 1, "to": after.stage + 1}
                self.log.append({"update": update, "seed": seed, **moved, "reason": decision.reason})
                LOG.info("update %d: seed %d: %s: %s", update, seed, kind, decision.reason)
            if after.stage > before.stage and not after.finals[-1] >= self.plan.stages[before.stage].mark:
                text = (
                    f"curriculum: seed {seed} leaves stage {before.stage + 1} by patience, its highest score "
                    f"{after.finals[-1]:g} below the mark {self.plan.stages[before.stage].mark:g}; raise patience, or "
                    "set patience: 0 so that it stays."
                )
                warnings.warn(text, TrainingWarning, stacklevel=3)
        return new

    def apply(self, source: Collector) -> None:
        """Start worlds and mix batches by the stage of each seed."""
        source.set_stages(torch.tensor([shares(self.plan, stage) for stage in self.stages]), torch.tensor(self.stages))

    def rates(self) -> list[float]:
        return [learning_rate(self.plan, position) for position in self.positions]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the positions of all seeds; final scores of stages that a seed has not left are NaN."""
        finals = [[*p.finals, *[math.nan] * (len(self.plan.stages) - len(p.finals))] for p in self.positions]
        return {
            "counts": torch.tensor([[getattr(position, name) for name in COUNTS] for position in self.positions]),
            "best": torch.tensor([position.best for position in self.positions], dtype=torch.float64),
            "finals": torch.tensor(finals, dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        rows = zip(*(state[name].tolist() for name in ("counts", "best", "finals")), strict=True)
        self.positions = [
            Position(**dict(zip(COUNTS, counts, strict=True)), best=best, finals=tuple(finals[: counts[0]]))
            for counts, best, finals in rows
        ]


def progression(config: Settings, seeds: Sequence[int]) -> Progression | None:
    """Return the progression of a run; None without a curriculum."""
    if config.run.curriculum is None:
        return None
    values = {field.name: config.values[f"eval_{field.name}"] for field in fields(config.env)}
    changes = {name: value for name, value in values.items() if value is not None}
    return Progression(parse(config.run.curriculum, config.env), config.evaluation, changes, seeds)
