"""The base class of learners: an algorithm with its parameters, and what an experiment needs to know of it before."""

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.portable import Portable
from uavlab.core.protocols import CheckedTensors, Policy
from uavlab.core.registry import Settings
from uavlab.core.rng import Streams
from uavlab.core.symptoms import Symptoms
from uavlab.core.types import Batch, EnvSpec, Scale, Update
from uavlab.runtime.runtime import Runtime

ARGUMENTS = ("config", "spec", "inputs", "rng", "rt")  # that a learner's constructor may name
SAME = ("agents", "groups", "obs", "action", "choices", "team", "side", "features", "centred", "parts")  # of a spec


class Learner(Protocol):
    """A learning algorithm with its parameters; a class of your own may derive from it.

    Every learner needs ``policy`` and ``update``. The methods with a body are defaults for a learner whose state is the
    gradient steps (``Runtime.grad``) and tensors among its attributes, such as a target network, changed in place. The
    gradient step that is the first attribute holds the networks of its policy: one row each, the same number for each
    of its ``runs``. Class attributes and class methods say what experiments need to know before there is a learner.

    Attributes:
        runs: Number of runs.
        local: Names in ``state_dict`` of tensors that belong to the worlds of a rank. Where several ranks train
            together, all others are equal.
        settings: Its frozen dataclass of hyper-parameters.
        collector: Name of the collector that provides its batches.
        on_maps: Whether agents choose moves on maps alone; otherwise they observe vectors and their actions are
            continuous.
        inapplicable: Toggles without effect on it, with the reason.
        portable: How its policy becomes a file that runs without uavlab.
        symptoms: What a run watches, to warn of what ails it; by default scores alone.
    """

    runs: int
    local: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[type[Any]]
    collector: ClassVar[str]
    on_maps: ClassVar[bool] = False
    inapplicable: ClassVar[Mapping[str, str]] = dict.fromkeys(("update", "acting"), "this learner has one form of it")
    portable: ClassVar[Portable] = Portable()
    symptoms: ClassVar[Symptoms] = Symptoms()

    @classmethod
    def build(cls, config: Settings, inputs: Any, rng: Streams, rt: Runtime) -> "Learner":
        """Build the learner; ``inputs`` is what its collector measured of observations."""
        return _construct(cls, config.learner, config.env.spec, inputs, rng, rt)

    @classmethod
    def load_policy(cls, hyper: Any, trained: Any, spec: Any, parameters: Float[Tensor, "R K P"]) -> Policy:
        """Return the policy of ``parameters`` for ``spec``, which may differ from the one that it was trained on.

        By default it is that of a new learner whose first gradient step holds them.
        """
        cls.require_same(hyper, trained, spec)
        rng = Streams(range(len(parameters)), parameters.device, parameters.dtype)
        fresh = _construct(cls, hyper, trained, None, rng, Runtime(rng.device))
        matrix = policy_matrix(fresh)
        if matrix.numel() == parameters.numel():
            matrix.copy_(parameters.reshape(matrix.shape))
        if not torch.equal(fresh.parameters(), parameters):
            raise ConfigError(
                f"learner: parameters of {cls.__name__} are not those of its first gradient step; register it with "
                "`load_policy=`, a function (settings, spec trained on, spec to act in, parameters) -> policy."
            )
        return fresh.policy(spec)

    @classmethod
    def size(cls, hyper: Any, spec: Any) -> int:
        """Return the number of parameters of one policy network."""
        if layers := cls.portable.layers(hyper, spec):
            return sum(math.prod(shape) for layer in layers.values() for shape in layer.values())
        return _construct(cls, hyper, spec, None, Streams([0]), Runtime()).parameters().shape[-1]

    @classmethod
    def unsupported(cls, spec: Any) -> str | None:
        """Return why an environment with this ``spec`` cannot be learned; None if it can."""
        if not isinstance(spec, EnvSpec):
            return "it has no team of agents"
        if cls.on_maps and not (spec.choices and spec.side):
            return "its agents do not choose moves on maps"
        if cls.on_maps:
            seen = "its agents observe features beside their maps, this learner takes maps alone"
            return seen if spec.features else None
        if spec.choices:
            return "its agents choose among moves, this learner's actions are continuous"
        return "its agents observe maps, this learner takes vectors" if spec.side else None

    @classmethod
    def require_same(cls, hyper: Any, trained: Any, spec: Any) -> None:
        """Check that a policy that was trained on one ``spec`` can act in another, by default in a team like its own.

        Raises:
            ConfigError: It cannot.
        """
        if differing := [name for name in SAME if getattr(trained, name) != getattr(spec, name)]:
            text = [", ".join(f"{name}={getattr(team, name)}" for name in differing) for team in (trained, spec)]
            raise ConfigError(
                f"policy: trained on {text[0]}, to be used with {text[1]}; expected the same, or a learner registered "
                "with `require_same=`."
            )

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        """Return the entries of a dry run about the learner."""
        return {}

    @classmethod
    def assign_networks(cls, hyper: Any, spec: Any) -> Sequence[int] | None:
        """Return the index of each agent's network among the rows of ``parameters``.

        None if it is unknown, and groups of a team cannot be chosen one by one.
        """
        return None

    def policy(self, spec: Any, explore: bool = False) -> Policy:
        """Return the policy in training for this environment ``spec``; with ``explore``, the one that collects rows."""

    def parameters(self) -> Tensor:
        """Return a copy of the parameters that a policy needs, (R networks numbers)."""
        return policy_matrix(self).clone().unflatten(0, (self.runs, -1))

    def update(self, batch: Batch, noise: Any) -> Update:
        """Update the parameters from a batch."""

    def update_noise(self, rng: Any, rows: int) -> Any:
        """Draw the noise of one update on ``rows`` rows per run, the second argument of ``update``; by default None.

        An update draws no random numbers itself: ``rng.normal("next_action", rows, agents, actions)`` has shape
        (R rows agents actions), and each run draws from streams of its own.
        """
        return

    def tensors_to_check(self, update: Update | None = None) -> CheckedTensors:
        """Return all tensors that later updates depend on, or all tensors of ``update``."""
        if update is not None:
            return {name: (value, "R") for name, value in update.metrics.items()}
        state = self.state_dict().items()
        return {name: _with_axes(each, self.runs) for name, each in state if each.is_floating_point() and each.dim()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors that later updates depend on."""
        state: dict[str, Tensor] = {}
        for name, part in parts(self):
            held = (
                {name: part} if isinstance(part, Tensor) else {f"{name}.{k}": v for k, v in part.state_dict().items()}
            )
            known = {(tensor.data_ptr(), tensor.shape) for tensor in state.values()}
            state |= {key: leaf.detach() for key, leaf in held.items() if (leaf.data_ptr(), leaf.shape) not in known}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``."""
        for name, tensor in Learner.state_dict(self).items():  # not copies
            if name in state:
                tensor.copy_(state[name])
        for _, part in parts(self):
            if not isinstance(part, Tensor):
                part.load_state_dict(part.state_dict())  # what it derives from its state follows


def _construct(cls: type[Any], config: Any, spec: Any, inputs: Any, rng: Streams, rt: Runtime) -> Any:
    """Build a learner from the arguments that its constructor names; without ``inputs``, for other parameters."""
    if inputs is None and not spec.choices:
        ones = torch.ones(len(rng.seeds), spec.agents, spec.obs, device=rng.device, dtype=rng.dtype)
        inputs = Scale(0 * ones, ones)
    given = dict(zip(ARGUMENTS, (config, spec, inputs, rng, rt), strict=True))
    result = cls(**{name: given[name] for name in inspect.signature(cls).parameters if name in given})
    for name in ("policy", "update", "runs"):
        member = getattr(result, name, None)
        if member is None or getattr(member, "__func__", None) in (Learner.policy, Learner.update):
            what = "runs = len(rng.seeds)" if name == "runs" else f"a method {name}"
            raise ConfigError(f"learner: {cls.__name__} has no {name}; add {what} (uavlab.Learner).")
    return result


def _with_axes(tensor: Tensor, runs: int) -> tuple[Tensor, str]:
    """Return a tensor and its leading axes: a row for each run, the same number of rows for each, or others."""
    if len(tensor) in (0, runs) or len(tensor) % runs:
        return tensor, "R" if len(tensor) == runs else ""
    return tensor.unflatten(0, (runs, -1)), "R K"


def parts(learner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that hold the state of a learner: gradient steps, modules, learners, and then tensors."""
    stateful = [(name, each) for name, each in vars(learner).items() if hasattr(each, "load_state_dict")]
    yield from ((name, each) for name, each in stateful if hasattr(each, "parameters"))  # random streams have none
    yield from ((name, each) for name, each in vars(learner).items() if isinstance(each, Tensor))


def policy_matrix(learner: Any) -> Tensor:
    """Return the parameter of a learner's first gradient step, not a copy; refuse a learner that has none."""
    held = (getattr(part, "parameters", None) for _, part in parts(learner))
    first = next((each for each in held if isinstance(each, list)), [])  # those of a module are a method
    if len(first) != 1:
        raise ConfigError(
            f"{type(learner).__name__}: no attribute is a gradient step of one matrix; keep `rt.grad(matrix, ...)` on "
            "self as the first one, or write parameters."
        )
    return first[0].detach()
