"""The check of learners on our own, on one from outside, and on learners each broken in one place."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import uavlab as ul
from tests.support.fixtures_mapping import TINY_MISSION
from tests.support.registries import outside, registered_outside
from uavlab.core.errors import ConfigError
from uavlab.core.symptoms import Entropy, Range, Symptoms, times
from uavlab.experiment import build
from uavlab.experiment.build import LEARNERS
from uavlab.learners.ppo.networks import RecurrentTeam
from uavlab.testing import check_learner

Drift, Reinforce, ReinforceConfig = outside.Drift, outside.Reinforce, outside.ReinforceConfig
MEMORY = {"memory": 6, "hidden": 16, "rollout_steps": 8, "minibatches": 2, "lr": 3e-3}
SMALL_COMA = {"width": 4, "hidden": 16, "kernels": (3, 2), "minibatches": 2, "passes": 2, "lr": 1e-3}


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    """Forget afterwards what a test registers."""
    with registered_outside():
        yield


@pytest.mark.parametrize(
    ("name", "env", "settings"),
    [
        ("masac", Drift(), {"hidden": 16}),
        ("coma", TINY_MISSION, SMALL_COMA),
        ("mappo", Drift(), MEMORY),
        ("reinforce", "drift", {}),
    ],
    ids=["masac", "coma", "memory", "reinforce"],
)
def test_good_learners_pass(name: str, env: Any, settings: dict[str, Any]) -> None:
    report = check_learner(name, env, settings)
    assert (report.learner, report.env) == (name, type(TINY_MISSION if name == "coma" else Drift()).__name__)
    assert report.rounding < 1e-4
    assert f"{name} keeps the contract of a learner" in str(report)


def test_a_memory_of_all_worlds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step with an empty memory cannot show it."""
    act = RecurrentTeam.act_once

    def mixed(team: RecurrentTeam, theta: Tensor, obs: Tensor, memory: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        return act(team, theta, obs, memory - memory.mean(1, keepdim=True), *rest)

    monkeypatch.setattr(RecurrentTeam, "act_once", mixed)
    with pytest.raises(ConfigError, match="other actions without the other worlds"):
        check_learner("mappo", Drift(), MEMORY)


def test_the_report_is_the_same_twice_and_counts() -> None:
    report = check_learner("reinforce", Drift())
    assert check_learner("reinforce", "drift") == report
    assert (report.policy, report.tensors) == ((2, 1, 1), 4)  # one weight; the parameter, and Adam's three
    assert report.numbers == 2 + 1 + 2 + 2  # for two runs, and one count of steps


def test_given_sizes_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    built, assemble = [], build.assemble
    monkeypatch.setattr(build, "assemble", lambda config: built.append(config) or assemble(config))
    check_learner("reinforce", "drift", {"worlds": 3})
    assert {(each.source.worlds, each.run.device) for each in built} == {(3, "cpu")}


BROKEN: dict[str, tuple[type, str]] = {}


def broken(message: str) -> Callable[[type], type]:
    """File a learner with the message that refuses it."""

    def note(cls: type) -> type:
        BROKEN[cls.__name__] = (cls, message)
        return cls

    return note


@broken(
    "policy with noise: got actions of torch.float32 from -9 to 9; expected numbers in [-1, 1]; clamp them.",
)
class Unbounded(Reinforce):
    def policy(self, spec: ul.EnvSpec, explore: bool = False) -> ul.Policy:
        inner = super().policy(spec, explore)
        return lambda obs, noise: inner(obs, noise) if noise is None else 9 * noise.sign()


@broken("policy without noise: got shape (2, 5, 2); expected actions as a tensor of shape (2, 5, 2, 1).")
class Flat(Reinforce):
    def policy(self, spec: ul.EnvSpec, explore: bool = False) -> ul.Policy:
        inner = super().policy(spec, explore)
        return lambda obs, noise: inner(obs, noise)[..., 0]


@broken("policy: got other actions without the other worlds; expected worlds that are independent.")
class Crowd(Reinforce):
    def policy(self, spec: ul.EnvSpec, explore: bool = False) -> ul.Policy:
        inner = super().policy(spec, explore)
        return lambda obs, noise: inner(obs - obs.mean(1, keepdim=True), noise)


@broken("parameters: got shape (2, 1); expected (runs, networks, numbers).")
class Matrix(Reinforce):
    def parameters(self) -> Tensor:
        return super().parameters()[:, 0]


@broken("parameters: got numbers that change with an update; expected a clone.")
class Shared(Reinforce):
    def parameters(self) -> Tensor:
        return self.actor.parameter.detach()[:, None]


@broken(
    "load_policy: got other actions than those of the learner; expected the same policy: keep all that it needs in "
    "parameters."
)
class Hidden(Reinforce):
    def __init__(self, config: ReinforceConfig, spec: ul.EnvSpec, rng: ul.Streams, rt: ul.Runtime) -> None:
        super().__init__(config, spec, rng, rt)
        self.offset = rng.uniform("offset", 1)[:, :, None, None]

    def policy(self, spec: ul.EnvSpec, explore: bool = False) -> ul.Policy:
        inner = super().policy(spec, explore)
        return lambda obs, noise: inner(obs + self.offset, noise)


@broken(
    "update: got another actor.exp_avg on a second run with equal noise; expected the same bits: draw all randomness "
    "in update_noise, from the streams that are passed in."
)
class OwnNoise(Reinforce):
    def loss(self, theta: Tensor, obs: Tensor, *rest: Tensor) -> Any:
        return super().loss(theta, obs + 1e-3 * torch.rand_like(obs), *rest)


@broken(
    "update: got the policy of run 0 as before; expected another one: step on the parameters that policy and "
    "parameters read."
)
class Idle(Reinforce):
    def update(self, batch: ul.Batch, noise: None) -> ul.Update:
        return ul.Update({"loss": torch.zeros(self.runs)})


@broken("update: got another actor_loss in a run beside another one; expected the same as alone: no means,")
class Mixed(Reinforce):
    def loss(self, theta: Tensor, obs: Tensor, action: Tensor, advantage: Tensor) -> Any:
        return super().loss(theta, obs, action, advantage - 2 * advantage.mean(0))


@broken("update: got a policy that differs by ")
class Joint(Reinforce):
    """Draws the first parameters of all runs from the first one's stream, in turn."""

    def __init__(self, config: ReinforceConfig, spec: ul.EnvSpec, rng: ul.Streams, rt: ul.Runtime) -> None:
        super().__init__(config, spec, rng, rt)
        generator = torch.Generator().manual_seed(0)
        self.actor = rt.grad(torch.randn(self.runs, spec.obs * spec.action, generator=generator), config.lr, 1.0)


@broken("update.metrics['loss']: got shape (); expected a tensor with a number per run.")
class Summed(Reinforce):
    def update(self, batch: ul.Batch, noise: None) -> ul.Update:
        super().update(batch, noise)
        return ul.Update({"loss": torch.zeros(())})


@broken("update: got AttributeError ('Rollout' object has no attribute 'after'); expected a result; batches of on_")
class Misread(Reinforce):
    def update(self, batch: ul.Batch, noise: None) -> Any:
        return batch.data.after


@broken("update: got a NoneType; expected uavlab.Update(metrics).")
class Silent(Reinforce):
    def update(self, batch: ul.Batch, noise: None) -> Any:
        super().update(batch, noise)


@broken("update: got loss = nan; expected finite numbers: guard divisions, roots and logarithms.")
class NotFinite(Reinforce):
    def update(self, batch: ul.Batch, noise: None) -> ul.Update:
        super().update(batch, noise)
        return ul.Update({"loss": torch.full((self.runs,), torch.nan)})


class Momentum(Reinforce):
    """Keeps an average of its parameters, and steps from it every time."""

    def __init__(self, config: ReinforceConfig, spec: ul.EnvSpec, rng: ul.Streams, rt: ul.Runtime) -> None:
        super().__init__(config, spec, rng, rt)
        self.average = self.actor.parameter.detach().clone()

    def update(self, batch: ul.Batch, noise: None) -> ul.Update:
        result = super().update(batch, noise)
        self.average.lerp_(self.actor.parameter.detach(), 0.5)
        self.actor.parameter.detach().copy_(self.average)
        return result


WHOLE = "return every tensor that later updates depend on, and copy it back in load_state_dict."


AFTER = "after an update of a learner that loaded it; expected the same bits"


@broken(f"state_dict: got another actor.parameter {AFTER}: {WHOLE}")
class Forgetful(Momentum):
    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in super().state_dict().items() if name != "average"}


