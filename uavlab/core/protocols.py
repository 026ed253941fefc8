"""Protocols of the training loop: a policy, an environment and a collector of batches."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.registry import Settings
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Rule, Update

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
    policy. ``OptionalHooks`` names what an environment may have besides.
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


class OptionalHooks(Protocol[S]):
    """What an environment may have besides the members of ``Env``; whoever uses one asks whether it is there.

    Attributes:
        rules: Conditions on fields and ``eval_`` fields, each a ``uavlab.core.types.Rule``.
        labels: Names for people of metrics and settings, with the unit of a setting, which figures show.
        sizes: Fields that are sizes of a team, each a number, or fewest and most.
        perception: Fields that a policy takes along where it is scored on another task.
        initial_settings: Fields that ``initial`` alone reads, which the stages of a curriculum may change.
        group_scores: For each group of the team a ``score`` of its own, by which its policy is selected.
        evaluation: Values of fields that differ where policies are evaluated.
        host_work: Why functions can be neither compiled nor part of a CUDA graph; empty if they can. Where it is there,
            a state may be stepped once alone.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()
    labels: ClassVar[Mapping[str, str]] = {}
    sizes: ClassVar[tuple[str, ...]] = ()
    perception: ClassVar[tuple[str, ...]] = ()
    initial_settings: ClassVar[tuple[str, ...]] = ()
    group_scores: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    evaluation: ClassVar[Mapping[str, Any]] = {}
    host_work: str = ""

    def truncated(self, state: S) -> Bool[Tensor, " B"]:
        """Return which worlds end before the horizon although tasks have not ended."""

    def initial_where(self, noise: Float[Tensor, "B K"], needed: Bool[Tensor, " B"]) -> S:
        """Create worlds as ``initial`` does where they are needed, of an environment whose worlds start slowly."""

    def takes_part(self, state: S) -> Bool[Tensor, "B A"]:
        """Return which agents take part in each world, of an environment whose ``spec`` has ``deaths``."""

    def record(self) -> dict[str, Any]:
        """Return what the record of a run says of the environment."""

    def inexact(self) -> list[str]:
        """Return why worlds cannot be repeated bit for bit; empty if they can."""

    def check_chance(self) -> None:
        """Look for reasons of ``inexact``."""


Snapshot = Callable[[], Policy]
"""A function that copies the policy of a learner, for a thread that acts by it while the learner goes on."""


class Trial(NamedTuple):
    """A small run that is timed in place of another one."""

    config: Any  # its settings
    times: float = 1.0  # how many times as long an update of the other one takes
    size: str = ""  # what makes its updates shorter, such as ``4 of 16 worlds``
    apart: str = ""  # what only the other one does


class Collector(Protocol):
    """A source of batches for a learner: steps of worlds, or windows of logs.

    The methods with a body are defaults of one that steps worlds, without replay, priorities, or work around a captured
    cycle. Class methods serve experiments before there is a collector.

    Attributes:
        settings: Its frozen dataclass of settings.
        per_rank: Settings of which each of several ranks has as much.
        replay: Whether it has a replay buffer, which ``resume --fresh-replay`` can refill.
        lacks: Missing parts, among ``team``, ``replay`` and ``logs``, and why their toggles have no effect.
        calls: The calls of a cycle that a comparison can time alone.
        host_work: Why ``next`` cannot be part of a CUDA graph; empty if it can.
        share: Of new worlds that start at each stage; None where the environment has no stages.
        resized: Whether the state loaded last is of another number of worlds, and rows of replay changed with it.
    """

    settings: ClassVar[type[Any]]
    per_rank: ClassVar[tuple[str, ...]] = ("worlds",)
    replay: ClassVar[bool] = False
    lacks: ClassVar[Mapping[str, str]] = {}
    calls: ClassVar[tuple[str, ...]] = ("update", "acting", "environment")
    host_work: str = ""
    share: Float[Tensor, "R S"] | None = None
    resized: bool = False

    @classmethod
    def measure_inputs(cls, config: Settings, rng: Streams, rt: Any) -> Any:
        """Return what the learner and the collector need to know of observations, computed once per run."""
        return

    @classmethod
    def build(
        cls, config: Settings, env: Any, inputs: Any, policy: Policy, snapshot: Snapshot, rng: Streams, rt: Any
    ) -> "Collector":
        """Build the collector, which collects by ``policy``."""
        raise NotImplementedError

    @classmethod
    def steps_per_update(cls, config: Settings) -> int:
        """Return how many steps every world takes per update."""
        raise NotImplementedError

    @classmethod
    def data_per_update(cls, config: Settings) -> tuple[int, str]:
        """Return the amount of data per update of all runs, and its unit."""
        agents = config.source.worlds * config.run.runs * config.env.spec.agents
        return cls.steps_per_update(config) * agents, "agent-steps"

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        """Return the entries of a dry run about it, None where its length is not known; build nothing."""
        if config.run.updates is None:
            return {"world_steps_per_run": None, "agent_steps_per_run": None}
        steps = config.run.updates * cls.steps_per_update(config) * config.source.worlds
        return {"world_steps_per_run": steps, "agent_steps_per_run": steps * config.env.spec.agents}

    @classmethod
    def trial(cls, config: Settings) -> Trial:
        """Return a smaller run by which the time of this one is estimated."""
        return Trial(config)

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
