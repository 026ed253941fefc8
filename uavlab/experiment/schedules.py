"""What a run does by its own scores: the best policies so far, the stages of each seed, and its learning rates."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Collector
from uavlab.core.registry import Settings
from uavlab.experiment.curriculum import Position, progression
from uavlab.experiment.settings import fields_of, problems_of, strict_model
from uavlab.learners.learner import parts
from uavlab.runtime.grad_step import GradientStep

Which = Literal["best", "best_by_group", "last"]
"""Which policy of a run: that with the team's best score, each group with its own best score, or the newest."""


class Best:
    """Parameters with the best score so far, for each seed and each score.

    Attributes:
        parameters: Parameters of K networks for each of R seeds.
        score: The best of each of S scores; -inf before the first one.
        updates: Updates after which they were scored; -1 where a checkpoint does not say.
    """

    def __init__(self, parameters: Float[Tensor, "R K P"], owners: Sequence[int]) -> None:
        """Start without a score; ``owners`` has the number of the score that chooses each network."""
        self.parameters, self.owners = parameters, torch.tensor(owners, device=parameters.device)
        self.score = parameters.new_full((len(parameters), len(set(owners))), -math.inf)
        self.updates = torch.zeros_like(self.score, dtype=torch.int64)

    def consider(
        self,
        score: Float[Tensor, "R S"],
        parameters: Float[Tensor, "R K P"],
        update: int,
        counts: Bool[Tensor, " R"] | None = None,
    ) -> Bool[Tensor, ""]:
        """Take the parameters of networks whose score is the best so far; return whether any was.

        Where ``counts`` is false, a seed's score is that of an easier task and does not count.
        """
        better = score > self.score  # of equal scores the first
        if counts is not None:
            better = better & counts[:, None]
        self.score = torch.where(better, score, self.score)
        self.updates = torch.where(better, update, self.updates)
        self.parameters = torch.where(better.index_select(1, self.owners)[..., None], parameters, self.parameters)
        return better.any()

    def forget(self, seeds: Bool[Tensor, " R"]) -> None:
        """Drop the scores of some seeds: those that come are of another task."""
        self.score = self.score.masked_fill(seeds[:, None], -math.inf)

    def state_dict(self) -> dict[str, Tensor]:
        return {"parameters": self.parameters, "score": self.score, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in state.items():
            setattr(self, name, tensor.to(self.score.device))

    def or_newest(self, parameters: Float[Tensor, "R K P"]) -> Float[Tensor, "R K P"]:
        """Return the best parameters, or the given ones where nothing was scored yet."""
        return torch.where(torch.isinf(self.score).index_select(1, self.owners)[..., None], parameters, self.parameters)


def best_policies(config: Settings, parameters: Float[Tensor, "R K P"]) -> tuple[Best, Best | None]:
    """Return the memory of the team's best policy, and of that by group; None if groups cannot be chosen one by one."""
    owners = group_owners(config)
    return Best(parameters, [0] * parameters.shape[1]), None if owners is None else Best(parameters, owners)


def group_owners(config: Settings) -> list[int] | None:
    """Return the number of the group that each network belongs to.

    None if groups have no scores, the learner does not say which agents a network serves, or one serves several groups.
    """
    spec, networks = config.env.spec, config.task.algorithm.assign_networks(config.learner, config.env.spec)
    if networks is None or not getattr(config.env, "group_scores", None):
        return None
    groups = [number for number, part in enumerate(spec.parts) for _ in range(part.agents)]
    served = sorted(set(zip(networks, groups, strict=True)))
    return [group for _, group in served] if len(dict(served)) == len(served) else None


def require_groups(config: Settings, best: Best | None) -> Best:
    """Return the memory of policies by group."""
    if best is None:
        raise ConfigError(
            f"best_by_group: {config.preset} has no score for each group (group_scores), or its learner no networks "
            "for each (Learner.assign_networks); expected both. Use best or last."
        )
    return best


def ordered_scores(env: Any) -> list[Mapping[str, float]]:
    return [env.group_scores[part.name] for part in env.spec.parts]


def mean_scores(
    figures: Mapping[str, Float[Tensor, "R E"]], scores: Sequence[Mapping[str, float]]
) -> Float[Tensor, "R S"]:
    """Return the weighted sums of figures' means over episodes."""
    each = [torch.stack([w * figures[name].mean(1) for name, w in score.items()]).sum(0) for score in scores]
    return torch.stack(each, 1)


# Learning rates fall as by torch.optim.lr_scheduler.ReduceLROnPlateau with a relative threshold, for scores of either
# sign.
@dataclass(frozen=True)
class Plateau:
    """When learning rates fall, and how far.

    Attributes:
        factor: Factor of the learning rates.
        patience: Scores in a row without an improvement that are borne; the rates fall with the next one.
        threshold: Share of the best score by which a score has to be higher to be an improvement.
        cooldown: Scores after a fall that do not count as missed improvements.
        least: Smallest share of the learning rates.
    """

    factor: Annotated[float, Gt(0), Lt(1)] = 0.8
    patience: Annotated[int, Ge(0), Le(100_000)] = 5
    threshold: Annotated[float, Ge(0), Le(1)] = 0.01
    cooldown: Annotated[int, Ge(0), Le(100_000)] = 5
    least: Annotated[float, Gt(0), Le(1)] = 0.05


@dataclass(frozen=True)
class Level:
    rate: float = 1.0  # share of the learning rates
    best: float = -math.inf  # score
    stale: int = 0  # scores in a row without an improvement
    waits: int = 0  # scores of the cool-down that are left


def follow(level: Level, score: float, rules: Plateau) -> Level:
    """Return where a seed is after a score; one that is not a number is no improvement.

    >>> level = Level()
    >>> for score in (1.0, 1.005, 1.0, 1.0):
    ...     level = follow(level, score, Plateau(factor=0.5, patience=2))
    >>> level.rate, level.best
    (0.5, 1.0)
    """
    least = -math.inf if level.best == -math.inf else level.best + rules.threshold * abs(level.best)
    better = score > least
    here = replace(level, best=score if better else level.best, stale=0 if better else level.stale + 1)
    if here.waits:
        here = replace(here, waits=here.waits - 1, stale=0)
    if here.stale <= rules.patience:
        return here
    return replace(here, rate=max(here.rate * rules.factor, rules.least), stale=0, waits=rules.cooldown)


def plateau_problems(table: Mapping[str, Any] | None) -> list[str]:
    return [f"plateau: {text}" for text in problems_of(strict_model(fields_of(Plateau)), table)] if table else []


class Rates:
    """Shares of the learning rates of all seeds, by their scores; without a table they stay."""

    def __init__(self, table: Mapping[str, Any] | None, seeds: int) -> None:
        self.rules = None if table is None else Plateau(**table)
        self.levels = [Level() for _ in range(seeds)]

    def judge(self, scores: Sequence[float], moved: Sequence[bool]) -> None:
        """Take the score of each seed; where it ``moved`` to another task, later scores are not compared with it."""
        if self.rules is not None:
            for seed, score in enumerate(scores):
                level = follow(self.levels[seed], score, self.rules)
                self.levels[seed] = replace(level, best=-math.inf, stale=0) if moved[seed] else level

    def state_dict(self) -> dict[str, Tensor]:
        return {"levels": torch.tensor([[*vars(level).values()] for level in self.levels], dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        rows = state["levels"].tolist()
        self.levels = [Level(rate, best, int(stale), int(waits)) for rate, best, stale, waits in rows]


class Schedules:
    """Stages and learning rates of all seeds, by their scores; a collector and a learner follow them."""

    def __init__(self, config: Settings, seeds: Sequence[int], source: Collector, learner: Any, ranks: int = 1) -> None:
        """Start at the first stage and the full rates, times what ``lr_scale`` says for so many ``ranks``."""
        self.scale = {"none": 1.0, "linear": float(ranks), "sqrt": math.sqrt(ranks)}[config.run.lr_scale]
        self.warmup, self.warm = config.run.warmup, 1.0  # its updates, and the share of the rates that holds now
        self.task, self.progression = config.evaluation, progression(config, seeds)
        self.rates = Rates(config.run.plateau, len(seeds))
        self.apply(source, learner)

    @property
    def evaluation(self) -> Any:
        """The task on which each seed is scored now."""
        return self.progression.env if self.progression else self.task

    @property
    def since(self) -> list[int]:
        """The update at which each seed came to its stage; 0 for the first one, and without a curriculum."""
        return self.progression.since if self.progression else [0] * len(self.rates.levels)

    @property
    def counts(self) -> Bool[Tensor, " R"]:
        """Whether the score of each seed counts for its best policy: at the highest stage that it has reached."""
        every = torch.ones(len(self.rates.levels), dtype=torch.bool)
        return self.progression.counts if self.progression else every

    @property
    def begun(self) -> bool:
        """Whether a curriculum has had a score of any seed."""
        return self.progression is not None and any(place != Position() for place in self.progression.positions)

    def judge(
        self,
        figures: dict[str, Float[Tensor, "R E"]],
        scores: Float[Tensor, " R"],
        update: int,
        bests: Iterable[Best | None] = (),
    ) -> bool:
        """Decide by the figures and scores of all seeds; return whether one changed its stage.

        With a curriculum, ``figures`` get the ``stage`` at which each seed was scored, from 1 on, and ``bests`` forget
        the scores of seeds that are at a higher stage than ever.
        """
        ahead, moved = [False] * len(scores), [False] * len(scores)
        if self.progression:
            before = self.progression.stages
            figures["stage"] = (torch.tensor(before) + 1.0)[:, None]
            values = figures[self.progression.plan.metric].mean(1).tolist()  # host sync
            ahead = self.progression.judge(values, update)
            moved = [stage != now for stage, now in zip(before, self.progression.stages, strict=True)]
        self.rates.judge(scores.tolist(), moved)
        for best in filter(None, bests):
            best.forget(torch.tensor(ahead, device=best.score.device))
        return any(moved)

    def apply(self, source: Collector, learner: Any) -> None:
        """Start new worlds by the stages of the seeds, and set learning rates by their shares."""
        shares = torch.tensor([level.rate for level in self.rates.levels])
        if self.progression:
            self.progression.apply(source)
            shares = shares * torch.tensor(self.progression.rates())
        if self.progression or self.rates.rules or self.scale != 1 or self.warmup:
            for step in gradient_steps(learner):
                step.set_rates(shares * self.scale * self.warm)

    def warm_up(self, source: Collector, learner: Any, number: int) -> None:
        """Set the rates of the next update after update ``number``, while they rise."""
        if number < self.warmup:
            self.warm = (number + 1) / self.warmup
            self.apply(source, learner)


def gradient_steps(learner: Any) -> list[GradientStep]:
    steps: list[GradientStep] = []
    for _, part in parts(learner):
        if isinstance(part, GradientStep):
            steps.append(part)
        elif not isinstance(part, Tensor):
            steps += gradient_steps(part)
    return steps