@broken(f"load_state_dict: got another average in the state after it was loaded; expected the same bits: {WHOLE}")
class HalfLoaded(Momentum):
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict({name: tensor for name, tensor in state.items() if name != "average"})


@broken(
    "tensors_to_check: got nothing about a nan in average; expected every tensor of the state, so that a run stops "
    "at the first number that is not finite."
)
class Unguarded(Momentum):
    def tensors_to_check(self, update: ul.Update | None = None) -> Any:
        return {name: each for name, each in super().tensors_to_check(update).items() if name != "average"}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_learners_are_refused(name: str) -> None:
    cls, message = BROKEN[name]
    same = lambda config, trained, spec: outside.require_same(trained, spec)  # noqa: E731
    ul.learner("mine", settings=ReinforceConfig, collector="on_policy", require_same=same)(cls)
    with pytest.raises(ConfigError) as error:
        check_learner("mine", Drift())
    assert str(error.value).startswith(f"mine.{message}")


def test_a_policy_may_change_in_every_third_update_only() -> None:
    class Delayed(Reinforce):
        """Steps its policy in every third update, as TD3 does in every second."""

        def __init__(self, config: ReinforceConfig, spec: ul.EnvSpec, rng: ul.Streams, rt: ul.Runtime) -> None:
            super().__init__(config, spec, rng, rt)
            self.count = torch.zeros(1, dtype=torch.int64)

        def update(self, batch: ul.Batch, noise: None) -> ul.Update:
            self.count += 1
            result = super().update(batch, noise) if self.count.item() % 3 == 0 else None
            return result or ul.Update({"actor_loss": torch.zeros(self.runs)})

    ul.learner("mine", settings=ReinforceConfig, collector="on_policy")(Delayed)
    assert check_learner("mine", Drift()).tensors == 5


