"""External environments as ``Env``: pure functions of a state that holds a seed and the actions since its start."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from uavlab.workers.cache import Cache, World, cache_for, key_of
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
    """A batch of worlds: the seed and the actions that lead to each, and what the last step returned."""

    seed: Int[Tensor, " B"]  # of the start
    step: Int[Tensor, " B"]  # steps since
    key: Int[Tensor, " B"]  # fingerprint of seed and actions, by which a copy in this state is known
    actions: Float[Tensor, "B H A D"] | Int[Tensor, "B H A"]  # since the start, then zeros (H is the horizon)
    obs: Any  # Float[Tensor, "B A O"] | ChoiceObs
    reward: Float[Tensor, "B A"]  # of the last step
    ended: Bool[Tensor, "B A"]  # agents whose task has ended
    cut: Bool[Tensor, " B"]  # the environment ended the episode, but not the tasks


@dataclass(frozen=True)
class External:
    """An environment of Gymnasium or PettingZoo, whose copies are stepped by worker processes.

    A state is the seed of its start and the actions since; the copies are a cache of such states. So a run resumes, and
    a worker that was lost is replaced, with the same bits, if the environment draws all chance from the seed of its
    reset. An agent that the environment truncates while others go on counts as ended; where the last ones are
    truncated, the episode is, and values are bootstrapped. A world stays as it is after its end, and rewards are 0.

    Attributes:
        workers: Processes that step the environment; 0 for one per processor.
        copies: Copies of the environment in all workers; more worlds than that at once make more.
        timeout_s: Seconds that a worker may take to step all its worlds once, after which it is replaced; to make
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
        seed = high * 2**16 + low
        state = self._blank(seed, noise)
        if not needed.any():
            return state
        numbers, place = np.unique(seed[needed].cpu().numpy(), return_inverse=True)  # equal seeds start once
        keys = [key_of(0, number.to_bytes(8, "little")) for number in numbers.tolist()]
        worlds = [World(n, number, key) for n, (number, key) in enumerate(zip(numbers.tolist(), keys, strict=True))]
        rows = Rows(*(array[place] for array in self._cache.bring(worlds)))
        key = torch.from_numpy(np.array(keys, np.int64)[place]).to(seed.device)
        at = needed.nonzero()[:, 0]
        return replace(
            state, key=state.key.index_put((at,), key), obs=_put(state.obs, at, self._observations(rows, noise))
        )

    def transition(self, state: State, action: Tensor, noise: Float[Tensor, "B 0"]) -> State:
        """Step the worlds that go on, all workers at once (host sync)."""
        going = ~(state.cut | state.ended.all(-1) | (state.step >= self.horizon))
        turn = torch.arange(self.horizon, device=going.device)
        now = (turn == state.step[:, None]) & going[:, None]
        actions = torch.where(now.view(*now.shape, *[1] * (action.dim() - 1)), action[:, None], state.actions)
        still = replace(state, step=state.step + 1, actions=actions, reward=torch.zeros_like(state.reward))
        if not going.any():
            return still
        at = going.nonzero()[:, 0]
        worlds = self._worlds(state, action, at.tolist())
        rows = self._cache.bring(worlds)
        keys = torch.tensor([world.after for world in worlds], device=at.device)
        ended, cut = _ends(rows, state.ended[at])
        self._count_unseen(rows)
        after = replace(
            still,
            key=still.key.index_put((at,), keys),
            obs=_put(still.obs, at, self._observations(rows, state.reward)),
            reward=still.reward.index_put((at,), torch.from_numpy(rows.reward).to(still.reward)),
            ended=still.ended.index_put((at,), ended),
            cut=still.cut.index_put((at,), cut),
        )
        over = (after.cut | after.ended.all(-1) | (after.step >= self.horizon)) & going
        self._cache.release(after.key[over].tolist())
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
        """Return what happened to workers and worlds since this process began, for the record of a run."""
        notes = {"notes": list(self.description.notes)} if self.description.notes else {}
        return {"read": self.reading, **notes, "workers": self._cache.count, **self._cache.counts}

    def inexact(self) -> list[str]:
        """Return why a run cannot be repeated bit for bit."""
        reason = self._cache.reason
        return [f"{self.origin.name}: {reason}"] if reason else []

    def check_chance(self) -> None:
        """Compare copies of the environment from one seed; where they differ, warn, and remember it for ``inexact``."""
        self._cache.check_chance()

    def notice(self, text: str) -> None:
        """Warn that numbers came out otherwise than before, and remember it for ``inexact``."""
        self._cache.notice(text)

    @property
    def _cache(self) -> Cache:
        return cache_for(self.origin, self.description, self.workers, self.copies, self.timeout_s)

    def _count_unseen(self, rows: Rows) -> None:
        """Count agents that were cut without a last observation, and warn of the first."""
        world, agent = np.nonzero(rows.end == UNSEEN)
        if len(agent) and not self._cache.counts["unseen"]:
            warnings.warn(
                f"{self.origin.name}: step truncated {self.description.agents[agent[0]].name} without a last "
                "observation, so this counts as an end, and no value follows it; return the observation of every agent "
                "that is truncated. Further ones are counted in run.json.",
                FallbackWarning,
                stacklevel=2,
            )
        self._cache.counts["unseen"] += len(world)

    def _blank(self, seed: Int[Tensor, " B"], noise: Tensor) -> State:
        spec, zero, agents = self.spec, torch.zeros_like(seed), (len(seed), self.spec.agents)
        moves = (len(seed), self.horizon, spec.agents)
        actions = seed.new_zeros(moves) if spec.choices else noise.new_zeros(*moves, spec.action)
        obs: Any = noise.new_zeros(*agents, spec.obs)
        if spec.choices:
            obs = ChoiceObs(obs, torch.ones(*agents, spec.choices, dtype=torch.bool, device=seed.device))
        nobody = torch.zeros(agents, dtype=torch.bool, device=seed.device)
        return State(seed, zero, zero, actions, obs, noise.new_zeros(agents), nobody, nobody[:, 0])

    def _worlds(self, state: State, action: Tensor, at: Sequence[int]) -> list[World]:
        """Return the worlds to be stepped, with functions that read what a world needs that must be rebuilt."""
        host = action.detach().cpu().numpy()
        host = host[..., None] if self.spec.choices else host.astype(np.float32)
        seeds, keys = state.seed.tolist(), state.key.tolist()

        def past(world: int) -> np.ndarray:
            actions = state.actions[world, : int(state.step[world])].cpu().numpy()
            return actions[..., None] if self.spec.choices else actions.astype(np.float32)

        def seen(world: int) -> np.ndarray:
            obs = state.obs.features if self.spec.choices else state.obs
            return obs[world].cpu().numpy().astype(np.float32)

        return [
            World(
                number=n,
                seed=seeds[n],
                after=key_of(keys[n], host[n].tobytes()),
                before=keys[n],
                action=host[n],
                past=partial(past, n),
                seen=partial(seen, n),
            )
            for n in at
        ]

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
