"""External environments as ``Env``: a state holds what its copy returned, and the ticket by which the copy is found."""

import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError, FallbackWarning
from uavlab.core.registry import Resume
from uavlab.core.types import ChoiceObs, EnvSpec, Group, Metric, Rule, team_spec, tensors, tree_map
from uavlab.experiment.names import Origin
from uavlab.storage.machine import usable_cores
from uavlab.workers.pool import Pool, pool_for
from uavlab.workers.spaces import TERMINATED, TRUNCATED, UNSEEN, Description, Rows
from uavlab.workers.team import Grouping

SAME_GROUPS: Rule = (
    ("groups", "eval_groups"),
    lambda groups, evaluation: evaluation in (None, groups),
    "eval_groups {1} is another one than groups {0}: networks are shared as in training; leave it out",
)
HORIZON = 1000  # of an environment that does not say how long its episodes are


@tensors
class State:
    """A batch of worlds, with what the last step returned."""

    seed: Int[Tensor, " B"]  # of the start
    step: Int[Tensor, " B"]  # steps since
    key: Int[Tensor, " B"]  # ticket of the live copy in this state; a step takes it
    obs: Any  # Float[Tensor, "B A O"] | ChoiceObs
    reward: Float[Tensor, "B A"]  # of the last step
    ended: Bool[Tensor, "B A"]  # agents whose task has ended
    cut: Bool[Tensor, " B"]  # the episode has ended, but not the tasks


