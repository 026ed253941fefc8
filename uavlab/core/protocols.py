"""Protocols of the training loop: an environment, a source of batches and a learner."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.types import Batch, EnvSpec, Update

S = TypeVar("S")

CheckedTensors = dict[str, tuple[Tensor, str]]
"""Tensors that must be finite, by name, with their leading axes: ``(reward, "R W A")``.

Inputs come before what is computed from them, because a message names the first tensor that is not finite. The letters
of axes are those of ``uavlab.core.errors.AXIS_NAMES``; messages leave out others.
"""


@runtime_checkable
class RecurrentPolicy(Protocol):
    """A policy whose actions depend on earlier observations through a memory, which its caller keeps.

    World w of memory and actions depends only on world w of the arguments.
    """

    def initial(self, runs: int, worlds: int) -> Float[Tensor, "R W A M"]:
        """Return the memory at the start of an episode, which is zero."""

    def __call__(
        self, obs: Any, noise: Tensor | None, memory: Float[Tensor, "R W A M"]
    ) -> tuple[Tensor, Float[Tensor, "R W A M"]]:
        """Return actions as a ``Policy`` without memory does, and the memory after them."""


Policy = Callable[[Any, Tensor | None], Tensor] | RecurrentPolicy
"""A function of observations (R W A O, or a tree of tensors) and noise of ``rng.acting_noise`` (None for the mode).

It returns actions (R W A D) in [-1, 1], or numbers of choices (R W A). A policy with memory also takes and returns its
memory; ``initial_memory``, ``step_policy`` and ``forget`` serve policies with and without memory.
"""


def initial_memory(policy: Any, runs: int, worlds: int) -> Float[Tensor, "R W A M"] | None:
    """Return the memory of a policy at the start of episodes; None of one without memory."""
    return policy.initial(runs, worlds) if isinstance(policy, RecurrentPolicy) else None


def step_policy(policy: Any, obs: Any, noise: Tensor | None, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the actions of a policy, and its memory after them, from the memory before: None of one without memory."""
    return (policy(obs, noise), None) if memory is None else policy(obs, noise, memory)


def forget(memory: Tensor | None, ended: Bool[Tensor, "R W"]) -> Tensor | None:
    """Return the memory with that of worlds that ended set to zero, as at the start of an episode."""
    return None if memory is None else memory.masked_fill(ended[..., None, None], 0.0)


class Env(Protocol[S]):
    """A task as pure functions over a batch of worlds; its fields are parameters, its state is an argument.

    World b of a result depends only on world b of the arguments. Random numbers are passed in as ``noise``. Worlds are
    also stepped after their end, where all numbers must stay finite. ``metrics``, a tuple of ``Metric``, describes what
    ``measure`` returns; ``score`` maps metrics (and flight time, timeout and return) to weights for the selection of a
    policy. The class attribute ``rules``, a tuple of ``uavlab.core.types.Rule``, is optional: conditions on fields and
    ``eval_`` fields. So are ``labels``, names for people (``uavlab.core.labels``); ``sizes``, fields that are sizes of
    a team, each a number, or fewest and most; ``perception``, fields that a policy takes along where it is scored on
    another task; and ``initial_settings``, fields that ``initial`` alone reads, which the stages of a curriculum may
    change. Optional functions: ``truncated(state)``, worlds that end before the horizon although tasks have not (B);
    ``initial_where(noise, needed)``, which creates worlds as ``initial`` does where they are needed, of an environment
    whose worlds are costly to start; ``record()`` and ``inexact()``, what the record of a run says of it; and, where
    ``inexact`` may return reasons, ``check_chance()``, which looks for some, and ``notice(text)``, which adds one.
    Where ``host_work`` is a text, it says why functions can be neither compiled nor part of a CUDA graph.
    """

    metrics: ClassVar[Any]  # a type here would refuse the narrower one that checkers infer for a class attribute
    score: ClassVar[Any]

    @property
    def spec(self) -> EnvSpec:
        """Shapes, time limit and noise of the task."""

    def initial(self, noise: Float[Tensor, "B K"]) -> S:
        """Create worlds from ``spec.initial_noise`` uniform numbers each."""

    def transition(self, state: S, action: Float[Tensor, "B A D"], noise: Float[Tensor, "B K"]) -> S:
        """Step every world once; the state counts steps in ``step``."""

    def observe(self, state: S) -> Any:
        """Return observations (B A O), a ``ChoiceObs`` where agents choose moves, or a ``MapObs`` on maps."""

    def reward(self, state: S, action: Float[Tensor, "B A D"], after: S) -> Float[Tensor, "B A"]:
        """Return the reward of each agent for a step."""

    def terminated(self, state: S) -> Bool[Tensor, "B A"]:
        """Return which agents' task has ended; the time limit does not count."""

    def measure(self, state: S, action: Float[Tensor, "B A D"], after: S) -> dict[str, Float[Tensor, " B"]]:
        """Return a number per world for each of ``metrics``."""