class Table(Reinforce):
    """Keeps a table by feature and run, of which it holds the transpose."""

    def __init__(self, config: ReinforceConfig, spec: ul.EnvSpec, rng: ul.Streams, rt: ul.Runtime) -> None:
        super().__init__(config, spec, rng, rt)
        self.table = torch.zeros(3, self.runs).T


@pytest.mark.parametrize("cls", [Momentum, Table])
def test_a_state_that_is_whole_passes(cls: type) -> None:
    ul.learner("mine", settings=ReinforceConfig, collector="on_policy")(cls)
    assert check_learner("mine", Drift()).tensors == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reinforse",), "check_learner: unknown learner 'reinforse' (did you mean 'reinforce'?). Known learners: "),
        ((Reinforce,), "check_learner: unknown learner <class 'tests...de.Reinforce'>"),
        (
            ("masac", None, {"hiden": 8}),
            "leader_follower: unknown setting 'hiden' (did you mean 'hidden'?). All settings: ",
        ),
        (("masac", None, {"lr": -1.0}), "leader_follower: lr: input should be greater than 0, got -1.0"),
        (("masac", "drif"), "unknown preset 'drif' (did you mean 'drift'?). Known presets: "),
        (("masac", TINY_MISSION), "learner masac cannot learn mapping: its agents observe maps"),
        (("masac", Drift), "expected the name of a preset, or an environment: an instance of a frozen dataclass"),
        (
            ("forecaster",),
            "check_learner: got forecaster, which fits no environment here; expected one that it fits as env=.",
        ),
        (("forecaster", "telemetry"), "check_learner: got telemetry, which has no team of agents; expected an env"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_learner(*arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("symptoms", "message"),
    [
        (Symptoms(loss="critic_loss"), "got the metric 'critic_loss'.*expected one of actor_loss"),
        (Symptoms(returns="return"), "got the metric 'return'"),
        (Symptoms(Entropy("entropy", lambda config, spec: Range(0, 1))), "got the metric 'entropy'"),
        (Symptoms(remedies={"loss_grows": (times("critic_lr", 0.3),)}), "got the setting 'critic_lr'.*one of lr, sd"),
    ],
)
def test_a_description_of_what_does_not_exist(symptoms: Symptoms, message: str) -> None:
    LEARNERS["reinforce"] = type("Reinforce", (LEARNERS["reinforce"],), {"symptoms": symptoms})
    with pytest.raises(ConfigError, match=rf"reinforce\.symptoms: {message}"):
        check_learner("reinforce", "drift")
