"""The best parameters of a run so far: those of the whole team, and those of each group by a score of its own."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.registry import Settings

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
        """Start without a score; ``owners`` is the number of the score by which each network is chosen."""
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
    """Return the weights of each group's score, in the order of groups."""
    return [env.group_scores[part.name] for part in env.spec.parts]


def mean_scores(
    figures: Mapping[str, Float[Tensor, "R E"]], scores: Sequence[Mapping[str, float]]
) -> Float[Tensor, "R S"]:
    """Return the weighted sums of figures' means over episodes."""
    each = [torch.stack([w * figures[name].mean(1) for name, w in score.items()]).sum(0) for score in scores]
    return torch.stack(each, 1)