class Source(Protocol):
    """A source of batches: a collector over worlds, or windows of logs.

    The methods with a body are defaults of a source without replay, priorities, or work around a captured cycle.

    Attributes:
        host_work: Why ``next`` cannot be part of a CUDA graph; empty if it can.
        share: Of new worlds that start at each stage; None where the environment has no stages.
        resized: Whether the state loaded last is of another number of worlds, and rows of replay changed with it.
    """

    host_work: str = ""
    share: Float[Tensor, "R S"] | None = None
    resized: bool = False

    def next(self) -> Batch:
        """Return the next batch."""

    def before_cycle(self) -> None:
        """Run the work before a cycle that a CUDA graph must not capture."""
        return

    def after_cycle(self) -> None:
        """Run the work after a cycle that a CUDA graph must not capture."""
        return

    def feedback(self, batch: Batch, update: Update) -> None:
        """Use the result of the update on a batch, such as for priorities."""
        return

    def set_stages(self, share: Float[Tensor, "R S"], stage: Int[Tensor, " R"]) -> None:
        """Start new worlds at each stage by these shares, from the next ones on; a replay fills batches by them, too.

        Args:
            share: Of new worlds that start at each stage.
            stage: The present stage of each run, from 0.
        """
        if self.share is not None:
            self.share.copy_(share)

    def figures(self) -> dict[str, Float[Tensor, " R"]]:
        """Return means over the episodes that ended since the last call, by name (host sync); empty without any."""
        return {}

    def record(self) -> dict[str, Any]:
        """Return what the record of a run says of where rows come from, such as workers that were started again."""
        return {}

    def inexact(self) -> list[str]:
        """Return why rows cannot be repeated bit for bit."""
        return []

    def ended(self) -> float | None:
        """Return how many episodes of a run have ended in the present worlds (host sync); None if nothing counts."""
        return None

    def tensors_to_check(self) -> CheckedTensors:
        """Return the tensors of ``state_dict`` that were not checked when they were computed."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors that later batches depend on."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``."""

    def segments(self, saved: Iterable[str]) -> dict[str, dict[str, Tensor] | None]:
        """Return replay in segments that never change; None stands for a segment that is in ``saved``."""
        return {}

    def load_segments(self, segments: Mapping[str, Mapping[str, Tensor]] | None) -> None:
        """Restore replay from its segments; None leaves it empty."""
        return

    def rows(self) -> dict[str, Tensor]:
        """Return replay as it lies in memory, for digests."""
        return {}


class Learner(Protocol):
    """A learning algorithm with its parameters; a class of your own may derive from it.

    Every learner needs ``policy`` and ``update``. The methods with a body are defaults for a learner whose state is the
    gradient steps (``Runtime.grad``) and tensors among its attributes, such as a target network, changed in place. The
    gradient step that is the first attribute holds the networks of its policy: one row each, the same number for each
    of its ``runs``, an attribute. Where several ranks train together, all states are equal, but for tensors that belong
    to the worlds of a rank, whose names in ``state_dict`` are ``local``.
    """

    runs: int
    local: ClassVar[tuple[str, ...]] = ()

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
            own = {name: part} if isinstance(part, Tensor) else {f"{name}.{k}": v for k, v in part.state_dict().items()}
            known = {(each.data_ptr(), each.shape) for each in state.values()}
            state |= {key: each.detach() for key, each in own.items() if (each.data_ptr(), each.shape) not in known}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``."""
        for name, tensor in Learner.state_dict(self).items():  # not copies
            if name in state:
                tensor.copy_(state[name])
        for _, part in parts(self):
            if not isinstance(part, Tensor):
                part.load_state_dict(part.state_dict())  # what it derives from its state follows


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
    """Return the parameter of a learner's first gradient step, not a copy.

    Raises:
        ConfigError: The learner has no gradient step of one matrix.
    """
    held = (getattr(part, "parameters", None) for _, part in parts(learner))
    first = next((each for each in held if isinstance(each, list)), [])  # those of a module are a method
    if len(first) != 1:
        raise ConfigError(
            f"{type(learner).__name__}: no attribute is a gradient step of one matrix; keep `rt.grad(matrix, ...)` on "
            "self as the first one, or write parameters."
        )
    return first[0].detach()
