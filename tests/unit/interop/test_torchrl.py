"""TorchRL's own check passes without a warning, and worlds equal the slow twin over the ends of episodes."""

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.envs import RewardSum, TransformedEnv
from torchrl.envs.utils import check_env_specs

import uavlab as ul
from tests.support.mortal import Mortal
from tests.support.plain_worlds import NAMES, PlainWorlds, random_action, small
from tests.support.uneven import Uneven
from uavlab.core.errors import ConfigError
from uavlab.core.types import own_actions
from uavlab.interop.simulator import Simulator, agent_groups
from uavlab.interop.torchrl import TeamEnvBase
from uavlab.testing.environment import reason_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of a class of its own
    from torchrl.collectors import Collector

ABSENT = ul.make("leader_follower", followers=3, present=(1, 2), horizon=6)
GROUPS = [Mortal(), Uneven(), ABSENT]


def start_method(code: str) -> str:
    """Return the way in which a new program starts processes after some code."""
    code = f"import multiprocessing; {code}; print(multiprocessing.get_start_method(allow_none=True))"
    return subprocess.check_output([sys.executable, "-W", "ignore", "-c", code], text=True).strip()


def test_a_face_leaves_the_way_in_which_processes_start() -> None:
    assert start_method("import torchrl") == "spawn"  # what it would be
    assert start_method("import uavlab; uavlab.to_torchrl('spread')") == "None"


def face(env: Any, worlds: int = 3, kind: type[TeamEnvBase] = TeamEnvBase) -> TeamEnvBase:
    return kind(Simulator(env, worlds, torch.device("cpu")))


def require_seen(td: Any, plain: PlainWorlds) -> None:
    """Compare what the agents of each group observe, and the ends of agents and worlds."""
    spec = plain.env.spec
    for group, numbers in agent_groups(spec).items():
        for world in range(plain.worlds):
            for row, number in enumerate(numbers):
                for name, value in plain.seen(world, number).items():
                    torch.testing.assert_close(td[group, name][world, row], value, rtol=1e-4, atol=1e-4)
        live = torch.tensor([[plain.live[world][n] for n in numbers] for world in range(plain.worlds)])
        late = torch.tensor(plain.late)[:, None] & live
        ends = (live.logical_not(), late, live.logical_not() | late)
        for name, expected in zip(("terminated", "truncated", "done"), ends, strict=True):
            assert td[group, name][..., 0].tolist() == expected.tolist(), name
    assert td["terminated"][:, 0].tolist() == [not any(live) for live in plain.live]
    assert td["truncated"][:, 0].tolist() == plain.late
    assert td["done"][:, 0].tolist() == [world in plain.over() for world in range(plain.worlds)]
    if spec.team:
        states = [plain.env.observe(state).team[0] for state in plain.states]
        torch.testing.assert_close(td["state"], torch.stack(states), rtol=1e-4, atol=1e-4)


def compare(env: Any, kind: type[TeamEnvBase] = TeamEnvBase, steps: int = 16) -> int:
    """Run worlds beside the slow twin, which TorchRL starts anew when they end; return how many did."""
    batch, plain, generator = face(env, kind=kind), PlainWorlds(env, 3, 3), torch.Generator().manual_seed(1)
    own, groups = own_actions(env.spec), agent_groups(env.spec)
    batch.set_seed(3)
    td, ended = batch.reset(), 0
    require_seen(td, plain)
    for _ in range(steps):
        action, live = random_action(plain, generator), torch.tensor(plain.live)
        for group, numbers in groups.items():
            team = action[:, list(numbers)]
            td[group, "action"] = team if env.spec.choices else team[..., : own[numbers[0]]]
        rewards = torch.tensor(plain.step(action)) * live
        td, successor = batch.step_and_maybe_reset(td)
        for group, numbers in groups.items():
            got = td["next", group, "reward"][..., 0]
            torch.testing.assert_close(got, rewards[:, list(numbers)], rtol=1e-4, atol=1e-3)
        require_seen(td["next"], plain)
        if over := plain.over():
            plain.begin(over)
        require_seen(successor, plain)
        td, ended = successor, ended + len(over)
    return ended


@pytest.mark.parametrize("name", NAMES)
def test_the_check_of_torchrl_passes(name: str) -> None:
    check_env_specs(ul.to_torchrl(name, worlds=2, **small(name)), break_when_any_done="both")
    check_env_specs(ul.to_torchrl(name, worlds=1, **small(name)), seed=1)


