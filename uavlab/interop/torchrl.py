"""Worlds as an ``EnvBase`` of TorchRL, on any device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote
from uavlab.core.types import EnvSpec, leaves, observation_shapes, own_actions
from uavlab.interop.simulator import Simulator, agent_groups, agent_names, named, own_widths

ENDS = ("done", "terminated", "truncated")
RESERVED = {*ENDS, "state", "next", "shape", "device", "dtype", "space"}
"""Names that a group cannot have: entries of a world, and attributes of TorchRL's descriptions."""


class TeamEnvBase(EnvBase):
    """Worlds of an environment, see ``uavlab.to_torchrl``."""

    def __init__(self, simulator: Simulator, group_map: Mapping[str, Sequence[str]] | None = None) -> None:
        spec, names = simulator.spec, agent_names(simulator.spec)
        groups = agent_groups(spec) if group_map is None else numbers_of(spec, group_map)
        if taken := sorted(RESERVED & groups.keys()):
            raise ConfigError(f"to_torchrl: TorchRL allows no group the name {taken[0]!r}; choose another one.")
        super().__init__(device=simulator.device, batch_size=torch.Size([simulator.worlds]))
        self.simulator = simulator
        self.group_map = {group: [names[n] for n in numbers] for group, numbers in groups.items()}
        self.numbers = {group: torch.tensor(numbers, device=self.device) for group, numbers in groups.items()}
        self.widths = {group: own_widths(spec, numbers[0]) for group, numbers in groups.items()}
        state = {"state": self._numbers(spec.team, spec.side, spec.side)} if spec.team else {}
        ends_of_world = {name: self._flags(1) for name in ENDS}
        self.observation_spec = self._composite({**self._by_group(self._seen), **state})
        self.action_spec = self._composite(self._by_group(self._actions))
        self.reward_spec = self._composite(self._by_group(lambda _, agents: {"reward": self._numbers(agents, 1)}))
        ends_of_agents = self._by_group(lambda _, agents: {name: self._flags(agents, 1) for name in ENDS})
        self.done_spec = self._composite({**ends_of_agents, **ends_of_world})

    def to(self, device: Any) -> "TeamEnvBase":
        """Return this object, which stays on its device."""
        place = self.simulator.device
        if torch.zeros(0, device=device).device != place:
            raise ConfigError(f"to_torchrl: worlds on {place} cannot move to {device}; build them there by device=.")
        return self

    def _by_group(self, parts: Callable[[str, int], Mapping[str, Any]]) -> dict[str, Any]:
        """Return descriptions of each group, of which ``parts`` describes the entries by name and number of agents."""
        sizes = {group: len(agents) for group, agents in self.group_map.items()}
        return {group: self._composite(parts(group, agents), agents) for group, agents in sizes.items()}

    def _seen(self, group: str, agents: int) -> dict[str, Any]:
        spec, specs = self.simulator.spec, {}
        for name, (_, *shape) in named(spec, observation_shapes(spec)).items():
            size = (agents, *shape[:-1], self.widths[group].get(name, shape[-1]))
            specs[name] = self._flags(*size) if name == "action_mask" else self._numbers(*size)
        specs.pop("state", None)  # it is not of agents
        return specs

    def _actions(self, group: str, agents: int) -> dict[str, Any]:
        spec, names = self.simulator.spec, agent_names(self.simulator.spec)
        count, lead = own_actions(spec)[names.index(self.group_map[group][0])], (*self.batch_size, agents)
        if spec.choices:
            return {"action": Categorical(count, shape=lead, device=self.device, dtype=torch.int64)}
        return {"action": Bounded(-1.0, 1.0, shape=(*lead, count), device=self.device, dtype=torch.float32)}

    def _numbers(self, *shape: int) -> Unbounded:
        return Unbounded(shape=(*self.batch_size, *shape), device=self.device, dtype=torch.float32)

    def _flags(self, *shape: int) -> Categorical:
        return Categorical(2, shape=(*self.batch_size, *shape), device=self.device, dtype=torch.bool)

    def _composite(self, parts: Mapping[str, Any], *agents: int) -> Composite:
        return Composite(dict(parts), shape=(*self.batch_size, *agents), device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self.simulator.seed(seed)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        chosen = None if tensordict is None or self.simulator.state is None else tensordict.get("_reset", None)
        self.simulator.start(None if chosen is None else chosen.reshape(-1))
        return self._results()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        spec, live = self.simulator.spec, self.simulator.live
        given = {group: self._require_action(group, tensordict) for group in self.group_map}
        size, kind = (spec.agents,) if spec.choices else (spec.agents, spec.action), next(iter(given.values())).dtype
        team = torch.zeros(*self.batch_size, *size, device=self.device, dtype=kind)
        for group, action in given.items():
            padded = action if spec.choices else F.pad(action, (0, spec.action - action.shape[-1]))
            team.index_copy_(1, self.numbers[group], padded)
        reward, _ = self.simulator.step(team)
        results, reward = self._results(), reward * live
        for group, numbers in self.numbers.items():
            results[group, "reward"] = reward.index_select(1, numbers)[..., None]
        return results

    def _require_action(self, group: str, tensordict: TensorDictBase) -> Tensor:
        action, spec = tensordict.get((group, "action"), None), self.full_action_spec[group, "action"]
        if not isinstance(action, Tensor) or action.shape != spec.shape or action.dtype != spec.dtype:
            got = f"{action.dtype} of shape {tuple(action.shape)}" if isinstance(action, Tensor) else quote(action)
            raise ConfigError(
                f"step: {group}: got the action {got}; expected {spec.dtype} of shape {tuple(spec.shape)}."
            )
        return action.detach()

    def _results(self) -> TensorDict:
        """Return observations and ends; random actions of TorchRL are among the legal moves from now on."""
        simulator, late = self.simulator, self.simulator.truncated[:, None]
        parts = named(simulator.spec, dict(leaves(simulator.obs)))
        results: dict[str, Any] = ends(simulator.terminated[:, None], late)
        if "state" in parts:
            results["state"] = parts.pop("state")
        for group, numbers in self.numbers.items():
            live, widths = simulator.live.index_select(1, numbers)[..., None], self.widths[group]
            entries = {name: part.index_select(1, numbers)[..., : widths.get(name)] for name, part in parts.items()}
            entries |= ends(~live, late[..., None] & live)
            results[group] = TensorDict(entries, (*self.batch_size, len(self.group_map[group])), device=self.device)
            if "action_mask" in entries:
                self.full_action_spec[group, "action"].update_mask(entries["action_mask"])
        return TensorDict(results, self.batch_size, device=self.device)


def ends(terminated: Tensor, truncated: Tensor) -> dict[str, Tensor]:
    return dict(zip(ENDS, (terminated | truncated, terminated, truncated), strict=True))


def numbers_of(spec: EnvSpec, group_map: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, ...]]:
    names = agent_names(spec)
    items = list(group_map.items()) if isinstance(group_map, Mapping) else []
    fit = all(isinstance(group, str) and isinstance(agents, list | tuple) and agents for group, agents in items)
    if not fit or sorted(str(agent) for _, agents in items for agent in agents) != sorted(names):
        raise ConfigError(f"to_torchrl: got group_map={quote(group_map)}; expected lists of {quote(names)}, each once.")
    groups = {group: tuple(names.index(str(agent)) for agent in agents) for group, agents in items}
    for group, numbers in groups.items():
        sizes = {(*own_widths(spec, number).items(), own_actions(spec)[number]) for number in numbers}
        if len(sizes) > 1:
            raise ConfigError(f"to_torchrl: agents of {group!r} observe or do different things; expected one kind.")
    return groups
