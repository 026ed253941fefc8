"""Faces take names and environments with parameters, and refuse what they cannot show in one line."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import uavlab as ul
from tests.support.mortal import Mortal
from tests.support.registries import registered
from uavlab.interop.gymnasium import TeamEnv, TeamVectorEnv

FACES = [ul.to_pettingzoo, ul.to_gymnasium, ul.to_torchrl]


@pytest.mark.parametrize("to", FACES, ids=lambda to: to.__name__)
def test_a_name_a_preset_and_an_environment_are_tasks(to: Callable[..., Any]) -> None:
    assert to("spread", uavs=2, horizon=9).simulator.env == ul.make("spread", uavs=2, horizon=9)
    assert to("leader_follower_quick").simulator.env == ul.make("leader_follower_quick")
    assert to(ul.make("spread", uavs=2), horizon=9).simulator.env == ul.make("spread", uavs=2, horizon=9)
    with registered():
        assert to(Mortal()).simulator.env == Mortal()


def test_worlds_and_devices() -> None:
    assert isinstance(ul.to_gymnasium("spread"), TeamEnv)
    envs = ul.to_gymnasium("spread", worlds=4)
    assert isinstance(envs, TeamVectorEnv)
    assert (envs.num_envs, envs.action_space.shape) == (4, (4, 3, 2))
    assert ul.to_torchrl("spread", worlds=4, device="cpu").batch_size == (4,)


@pytest.mark.parametrize("to", FACES, ids=lambda to: to.__name__)
@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        ("spred", {}, "unknown preset 'spred' (did you mean 'spread'?). Known presets: "),
        ("telemetry", {}, "{}: Telemetry has no team of agents; expected a task in which agents act."),
        ("spread", {"uavz": 2}, "spread: unknown setting 'uavz' (did you mean 'uavs'?). All settings: "),
        ("spread", {"uavs": 0}, "spread: uavs: input should be greater than or equal to 1, got 0."),
        ("spread", {"seed": 1}, "{}: seed is a setting of a run, not of Spread; leave it out."),
        (7, {}, "task: got 7; expected the name of a preset, or an environment: an instance of a frozen dataclass."),
    ],
)
def test_bad_tasks_and_parameters(to: Callable[..., Any], task: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ul.ConfigError, match=f"^{re.escape(message.format(to.__name__))}"):
        to(task, **more)


@pytest.mark.parametrize("to", [ul.to_gymnasium, ul.to_torchrl], ids=lambda to: to.__name__)
@pytest.mark.parametrize("worlds", [0, -1, 2.0, True, "2"])
def test_bad_numbers_of_worlds(to: Callable[..., Any], worlds: Any) -> None:
    with pytest.raises(ul.ConfigError, match=rf"^{to.__name__}: worlds={worlds!r}; expected a whole number from 1 up"):
        to("spread", worlds=worlds)


@pytest.mark.parametrize("device", ["gpu", "cuda:77", 3.5])
def test_bad_devices(device: Any) -> None:
    with pytest.raises(ul.ConfigError, match=rf"^to_torchrl: device={device!r}: .*; expected one of torch\."):
        ul.to_torchrl("spread", device=device)


def test_a_broken_environment_is_refused() -> None:
    class Broken(Mortal):
        def reward(self, state: Any, action: Any, after: Any) -> Any:
            return super().reward(state, action, after).sum(1)

    with registered(), pytest.raises(ul.ConfigError, match=r"Broken\.reward.*expected a tensor of shape \(2, 3\)"):
        ul.to_pettingzoo(Broken())
