"""The contract check on a toy that keeps it, and on toys each broken in one place, with the message that says so."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import uavlab as ul
from tests.support.uneven import Uneven
from uavlab.core.errors import ConfigError
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.types import ChoiceObs, EnvSpec, MapObs, Metric, tensors
from uavlab.testing import check_env, environment


@tensors
class Spots:
    """Two spots on a line; they start within [0, 1) and end beyond 2."""

    place: Tensor
    step: Tensor


@dataclass(frozen=True)
class Toy:
    """The smallest environment with every part: two agents, a windy line, an end and a time limit."""

    horizon: int = 12

    metrics = (Metric("speed", "mean", "m/s"), Metric("arrived", "last"))
    score: ClassVar[dict[str, float]] = {"arrived": 1.0}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            agents=2, obs=2, action=1, horizon=self.horizon, dt=1.0, initial_noise=2, step_noise=2, groups=(0, 0)
        )

    def initial(self, noise: Tensor) -> Spots:
        return Spots(place=noise.clone(), step=torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: Spots, action: Tensor, noise: Tensor) -> Spots:
        return Spots(place=state.place + 0.3 * action[..., 0] + 0.1 * noise, step=state.step + 1)

    def observe(self, state: Spots) -> Tensor:
        return torch.stack((state.place, state.place.flip(-1)), -1)

    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return after.place - state.place

    def terminated(self, state: Spots) -> Tensor:
        return (state.place.sum(-1, keepdim=True) > 2).expand(-1, 2)

    def measure(self, state: Spots, action: Tensor, after: Spots) -> dict[str, Tensor]:
        arrived = self.terminated(after)[:, 0].to(after.place.dtype)
        return {"speed": (after.place - state.place).abs().mean(-1), "arrived": arrived}


BROKEN: dict[str, tuple[type, str]] = {}
UNPACKED = "x, y, _ = noise.unbind(1)"  # the line at LINE


def broken(message: str) -> Callable[[type], type]:
    """File an environment with the message that refuses it."""

    def note(cls: type) -> type:
        BROKEN[cls.__name__] = (cls, message)
        return cls

    return note


@broken(
    "GlobalNoise.transition, step 0 of the random rollout: got a draw from torch's global generator; expected "
    "randomness from the noise that is passed in alone, of which spec declares the amount."
)
class GlobalNoise(Toy):
    def transition(self, state: Spots, action: Tensor, noise: Tensor) -> Spots:
        return super().transition(state, action, torch.rand_like(noise))


@broken(
    "HiddenNoise.transition.place, step 0 of the random rollout: got other numbers on a second rollout; expected "
    "equal ones from equal noise: draw nothing else at random, and keep nothing between calls."
)
class HiddenNoise(Toy):
    dice = np.random.default_rng(0)

    def transition(self, state: Spots, action: Tensor, noise: Tensor) -> Spots:
        after = super().transition(state, action, noise)
        return replace(after, place=after.place + 1e-6 * self.dice.random())


@broken(
    "Neighbours.observe, step 0 of the random rollout: got other numbers without a world's neighbours; expected "
    "worlds that are independent: no means, sorts or indices over worlds."
)
class Neighbours(Toy):
    def observe(self, state: Spots) -> Tensor:
        obs = super().observe(state)
        return obs - obs.mean(0)


@broken(
    "InPlace.transition, step 0 of the random rollout: got its argument's place changed in place; expected arguments "
    "left alone, and new tensors."
)
class InPlace(Toy):
    def transition(self, state: Spots, action: Tensor, noise: Tensor) -> Spots:
        return Spots(place=state.place.add_(0.3 * action[..., 0]), step=state.step + 1)


@broken(
    "TimeLimit.terminated, step 0 of the random rollout: got True wherever step has reached the horizon; expected "
    "the task's own ends alone: learners go on bootstrapping at spec.horizon."
)
class TimeLimit(Toy):
    def terminated(self, state: Spots) -> Tensor:
        return super().terminated(state) | (state.step >= self.horizon)[:, None]


@broken(
    "StoppedClock.transition.step, step 0 of the random rollout: got [0, 0, 0] after [0, 0, 0]; expected one more in "
    "every world: step=state.step + 1."
)
class StoppedClock(Toy):
    def transition(self, state: Spots, action: Tensor, noise: Tensor) -> Spots:
        return replace(super().transition(state, action, noise), step=state.step)


@broken(
    "NoClock.initial.step, step 0 of the random rollout: got tensor([1, 1, 1]); expected a field step of the state "
    "with one int64 zero per world."
)
class NoClock(Toy):
    def initial(self, noise: Tensor) -> Spots:
        return Spots(place=noise.clone(), step=torch.ones_like(noise[:, 0], dtype=torch.int64))


@broken(
    "WrongShape.observe, step 0 of the random rollout: got shape (3, 2, 1); expected a tensor of shape (3, 2, 2), by "
    "spec."
)
class WrongShape(Toy):
    def observe(self, state: Spots) -> Tensor:
        return state.place[..., None] + 0


@broken(
    "Alias.observe, step 0 of the random rollout: got a view of the state's place; expected a clone of it, or what "
    "is computed with it."
)
class Alias(Toy):
    def observe(self, state: Spots) -> Tensor:
        return state.place[..., None].expand(-1, -1, 2)


@broken(
    "FixedType.reward, step 0 of the random rollout: got torch.float32; expected torch.float64 as of the noise: make "
    "tensors like those passed in."
)
class FixedType(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return (after.place > 1) * 0.5  # a bool times a Python number takes torch's default type


@broken(
    "TooMuchNoise.initial, step 0 of the random rollout: got ValueError (not enough values to unpack (expected 3, "
    "got 2)) at test_environment.py:LINE; expected a result: compare shapes, and how much noise there is, with spec."
)
class TooMuchNoise(Toy):
    def initial(self, noise: Tensor) -> Spots:
        x, y, _ = noise.unbind(1)
        return Spots(place=torch.stack((x, y), 1), step=torch.zeros_like(noise[:, 0], dtype=torch.int64))


@broken(
    "NotFinite.reward, step 0 of the zero rollout: got a number that is not finite in world 0; expected finite "
    "numbers: guard divisions and roots."
)
class NotFinite(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return state.place / action[..., 0]


@broken(
    "NotFiniteAfterwards.reward, step 6 of the random rollout on past the end: got a number that is not finite in "
    "world 0; expected finite numbers: guard divisions and roots."
)
class NotFiniteAfterwards(Toy):
    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return super().reward(state, action, after) / (~self.terminated(state)).to(state.place.dtype)


@broken(
    "HalfArrived.measure['arrived'], step 0 of the random rollout: got 0.5 to 0.5; expected 0 or 1 of an outcome; "
    "reduce other figures by `last`."
)
class HalfArrived(Toy):
    metrics = (Metric("speed", "mean", "m/s"), Metric("arrived", "outcome"))

    def measure(self, state: Spots, action: Tensor, after: Spots) -> dict[str, Tensor]:
        figures = super().measure(state, action, after)
        return {**figures, "arrived": torch.full_like(figures["speed"], 0.5)}


@broken(
    "BeyondItsBounds.measure['speed'], step 0 of the random rollout: got 2 to 2; expected 0.0 to 1.0, the bounds of "
    "the metric."
)
class BeyondItsBounds(Toy):
    metrics = (Metric("speed", "mean", bounds=(0.0, 1.0)), Metric("arrived", "outcome"))

    def measure(self, state: Spots, action: Tensor, after: Spots) -> dict[str, Tensor]:
        figures = super().measure(state, action, after)
        return {**figures, "speed": torch.full_like(figures["speed"], 2.0)}


@broken("FloatFlags.terminated, step 0 of the random rollout: got torch.float32; expected torch.bool.")
class FloatFlags(Toy):
    def terminated(self, state: Spots) -> Tensor:
        return super().terminated(state).float()


@broken(
    "LostFigure.measure, step 0 of the random rollout: got keys ['speed']; expected keys ['arrived', 'speed'] as in "
    "metrics."
)
class LostFigure(Toy):
    def measure(self, state: Spots, action: Tensor, after: Spots) -> dict[str, Tensor]:
        return {"speed": action[:, 0, 0].abs()}


@broken(
    "TakenName.metrics: got 'return' twice; expected every name once; flight_time, timeout, return are measured for "
    "every environment."
)
class TakenName(Toy):
    metrics = (Metric("return", "sum"),)


@broken(
    "StrangeScore.score: got 'luck': 1.0; expected finite weights of what is measured: flight_time, timeout, return, "
    "speed, arrived."
)
class StrangeScore(Toy):
    score: ClassVar[dict[str, float]] = {"arrived": 1.0, "luck": 1.0}


@broken(
    "WrongGroups.spec.groups: got (0,); expected a tuple of 2 labels, equal ones for agents that are interchangeable."
)
class WrongGroups(Toy):
    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, groups=(0,))


@broken("NoHorizon.spec.horizon: got 0; expected a whole number from 1 up.")
class NoHorizon(Toy):
    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, horizon=0)


@broken(
    "NotFiniteFigure.measure['speed'], step 0 of the random rollout: got a number that is not finite in world 2; "
    "expected finite numbers: guard divisions and roots."
)
class NotFiniteFigure(Toy):
    def measure(self, state: Spots, action: Tensor, after: Spots) -> dict[str, Tensor]:
        figures = super().measure(state, action, after)
        last = torch.arange(len(action)) == 2
        return {**figures, "speed": torch.where(last, torch.nan, figures["speed"])}


@broken(
    "NoReward: got no reward; expected initial, transition, observe, reward, terminated, measure, spec, metrics and "
    "score."
)
@dataclass(frozen=True)
class NoReward:
    horizon: int = 12

    metrics, score, spec = Toy.metrics, Toy.score, Toy.spec
    initial, transition, observe = Toy.initial, Toy.transition, Toy.observe
    terminated, measure = Toy.terminated, Toy.measure


@broken("Thawed: got a class that can change; expected parameters of a class with @dataclass(frozen=True) on it.")
class Thawed:
    horizon = 12
    metrics, score, spec = Toy.metrics, Toy.score, Toy.spec
    initial, transition, observe = Toy.initial, Toy.transition, Toy.observe
    reward, terminated, measure = Toy.reward, Toy.terminated, Toy.measure


@broken(
    "Unhashable: got unhashable type: 'list'; expected hashable parameters: tuples instead of lists, dicts and arrays."
)
@dataclass(frozen=True)
class Unhashable(Toy):
    sizes: Any = None

    def __hash__(self) -> int:
        return hash((self.horizon, [self.sizes]))


@broken(
    "PlainState.initial, step 0 of the random rollout: got a state of type dict; expected a class with @tensors on it."
)
class PlainState(Toy):
    def initial(self, noise: Tensor) -> Any:
        return vars(super().initial(noise))


@broken(
    "SharedLeaf.initial.place, step 0 of the random rollout: got shape (2,); expected 3 worlds as the first axis; "
    "parameters belong on self."
)
class SharedLeaf(Toy):
    def initial(self, noise: Tensor) -> Spots:
        return Spots(place=noise.new_zeros(2), step=torch.zeros_like(noise[:, 0], dtype=torch.int64))


@broken(
    "NoScore.score: got {}; expected weights of some of flight_time, timeout, return, speed, arrived: the best "
    "policy of a run is selected by this sum."
)
class NoScore(Toy):
    score: ClassVar[dict[str, float]] = {}


@broken("NamedFeatures.observe, step 0 of the random rollout: got a dict; expected one Tensor (B A O).")
class NamedFeatures(Toy):
    def observe(self, state: Spots) -> Any:
        return {"place": state.place.clone()}


@broken("PlainMaps.observe, step 0 of the random rollout: got a dict; expected uavlab.MapObs(...).")
class PlainMaps(Toy):
    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, choices=2, side=1)

    def transition(self, state: Spots, action: Tensor, noise: Tensor) -> Spots:
        return replace(state, place=state.place + 0.3 * action, step=state.step + 1)

    def observe(self, state: Spots) -> Any:
        return {"maps": state.place[..., None, None, None].clone()}


class Views(Toy):
    """The places as maps of one cell, for continuous actions, beside a feature."""

    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, side=1, features=1)

    def observe(self, state: Spots) -> Any:
        return MapObs(
            maps=state.place[..., None, None, None] + torch.zeros(2, 1, 1), features=state.place[..., None] + 0
        )


def test_maps_beside_features_pass() -> None:
    assert check_env(Views(), worlds=3, steps=15).effect[0] > 0


@broken("NoFeatures.observe, step 0 of the random rollout: got no observe.features; expected what spec describes.")
class NoFeatures(Views):
    def observe(self, state: Spots) -> Any:
        return replace(super().observe(state), features=None)


@broken("MoreThanSpec.observe, step 0 of the random rollout: got observe.place; expected what spec describes.")
class MoreThanSpec(Views):
    def observe(self, state: Spots) -> Any:
        return replace(super().observe(state), place=torch.zeros(state.place.shape, dtype=torch.int64))


@broken(
    "OtherWidth.observe.features, step 0 of the random rollout: got shape (3, 2, 2); expected a tensor of shape (3, "
    "2, 1), by spec."
)
class OtherWidth(Views):
    def observe(self, state: Spots) -> Any:
        return replace(super().observe(state), features=torch.zeros(*state.place.shape, 2, dtype=state.place.dtype))


@broken(
    "FeaturesWithoutMaps.spec.features: got 2 with side=0; expected 0 where agents observe no maps: count them in obs."
)
class FeaturesWithoutMaps(Toy):
    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, features=2)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_environments_are_refused(name: str) -> None:
    env, message = BROKEN[name]
    with pytest.raises(ConfigError) as error:
        check_env(env(), worlds=3, steps=15)
    own = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert str(error.value) == message.replace("LINE", str(own.index(f"        {UNPACKED}") + 1))


def test_toy_passes_and_the_report_counts() -> None:
    report = check_env(Toy(), worlds=3, steps=30)
    assert (report.worlds, report.steps) == (3, 30)
    assert report.started == 9 + report.terminated + report.truncated  # 3 worlds x 3 rollouts, one more per end
    assert report.terminated > 0
    assert report.truncated > 0
    assert report.tensors == 3 * 30 * 7  # place, step, observe, reward, terminated and two figures per step
    assert str(report) == (
        "Toy(horizon=12) keeps the contract of an environment.\n"
        "  steps     270: 3 worlds x 30 steps, random, corner, zero actions\n"
        f"  episodes  {report.started} started, {report.terminated} ended by the task, "
        f"{report.truncated} by the horizon\n"
        "  checked   630 tensors; every rollout repeated and continued past its end, every world also stepped alone\n"
        "  metrics   speed, arrived\n"
        "  observed  -0.3908 to 1.742, mean 0.5819, under random actions\n"
        "  rewards   -0.2789 to 0.393, mean 0.04285, under random actions\n"
        "  return    0.434 of random actions, +- 0.2747 over 8 episodes\n"
        "  actions   change observations by up to 1.382, rewards by up to 0.2999"
    )


@dataclass(frozen=True)
class Counted(Toy):
    """Both agents move by a quarter of their action; each step costs 1, and only the time limit ends it."""

    def initial(self, noise: Tensor) -> Spots:
        return Spots(place=torch.zeros_like(noise), step=torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: Spots, action: Tensor, noise: Tensor) -> Spots:
        return Spots(place=0.25 * action[..., 0], step=state.step + 1)

    def reward(self, state: Spots, action: Tensor, after: Spots) -> Tensor:
        return -torch.ones_like(after.place)

    def terminated(self, state: Spots) -> Tensor:
        return torch.zeros_like(state.place, dtype=torch.bool)


@dataclass(frozen=True)
class Ignored(Counted):
    """Actions change nothing."""

    def transition(self, state: Spots, action: Tensor, noise: Tensor) -> Spots:
        return Spots(place=noise.clone(), step=state.step + 1)


def test_report_shows_sizes_and_returns() -> None:
    report = check_env(Counted(horizon=4), worlds=3, steps=9)
    assert report.rewards == (-1.0, -1.0, -1.0)
    assert report.returns == (-4.0,) * 6  # 3 worlds, two whole episodes of 4 steps each, the third is cut off
    assert -0.25 <= report.observations[0] < report.observations[1] < report.observations[2] <= 0.25
    assert 0 < report.effect[0] <= 0.25  # observations are a quarter of actions in [-1, 1], against those of zero
    assert report.effect[1] == 0.0
    assert "return    -4 of random actions, +- 0 over 6 episodes" in str(report)
    assert "WARNING" not in str(report)
    assert "no episode ended; take more steps" in str(check_env(Counted(horizon=10), worlds=3, steps=9))


def test_actions_without_effect_are_a_warning() -> None:
    report = check_env(Ignored(horizon=4), worlds=3, steps=9)
    assert report.effect == (0.0, 0.0)
    last = "  WARNING   actions change nothing: random and zero actions had the same observations and rewards"
    assert str(report).splitlines()[-1] == last


@dataclass(frozen=True)
class Alone(Toy):
    """Each agent ends on its own."""

    deaths: bool = False

    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, deaths=self.deaths)

    def terminated(self, state: Spots) -> Tensor:
        return state.place > 1


def test_agents_that_end_alone_without_a_mark_are_a_warning() -> None:
    report, marked, toy = check_env(Alone(), 3, 30), check_env(Alone(deaths=True), 3, 30), check_env(Toy(), 3, 30)
    assert report.unmarked > 0 == marked.unmarked == toy.unmarked
    warning = (
        f"  WARNING   {report.unmarked} steps went on after the end of an agent's task; set deaths=True in spec, or"
    )
    assert str(report).splitlines()[-1] == warning + " replay holds its rows after the end"
    assert "WARNING" not in str(marked)
    assert "WARNING" not in str(toy)


def test_a_class_is_not_an_environment() -> None:
    with pytest.raises(ConfigError) as error:
        check_env(Toy)  # type: ignore[arg-type]
    assert str(error.value) == "check_env: got the class Toy; expected an object of it: check_env(Toy())."


def test_report_is_the_same_twice() -> None:
    assert check_env(Toy(), worlds=3, steps=30) == check_env(Toy(), worlds=3, steps=30)


@pytest.mark.parametrize(("worlds", "steps"), [(1, 300), (7, 0)])
def test_too_little_to_check(worlds: int, steps: int) -> None:
    with pytest.raises(ConfigError) as error:
        check_env(Toy(), worlds=worlds, steps=steps)
    expected = f"check_env: got worlds={worlds}, steps={steps}; expected worlds >= 2 and steps >= 1, or neither."
    assert str(error.value) == expected


def test_dimensions_that_a_group_lacks_are_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metric ``beyond`` of the environment has bounds that other numbers exceed."""
    assert check_env(Uneven(), 3, 10).steps == 10
    monkeypatch.setattr(environment, "padded_actions", lambda spec, device: None)  # the mutant
    with pytest.raises(ConfigError, match=r"measure\['beyond'\].* expected 0.0 to 1e-09"):
        check_env(Uneven(), 3, 10)