@pytest.mark.parametrize("env", GROUPS, ids=str)
def test_the_check_passes_where_groups_differ_and_agents_end(env: Any) -> None:
    check_env_specs(face(env), break_when_any_done="both")


@pytest.mark.parametrize("name", NAMES)
def test_each_registered_environment_equals_its_slow_twin(name: str) -> None:
    compare(ul.make(name, **small(name)))


@pytest.mark.parametrize("env", GROUPS, ids=str)
def test_groups_deaths_and_absent_agents_equal_their_slow_twin(env: Any) -> None:
    assert compare(env) >= 6


def test_worlds_end_one_by_one() -> None:
    assert compare(ul.make("pursuit", pursuers=3, evaders=1, side=4, obstacles=0, horizon=30), steps=60) > 3


class Whole(TeamEnvBase):
    """All worlds start anew when one does."""

    def _reset(self, tensordict: Any = None, **more: Any) -> Any:
        return super()._reset(None)


class Paid(TeamEnvBase):
    """Agents are paid after their end."""

    def _step(self, tensordict: Any) -> Any:
        result = super()._step(tensordict)
        for group in self.group_map:
            result[group, "reward"] += 1
        return result


class Rigid(TeamEnvBase):
    """An agent ends with its world."""

    def _results(self) -> Any:
        result = super()._results()
        for group in self.group_map:
            result[group, "done"] = result["done"][:, None].expand_as(result[group, "done"])
        return result


@pytest.mark.parametrize("kind", [Paid, Rigid])
def test_each_broken_variant_is_caught(kind: type[TeamEnvBase]) -> None:
    with pytest.raises(AssertionError):
        compare(Mortal(), kind)


def test_starting_all_worlds_anew_is_caught() -> None:
    with pytest.raises(AssertionError):
        compare(ul.make("pursuit", pursuers=3, evaders=1, side=4, obstacles=0, horizon=30), Whole, steps=60)


def test_entries_have_an_axis_of_agents_and_no_padding() -> None:
    def shapes(env: Any) -> dict[Any, tuple[int, ...]]:
        td = face(env).rollout(4)
        return {key: tuple(td[key].shape) for key in td.keys(True, True) if "next" not in key and "done" not in key}

    uneven = shapes(Uneven())
    assert uneven["plane", "action"] == uneven["plane", "observation"] == (3, 4, 2, 2)
    assert uneven["solid", "action"] == uneven["solid", "observation"] == (3, 4, 1, 3)
    mortal = shapes(Mortal())
    assert (mortal["short", "action"], mortal["short", "action_mask"]) == ((3, 4, 1), (3, 4, 1, 2))
    assert (mortal["long", "action"], mortal["long", "action_mask"]) == ((3, 4, 2), (3, 4, 2, 3))
    assert shapes(ul.make("mapping", measurements=5))["state"] == (3, 4, 4, 11, 11)


@pytest.mark.parametrize("name", ["pursuit", "assignment"])
def test_random_actions_of_torchrl_are_legal(name: str) -> None:
    env = ul.to_torchrl(name, worlds=4)
    td = env.rollout(15, break_when_any_done=False)
    for group in env.group_map:
        assert td[group, "action_mask"].gather(-1, td[group, "action"][..., None]).all()
        assert not td[group, "action_mask"].all()


def test_a_seed_repeats_whole_episodes() -> None:
    def rewards(seed: int) -> Tensor:
        env = face(Mortal())
        env.set_seed(seed)
        td, seen = env.reset(), []
        for _ in range(12):
            for group, agents in env.group_map.items():
                td[group, "action"] = torch.ones(3, len(agents), dtype=torch.int64)
            td, successor = env.step_and_maybe_reset(td)
            seen += [td["next", group, "reward"] for group in env.group_map]
            td = successor
        return torch.cat(seen, 1)

    torch.manual_seed(0)
    first = rewards(4)
    torch.manual_seed(1)
    assert torch.equal(first, rewards(4))
    assert not torch.equal(first, rewards(5))


def test_a_collector_of_theirs_goes_on_from_batch_to_batch() -> None:
    """Mortal lasts 5 steps: batches of 4 steps of 3 worlds end in the middle of episodes."""
    collector = Collector(lambda: face(Mortal()), None, frames_per_batch=12, total_frames=60)
    steps = torch.cat([batch["long", "observation"][:, :, 0, 1] for batch in collector], 1)
    assert steps.tolist() == [[0, 1, 2, 3, 4] * 4] * 3
    collector.shutdown()