@dataclass(frozen=True)
class External:
    """An environment of Gymnasium or PettingZoo, whose copies are stepped by worker processes.

    A state is stepped once, because its copy goes on. A world whose copy is gone, such as one of a resumed run, is
    truncated where it stands, and starts again. An agent that the environment truncates while others go on counts as
    ended; where the last ones are truncated, the episode is, and values are bootstrapped. A world stays as it is after
    its end, and rewards are 0.

    Attributes:
        workers: Processes that step the environment; 0 for one per processor.
        copies: Copies of the environment in all workers; there may be two for each world of a larger batch.
        timeout_s: Seconds that a worker may take to step all its worlds once, after which the run ends; to make
            copies of the environment, it may take two minutes more.
        groups: Agents that share networks: those with equal spaces whose names differ by what counts alone, such as a
            number (names), all, which must have equal spaces, or each by itself.
        horizon: Steps after which an episode is truncated.
    """

    workers: Annotated[int, Ge(0), Le(256), Resume.SAME] = 0
    copies: Annotated[int, Ge(1), Le(100_000), Resume.SAME] = 256
    timeout_s: Annotated[float, Gt(0), Le(86_400), Resume.SAME] = 60.0
    groups: Grouping = "names"
    horizon: Annotated[int, Ge(1), Le(100_000)] = HORIZON

    origin: ClassVar[Origin]
    description: ClassVar[Description]
    score: ClassVar[dict[str, float]] = {"return": 1.0}
    rules: ClassVar[tuple[Rule, ...]] = (SAME_GROUPS,)
    host_work: ClassVar[str] = "worlds are stepped in other processes, which no CUDA graph holds"

    def __post_init__(self) -> None:
        """Refuse one group of agents with unlike spaces."""
        first, *others = self.description.agents
        unlike = next((agent for agent in others if agent.sizes != first.sizes), None)
        if self.groups == "all" and unlike is not None:
            raise ConfigError(
                f"{self.origin.name}: groups=all, but {first.name} has {first}, and {unlike.name} {unlike}; expected "
                "equal spaces: set groups=names or groups=each."
            )

    @cached_property
    def spec(self) -> EnvSpec:
        """Shapes, limits and noise of the environment."""
        spec = team_spec(
            *groups_of(self.description, self.groups),
            horizon=self.horizon,
            initial_noise=2,
            deaths=len(self.description.agents) > 1,
        )
        return replace(spec, parts=()) if len(spec.parts) == 1 else spec

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The return of each group, if there are several."""
        return tuple(Metric(f"{part.name}_return", "sum") for part in self.spec.parts)

    @cached_property
    def group_scores(self) -> dict[str, dict[str, float]]:
        """The score of each group, if there are several."""
        return {part.name: {f"{part.name}_return": 1.0} for part in self.spec.parts}

    @property
    def reading(self) -> str:
        """What was read of the environment, as a line of text, with the settings that change it."""
        agents, groups = self.description.agents, groups_of(self.description, self.groups)
        count = f"{len(agents)} agent{'s' * (len(agents) > 1)}"
        if len(agents) > 1:
            count += f" in {len(groups)} group{'s' * (len(groups) > 1)} by groups={self.groups}"
        starts = [sum(group.agents for group in groups[:n]) for n in range(len(groups))]
        kinds = [str(agents[start]) for start in starts]
        names = [repr(group.name) if group.name.isdigit() else group.name for group in groups]
        parts = [f"{group.agents} {name} ({kind})" for group, name, kind in zip(groups, names, kinds, strict=True)]
        what = f"{count}, {kinds[0]}" if len(groups) == 1 else f"{count}: {', '.join(parts)}"
        deaths = "; an agent may end before the others" if len(agents) > 1 else ""
        limit = self.description.limit or "default, as the environment does not say"
        if self.horizon != (self.description.horizon or HORIZON):
            limit = "the setting horizon"
        return f"{what}{deaths}; horizon {self.horizon} by {limit}"

    def initial(self, noise: Float[Tensor, "B 2"]) -> State:
        """Start worlds with seeds from 0 to 2^31 - 1 by the noise (host sync)."""
        return self.initial_where(noise, torch.ones_like(noise[:, 0], dtype=torch.bool))

    def initial_where(self, noise: Float[Tensor, "B 2"], needed: Bool[Tensor, " B"]) -> State:
        """Start worlds as ``initial`` does where they are needed; the others are blank (host sync)."""
        high, low = (noise.double() * noise.new_tensor((2**15, 2**16), dtype=torch.float64)).long().unbind(-1)
        seed, at = high * 2**16 + low, needed.nonzero()[:, 0]
        state = self._blank(seed, noise)
        if not len(at):
            return state
        tickets, rows = self._pool.start(seed[at].tolist(), at.tolist())
        key, obs = state.key.index_put((at,), at.new_tensor(tickets)), self._observations(rows, noise)
        return replace(state, key=key, obs=_put(state.obs, at, obs))

    def transition(self, state: State, action: Tensor, noise: Float[Tensor, "B 0"]) -> State:
        """Step the worlds that go on and have a copy, all workers at once (host sync)."""
        going = ~(state.cut | state.ended.all(-1) | (state.step >= self.horizon))
        still = replace(state, step=state.step + 1, reward=torch.zeros_like(state.reward))
        if not going.any():
            return still
        at = going.nonzero()[:, 0]
        host = action[at].detach().cpu().numpy()
        host = host[..., None] if self.spec.choices else host.astype(np.float32)
        tickets, numbers, steps = state.key[at].tolist(), at.tolist(), state.step[at].tolist()
        here, tickets, rows = self._pool.step(tickets, host, numbers, steps)
        if len(here) < len(at):
            text = "a world had no copy, as after a resume, and is truncated where it stands; the run is not exact."
            self._count("gone", len(at) - len(here), text)
            still = replace(still, cut=still.cut | going.index_fill(0, at[here], False))
        if rows is None:
            return still
        at = at[here]
        ended, cut = _ends(rows, state.ended[at])
        self._count_unseen(rows)
        after = replace(
            still,
            key=still.key.index_put((at,), at.new_tensor(tickets)),
            obs=_put(still.obs, at, self._observations(rows, state.reward)),
            reward=still.reward.index_put((at,), torch.from_numpy(rows.reward).to(still.reward)),
            ended=still.ended.index_put((at,), ended),
            cut=still.cut.index_put((at,), cut),
        )
        over = after.cut | after.ended.all(-1) | (after.step >= self.horizon)
        self._pool.release(after.key[over & going].tolist())
        return after

    def observe(self, state: State) -> Any:
        """Return what agents observe; zeros after the end of an agent, while others go on."""
        return tree_map(torch.clone, state.obs)

    def reward(self, state: State, action: Tensor, after: State) -> Float[Tensor, "B A"]:
        """Return the rewards of the step."""
        return after.reward

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """Return which agents' task has ended."""
        return state.ended

    def truncated(self, state: State) -> Bool[Tensor, " B"]:
        """Return which worlds the environment ended before the horizon, although tasks had not ended."""
        return state.cut

    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the mean reward of each group, if there are several."""
        rewards = after.reward.split([part.agents for part in self.spec.parts], 1) if self.spec.parts else ()
        return {metric.name: reward.mean(1) for metric, reward in zip(self.metrics, rewards, strict=True)}

    def record(self) -> dict[str, Any]:
        """Return what was read, and what happened to the worlds of this object, for the record of a run."""
        notes = {"notes": list(self.description.notes)} if self.description.notes else {}
        return {"read": self.reading, **notes, "workers": self._pool.count, **self.counts}

    def inexact(self) -> list[str]:
        """Return why a run cannot be repeated bit for bit."""
        gone = "worlds without a copy were truncated where they stood, and started again" * (self.counts["gone"] > 0)
        return [f"{self.origin.name}: {reason}" for reason in (self._pool.reason, gone) if reason]

    def check_chance(self) -> None:
        """Compare copies of the environment from one seed; where they differ, warn, and remember it for ``inexact``."""
        self._pool.check_chance()

    @property
    def _pool(self) -> Pool:
        workers = self.workers or usable_cores()
        return pool_for(self.origin, self.description, workers, self.copies, self.timeout_s)

    @cached_property
    def counts(self) -> Counter[str]:
        """How many worlds had no copy (``gone``), and agents no last observation (``unseen``)."""
        return Counter()

    def _count_unseen(self, rows: Rows) -> None:
        """Count agents that were cut without a last observation."""
        _, agents = np.nonzero(rows.end == UNSEEN)
        if len(agents):
            text = (
                f"step truncated {self.description.agents[agents[0]].name} without a last observation, so this counts "
                "as an end, and no value follows it; return the observation of every agent that is truncated."
            )
            self._count("unseen", len(agents), text)

    def _count(self, what: str, number: int, text: str) -> None:
        """Count what happened in worlds, and warn of the first."""
        if not self.counts[what]:
            text = f"{self.origin.name}: {text} Further ones are counted in run.json."
            warnings.warn(text, FallbackWarning, stacklevel=3)
        self.counts[what] += number

    def _blank(self, seed: Int[Tensor, " B"], noise: Tensor) -> State:
        spec, zero, agents = self.spec, torch.zeros_like(seed), (len(seed), self.spec.agents)
        obs: Any = noise.new_zeros(*agents, spec.obs)
        if spec.choices:
            obs = ChoiceObs(obs, torch.ones(*agents, spec.choices, dtype=torch.bool, device=seed.device))
        nobody = torch.zeros(agents, dtype=torch.bool, device=seed.device)
        return State(seed, zero, zero, obs, noise.new_zeros(agents), nobody, nobody[:, 0])

    def _observations(self, rows: Rows, like: Tensor) -> Any:
        obs = torch.from_numpy(rows.obs).to(like)
        return ChoiceObs(obs, torch.from_numpy(rows.legal).to(like.device)) if self.spec.choices else obs


def groups_of(description: Description, how: Grouping = "names") -> list[Group]:
    """Return the groups of an environment, in the order of its agents, which is by name."""
    named: dict[str, list[Any]] = {}
    for agent in description.agents:
        key = {"names": agent.group, "each": agent.name, "all": description.agents[0].group}[how]
        named.setdefault(key, []).append(agent)
    return [Group(name, len(members), *members[0].sizes) for name, members in named.items()]


def _put(tree: Any, at: Int[Tensor, " K"], values: Any) -> Any:
    """Return a tree with other values at some worlds."""
    return tree_map(lambda leaf, value: leaf.index_put((at,), value), tree, values)


def _ends(rows: Rows, before: Bool[Tensor, "K A"]) -> tuple[Bool[Tensor, "K A"], Bool[Tensor, " K"]]:
    """Return which tasks have ended after a step, and which episodes the environment has ended without them."""
    end = torch.from_numpy(rows.end).to(before.device)
    over = (before | (end > 0)).all(-1)
    cut = over & (end == TRUNCATED).any(-1)
    return before | (end == TERMINATED) | (end == UNSEEN) | ((end == TRUNCATED) & ~cut[:, None]), cut