@tensors
class Cells:
    """A state of whole numbers alone."""

    place: Tensor
    step: Tensor


@dataclass(frozen=True)
class Line:
    """Two agents on a line of nine cells, which they may not leave; the middle earns 1."""

    spec = EnvSpec(2, 9, 1, 12, 1.0, 2, 0, (0, 0), choices=3)
    metrics = (Metric("middle", "mean"),)
    score = {"middle": 1.0}  # noqa: RUF012 - never changed
    kind = torch.float32

    def initial(self, noise: Tensor) -> Cells:
        return Cells(place=(9 * noise).long(), step=noise.new_zeros(len(noise), dtype=torch.int64))

    def transition(self, state: Cells, action: Tensor, noise: Tensor) -> Cells:
        return Cells(place=(state.place + action - 1).clamp(0, 8), step=state.step + 1)

    def observe(self, state: Cells) -> ChoiceObs:
        hot = state.place[..., None] == torch.arange(9)
        legal = torch.stack((state.place > 0, state.place >= 0, state.place < 8), -1)
        return ChoiceObs(features=hot.to(self.kind), legal=legal)

    def reward(self, state: Cells, action: Tensor, after: Cells) -> Tensor:
        return (after.place == 4).float()

    def terminated(self, state: Cells) -> Tensor:
        return torch.zeros_like(state.place, dtype=torch.bool)

    def measure(self, state: Cells, action: Tensor, after: Cells) -> dict[str, Tensor]:
        return {"middle": self.reward(state, action, after).mean(-1)}