def test_a_transform_of_theirs_sums_rewards_up_to_the_end_of_a_world() -> None:
    env = TransformedEnv(face(Mortal()), RewardSum(in_keys=[("long", "reward")], reset_keys=["_reset"]))
    td = env.rollout(10, break_when_any_done=False)
    sums = td["next", "long", "episode_reward"]
    torch.testing.assert_close(sums[:, 4], td["next", "long", "reward"][:, :5].sum(1))
    torch.testing.assert_close(sums[:, 9], td["next", "long", "reward"][:, 5:].sum(1))


class Waits(TorchDispatchMode):
    """Records operators at which a GPU would wait for the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if reason := reason_of(func, args):
            self.reasons.append(f"{func}: {reason}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [name for name in NAMES if "leader" not in name or "slow" not in name])
def test_neither_a_step_nor_a_start_waits_for_the_host(name: str) -> None:
    env = ul.to_torchrl(name, worlds=3, **small(name))
    td = env.rand_action(env.reset())
    env._step(td)  # constants of the environment are on the device from now on
    ended = TensorDict({"_reset": torch.tensor([[True], [False], [True]])}, 3)
    with Waits() as waits:
        env._step(td)
        env._reset(ended)
    assert waits.reasons == []
    with Waits() as waits:
        bool(env.simulator.truncated.any())
    assert len(waits.reasons) == 1


@pytest.mark.parametrize(
    ("group", "action", "message"),
    [
        ("long", torch.ones(3, 2), r"got the action torch\.float32 of shape \(3, 2\); expected torch\.int64"),
        ("short", torch.ones(3, 2, dtype=torch.int64), r"got .* of shape \(3, 2\); expected .* of shape \(3, 1\)"),
        ("short", None, "got the action None"),
    ],
)
def test_wrong_actions_are_refused_and_change_nothing(group: str, action: Any, message: str) -> None:
    env = face(Mortal())
    td = env.rand_action(env.reset())
    before = env.simulator.state
    if action is None:
        del td[group, "action"]
    else:
        td[group] = td[group].exclude("action").auto_batch_size_(1).set("action", action)
    with pytest.raises(ConfigError, match=f"step: {group}: {message}"):
        env._step(td)
    assert env.simulator.state is before


def test_another_device_is_refused() -> None:
    env = face(Mortal())
    assert env.to("cpu") is env
    with pytest.raises(ConfigError, match="worlds on cpu cannot move to meta; build them there by device="):
        env.to("meta")


def test_a_group_with_a_name_of_torchrl_is_refused() -> None:
    class Spaced(Uneven):
        spec = ul.team_spec(ul.Group("space", 3, obs=3, action=3), horizon=6, initial_noise=9)

    with pytest.raises(ConfigError, match="TorchRL allows no group the name 'space'; choose another one"):
        face(Spaced())


def test_groups_are_those_of_the_caller() -> None:
    def rewards(groups: dict[str, list[str]] | None, keys: list[str]) -> Tensor:
        env = ul.to_torchrl("leader_follower", worlds=2, group_map=groups, followers=2)
        env.set_seed(1)
        td = env.reset()
        for group, agents in env.group_map.items():
            td[group, "action"] = torch.full((2, len(agents), 2), 0.25)
        td = env.step(td)
        return torch.cat([td["next", key, "reward"] for key in keys], 1)

    torch.testing.assert_close(
        rewards({"all": ["agent_2", "agent_0", "agent_1"]}, ["all"]).roll(-1, 1), rewards(None, ["group_0", "group_1"])
    )


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": ["short_0"]}, r"got group_map=.*; expected lists of \('short_0', 'long_0', 'long_1'\), each once"),
        ({"a": ["short_0"], "b": ["long_0", "long_0"]}, "got .*; expected lists of"),
        ({"a": ["short_0"], "b": ["long_0", "long_1"], "c": []}, "got .*; expected lists of"),
        ({"a": "short_0", "b": ["long_0", "long_1"]}, "got .*; expected lists of"),
        ({"a": 1}, "got .*; expected lists of"),
        ({1: ["short_0"], "b": ["long_0", "long_1"]}, "got .*; expected lists of"),
        (["short_0", "long_0", "long_1"], "got .*; expected lists of"),
        ({"a": ["short_0", "long_0", "long_1"]}, "agents of 'a' observe or do different things; expected one kind"),
        ({"next": ["short_0"], "b": ["long_0", "long_1"]}, "TorchRL allows no group the name 'next'"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^to_torchrl: {message}"):
        TeamEnvBase(Simulator(Mortal(), 2, torch.device("cpu")), groups)
