"""The contracts that meet in the training loop: an environment, a source of batches and a learner."""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.types import Batch, EnvSpec, Metric, Update

S = TypeVar("S")

CheckedTensors = dict[str, tuple[Tensor, str]]
"""Tensors that must stay finite, by name and in the order of cause, with their leading axes: ``(reward, "R W A")``.

The letters are those of ``uavlab.core.errors.PLACES``; an axis with another letter is not named in messages.
"""

Policy = Callable[[Any, Tensor | None], Tensor]
"""Observations (R W A O, or a tree of tensors) and noise of ``rng.acting_noise``, None for the mode, to actions.

Actions are R W A D in [-1, 1], or R W A numbers of choices.
"""


class Env(Protocol[S]):
    """A task as five pure functions over a batch of worlds; its parameters live on ``self``, its state never does.

    World b of the result depends on world b of the arguments alone. Randomness arrives as ``noise``. Worlds are also
    flown on past their end, where all their numbers must stay finite. ``metrics`` are what ``measure`` gives; ``score``
    weighs them (and flight time, timeout, return) where one policy must be chosen. A class attribute ``rules``, a tuple
    of ``uavlab.core.types.Rule``, is optional: what must hold between its fields, and ``eval_`` fields too.
    """

    metrics: ClassVar[tuple[Metric, ...]]
    score: ClassVar[dict[str, float]]

    @property
    def spec(self) -> EnvSpec:
        """Shapes, limits and noise of the task."""
        ...

    def initial(self, noise: Float[Tensor, "B K"]) -> S:
        """Draw fresh worlds from ``spec.initial_noise`` uniform numbers each."""
        ...

    def transition(self, state: S, action: Float[Tensor, "B A D"], noise: Float[Tensor, "B K"]) -> S:
        """Move every world by one step; the state counts its steps in ``step``."""
        ...

    def observe(self, state: S) -> Any:
        """Show each agent what it may see: B A O, or where it chooses among moves a ``MapObs``."""
        ...

    def reward(self, state: S, action: Float[Tensor, "B A D"], after: S) -> Float[Tensor, "B A"]:
        """Pay each agent for one step."""
        ...

    def terminated(self, state: S) -> Bool[Tensor, "B A"]:
        """Tell which agents' task has ended; a time limit is not such an end."""
        ...

    def measure(self, state: S, action: Float[Tensor, "B A D"], after: S) -> dict[str, Float[Tensor, " B"]]:
        """Give one number per world and step for each of ``metrics``."""
        ...


class Source(Protocol):
    """Where batches come from."""

    def next(self) -> Batch:
        """Produce the next batch."""
        ...

    def before_cycle(self) -> None:
        """Do what must not be part of a captured cycle, before each."""
        ...

    def after_cycle(self) -> None:
        """Do so after each."""
        ...

    def feedback(self, batch: Batch, update: Update) -> None:
        """Learn how the batch fared (priorities, say)."""
        ...

    def tensors_to_check(self) -> CheckedTensors:
        """Name what a checkpoint would keep of it, as far as it was not checked before."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that the next batches depend on."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        ...


class Learner(Protocol):
    """What turns batches into a better policy."""

    def policy(self, spec: EnvSpec, explore: bool = False) -> Policy:
        """Give the policy in training, for a team of this kind; as it gathers rows, if that differs."""
        ...

    def parameters(self) -> Tensor:
        """Copy what ``policy`` needs to fly again, run by run (leading axis R)."""
        ...

    def update(self, batch: Batch, noise: Any) -> Update:
        """Take one gradient step from a batch."""
        ...

    def update_noise(self, rng: Any, rows: int) -> Any:
        """Draw the noise that one update on ``rows`` rows per run consumes."""
        ...

    def tensors_to_check(self, update: Update | None = None) -> CheckedTensors:
        """Name everything that the next updates depend on, or all that ``update`` returned."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that the next updates depend on."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        ...
