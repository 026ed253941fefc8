"""How a trained policy leaves the package as a file: inputs and outputs, with a batch axis first, and parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from uavlab.core.protocols import Policy, step_policy
from uavlab.core.types import ChoiceObs, EnvSpec, MapObs, observation_shapes

Layers = Mapping[str, Mapping[str, tuple[int, ...]]]
"""Shapes of the tensors in a row of parameters, by layer and name, in the order of the row."""

OWN_UNITS = "as the environment's observe returns it"


@dataclass(frozen=True)
class Signal:
    """An input or an output of an exported policy."""

    axes: Mapping[str, int]  # lengths of the axes after the batch, by name
    about: str
    unit: str | tuple[str, ...] = ""  # of all entries, or of each entry of the last axis
    dtype: torch.dtype = torch.float32
    limits: tuple[float, float] | None = None  # smallest and largest value
    names: tuple[str, ...] = ()  # of the entries of the last axis
    normalisation: str = "none"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.axes.values())

    def sample(self, batch: int, generator: torch.Generator) -> Tensor:
        """Draw values: uniform within the limits, else standard normal; True where they are truth values."""
        shape = (batch, *self.shape)
        if self.dtype == torch.bool:
            return torch.ones(shape, dtype=self.dtype)
        if self.limits is None:
            return torch.randn(shape, generator=generator, dtype=self.dtype)
        low, high = self.limits
        width = high - low if self.dtype.is_floating_point else high - low + 1
        return (low + width * torch.rand(shape, generator=generator)).to(self.dtype)


Signals = dict[str, Signal]


def team_inputs(spec: EnvSpec) -> Signals:
    """Return the inputs of a team's policy: its observations, and the noise of ``rng.acting_noise``."""
    agent, move, square = {"agent": spec.agents}, {"move": spec.choices}, {"row": spec.side, "column": spec.side}
    noise = Signal({**agent, "dimension": spec.action}, "standard normal")
    if spec.choices:
        noise = Signal(agent, "uniform in [0, 1)", limits=(0.0, 1.0))
    seen = Signal({**agent, "feature": spec.obs}, "observations", OWN_UNITS)
    legal = Signal({**agent, **move}, "moves that are allowed, at least one", "", torch.bool)
    if not spec.side:
        return {"observations": seen, **({"legal": legal} if spec.choices else {}), "noise": noise}
    cell = Signal(agent, "cell of each agent, row * columns + column", "", torch.int64, (0, spec.side**2 - 1))
    signals = {
        "maps": Signal({**agent, "channel": spec.obs, **square}, "maps of each agent", OWN_UNITS),
        "team": Signal({"channel": spec.team, **square}, "maps for a critic", OWN_UNITS),
        "place": cell,
        "legal": legal,
        "target_cell": replace(cell, axes={**agent, **move}, about="cell to which each move leads"),
        "features": Signal({**agent, "feature": spec.features}, "observations beside the maps", OWN_UNITS),
    }
    return {**{name: signals[name] for name in observation_shapes(spec)}, "noise": noise}


def team_outputs(spec: EnvSpec) -> Signals:
    """Return the outputs of a team's policy: its action without and with noise."""
    agent = {"agent": spec.agents}
    if spec.choices:
        move = Signal(agent, "number of the likeliest move", "", torch.int64, (0, spec.choices - 1))
        return {"likeliest": move, "sampled": replace(move, about="number of the move that the noise selects")}
    action = Signal({**agent, "dimension": spec.action}, "mean action", "1", limits=(-1.0, 1.0))
    return {"mean": action, "sampled": replace(action, about="action that the noise selects")}


def with_memory(spec: EnvSpec, units: int, inputs: Signals, outputs: Signals) -> tuple[Signals, Signals]:
    """Return the inputs and outputs of a policy with ``units`` units of memory, which is its last input and output."""
    if not units:
        return inputs, outputs
    axes, about = {"agent": spec.agents, "unit": units}, "the output next_memory of the step before"
    memory = Signal(axes, f"memory: zeros in the first step of an episode, then {about}")
    return {**inputs, "memory": memory}, {**outputs, "next_memory": Signal(axes, "memory after the step")}


def act_with_and_without_noise(policy: Policy, **inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the actions of ``team_inputs`` without and with noise, and the memory after them if the policy has one."""
    parts = {name: each[None] for name, each in inputs.items()}
    noise, memory = parts.pop("noise"), parts.pop("memory", None)
    obs: Any = MapObs(**parts) if "maps" in parts else parts["observations"]
    if "observations" in parts and "legal" in parts:
        obs = ChoiceObs(features=obs, legal=parts["legal"])
    (mean, after), (sampled, _) = (step_policy(policy, obs, each, memory) for each in (None, noise))
    return (mean[0], sampled[0]) if after is None else (mean[0], sampled[0], after[0])


@dataclass(frozen=True)
class Portable:
    """How the policy of a learner becomes a file; the defaults serve every policy of a team.

    Without ``layers``, the tensors that the policy holds are constants of the file without a name.
    """

    inputs: Callable[[Any], Signals] = team_inputs  # spec -> inputs by name, in the order of the arguments
    outputs: Callable[[Any], Signals] = team_outputs  # spec -> outputs by name
    call: Callable[..., tuple[Tensor, ...]] = act_with_and_without_noise  # (policy, inputs by name) -> outputs
    layers: Callable[[Any, Any], Layers] = lambda config, spec: {}
    memory: Callable[[Any], int] = lambda config: 0  # hyper-parameters -> units of an agent's memory