def test_a_state_of_whole_numbers_has_no_type_to_take() -> None:
    report = check_env(Line(), worlds=3, steps=20)
    assert report.observations == (0, pytest.approx(1 / 9), 1)
    assert report.effect[1] == 1


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
def test_whole_numbers_excuse_no_other_type(kind: torch.dtype) -> None:
    class Wide(Line):
        pass

    Wide.kind = kind
    with pytest.raises(ConfigError, match=f"observe.features, step 0 .*got {kind}; expected torch.float32"):
        check_env(Wide(), worlds=3, steps=20)


def test_a_floating_number_in_the_state_gives_its_type() -> None:
    @tensors
    class Timed(Cells):
        time: Tensor

    class Late(Line):
        def initial(self, noise: Tensor) -> Timed:
            return Timed(**vars(super().initial(noise)), time=0 * noise[:, 0])

        def transition(self, state: Any, action: Tensor, noise: Tensor) -> Timed:
            return Timed(**vars(super().transition(state, action, noise)), time=state.time + 1)

    with pytest.raises(ConfigError, match=r"observe.features, step 0 .*got torch.float32; expected torch.float64"):
        check_env(Late(), worlds=3, steps=20)


@pytest.mark.parametrize("learner", ["masac", "mappo"])
def test_whole_numbers_train(learner: str) -> None:
    tiny = {"hidden": 4, "worlds": 2, "log_every": 1, "evaluate_episodes": 1, "device": "cpu"}
    tiny |= {"rollout_steps": 4} if learner == "mappo" else {"batch": 8, "learning_starts": 8, "capacity": 32}
    run = ul.train(Line(), learner=learner, updates=2, progress=False, settings=tiny)
    ENVIRONMENTS.pop("Line")  # other tests list what is registered
    assert run.status == "complete"
