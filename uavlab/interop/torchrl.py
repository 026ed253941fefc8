"""Worlds as an ``EnvBase`` of TorchRL, on any device."""

from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from uavlab.core.errors import ConfigError
from uavlab.core.groups import own_actions
from uavlab.core.types import leaves, observation_shapes
from uavlab.interop.agents import agent_groups, agent_names, named, own_widths
from uavlab.interop.simulator import Simulator

ENDS = ("done", "terminated", "truncated")


class TeamEnvBase(EnvBase):
    """Worlds of an environment, see ``uavlab.to_torchrl``.

    Attributes:
        simulator: The worlds.
        group_map: Names of the agents of each group.
    """

    def __init__(self, simulator: Simulator) -> None:
        """Describe the groups; worlds start with ``reset``."""
        super().__init__(device=simulator.device, batch_size=torch.Size([simulator.worlds]))
        spec, names = simulator.spec, agent_names(simulator.spec)
        self.simulator, groups = simulator, agent_groups(spec)
        self.group_map = {group: [names[n] for n in numbers] for group, numbers in groups.items()}
        self.numbers = {g: torch.tensor(numbers, device=self.device) for g, numbers in groups.items()}
        self.actions = {group: own_actions(spec)[numbers[0]] for group, numbers in groups.items()}
        self.widths = {group: own_widths(spec, numbers[0]) for group, numbers in groups.items()}
        lead = {group: (simulator.worlds, len(numbers)) for group, numbers in groups.items()}
        flags = {g: self._composite(lead[g], {name: self._flag(*lead[g], 1) for name in ENDS}) for g in groups}
        at_root = {name: self._flag(simulator.worlds, 1) for name in ENDS}
        reward = {g: self._composite(lead[g], {"reward": self._number(*lead[g], 1)}) for g in groups}
        action = {g: self._composite(lead[g], {"action": self._action(g, *lead[g])}) for g in groups}
        self.observation_spec = self._composite(lead[next(iter(groups))][:1], self._observation_specs(lead))
        self.action_spec, self.reward_spec, self.done_spec = (
            self._composite((simulator.worlds,), parts) for parts in (action, reward, {**flags, **at_root})
        )

    def to(self, device: Any) -> "TeamEnvBase":  # type: ignore[override]
        """Return this object, which stays on its device.

        Raises:
            ConfigError: It is another device.
        """
        if torch.zeros(0, device=device).device != self.simulator.device:
            raise ConfigError(
                f"to_torchrl: got the device {device} for worlds on {self.simulator.device}; build them there by device=."
            )
        return self

    def _observation_specs(self, lead: dict[str, tuple[int, int]]) -> dict[str, Any]:
        spec = self.simulator.spec
        shapes = named(spec, observation_shapes(spec, self.simulator.worlds))
        specs: dict[str, Any] = {}
        for group, (worlds, agents) in lead.items():
            own: dict[str, Any] = {}
            for name, (_, _, *rest) in ((n, s) for n, s in shapes.items() if n != "state"):
                shape = (worlds, agents, *rest[:-1], self.widths[group].get(name, rest[-1]))
                own[name] = self._flag(*shape) if name == "action_mask" else self._number(*shape)
            specs[group] = self._composite((worlds, agents), own)
        return specs | ({"state": self._number(*shapes["state"])} if "state" in shapes else {})

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        chosen = None if tensordict is None or self.simulator.state is None else tensordict.get("_reset", None)
        self.simulator.start(None if chosen is None else chosen.reshape(-1))
        return self._results()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        live, simulator = self.simulator.live, self.simulator
        spec, worlds = simulator.spec, simulator.worlds
        team = torch.zeros(worlds, spec.agents, device=self.device, dtype=torch.int64)
        if not spec.choices:
            team = torch.zeros(worlds, spec.agents, spec.action, device=self.device)
        for group, numbers in self.numbers.items():
            action = self._require_action(group, tensordict.get((group, "action"), None))
            team = team.index_copy(1, numbers, action)
        reward, _ = simulator.step(team)
        results = self._results()
        for group, numbers in self.numbers.items():
            results[group, "reward"] = (reward * live).index_select(1, numbers)[..., None]
        return results

    def _set_seed(self, seed: int | None) -> None:
        self.simulator.seed(seed)

    def _results(self) -> TensorDict:
        """Return observations and ends; random actions of TorchRL are among the legal moves from now on."""
        sim, size = self.simulator, self.batch_size
        parts = named(sim.spec, dict(leaves(sim.obs)))
        late = sim.truncated[:, None]
        results: dict[str, Any] = {"state": parts.pop("state")} if "state" in parts else {}
        for group, numbers in self.numbers.items():
            own = {
                name: part.index_select(1, numbers)[..., : self.widths[group].get(name)] for name, part in parts.items()
            }
            live = sim.live.index_select(1, numbers)
            own |= ends(~live[..., None], (late & live)[..., None])
            results[group] = TensorDict(own, (*size, len(self.group_map[group])), device=self.device)
            if "action_mask" in own:
                self.full_action_spec[group, "action"].update_mask(own["action_mask"])
        return TensorDict(results | ends(sim.terminated[:, None], late), size, device=self.device)

    def _require_action(self, group: str, action: Any) -> Tensor:
        """Return the actions of a group, as wide as those of the team.

        Raises:
            ConfigError: There is none, or it has another shape or type.
        """
        spec = self.full_action_spec[group, "action"]
        if not isinstance(action, Tensor) or action.shape != spec.shape or action.dtype != spec.dtype:
            got = f"{action.dtype} of shape {tuple(action.shape)}" if isinstance(action, Tensor) else f"{action!r}"
            raise ConfigError(
                f"step: got the action {got} of {group}; expected {spec.dtype} of shape {tuple(spec.shape)}."
            )
        return action if spec.dtype == torch.int64 else F.pad(action, (0, self.simulator.spec.action - spec.shape[-1]))

    def _action(self, group: str, *lead: int) -> Any:
        if self.simulator.spec.choices:
            return Categorical(self.actions[group], shape=lead, device=self.device, dtype=torch.int64)
        return Bounded(-1.0, 1.0, shape=(*lead, self.actions[group]), device=self.device, dtype=torch.float32)

    def _number(self, *shape: int) -> Unbounded:
        return Unbounded(shape=shape, device=self.device, dtype=torch.float32)

    def _flag(self, *shape: int) -> Categorical:
        return Categorical(2, shape=shape, device=self.device, dtype=torch.bool)

    def _composite(self, shape: tuple[int, ...], parts: dict[str, Any]) -> Composite:
        return Composite(parts, shape=shape, device=self.device)


def ends(terminated: Tensor, truncated: Tensor) -> dict[str, Tensor]:
    """Return the three flags of an end by name."""
    return dict(zip(ENDS, (terminated | truncated, terminated, truncated), strict=True))
