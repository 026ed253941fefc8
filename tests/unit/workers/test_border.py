"""What an environment returns against its contract is refused at the border by name, or taken where it is harmless."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.foreign import CLOSED, Fleet, NoSeed, Spot, step_once
from tests.support.registries import registered
from uavlab.core.errors import ConfigError, FallbackWarning
from uavlab.core.registry import ENVIRONMENTS
from uavlab.workers.pool import close_all
from uavlab.workers.registration import external
from uavlab.workers.spaces import GOES_ON, TRUNCATED, UNSEEN, Refusal
from uavlab.workers.team import Adapter, Team, make

HERE = "tests.support.foreign"


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            "four",
            "step returned 4 results, as gym did before 0.26; expected a tuple of five: observation, rew",
        ),
        ("alone", "reset returned a ndarray; expected a pair, an observation and a dict of infos"),
        ("list", "reset returned 2 results; expected a pair, an observation and a dict of infos"),
        ("pair", r"step returned the reward \[0.5, 0.5\] of agent; expected one number"),
        ("nothing", "step returned the reward None of agent; expected one number"),
        ("word", "step returned the reward 'good' of agent; expected one number"),
        ("nan", "step returned terminated=nan of agent; expected true or false"),
        ("three", r"step returned terminated=.*3.* of agent; expected true or false"),
        ("no infos", "the info of step is a NoneType; expected a dict"),
    ],
)
def test_a_breach_is_named(fault: str, text: str) -> None:
    with pytest.raises(Refusal, match=text):
        step_once(Adapter(Spot(fault)))


def test_harmless_forms_are_taken() -> None:
    assert step_once(Adapter(Spot("array"))).reward[0, 0] == 0.5
    for fault in ("numpy", "zero"):
        assert step_once(Adapter(Spot(fault))).end[0, 0] == GOES_ON


def test_a_reset_without_a_seed_is_named() -> None:
    with pytest.raises(Refusal, match="reset takes no seed; expected reset"):
        make("factory", HERE, "NoSeed", {})
    assert NoSeed().reset()[1] == {}


@pytest.mark.parametrize("number", [0, 1, 4])
def test_results_of_a_parallel_environment_are_dicts_by_agent(number: int) -> None:
    class Listed(Fleet):
        def step(self, actions: Any) -> Any:
            results = [*super().step(actions)]
            results[number] = [*results[number].values()]
            return tuple(results)

    what = "the info of step" if number == 4 else f"the result {number + 1} of step"
    with pytest.raises(Refusal, match=f"{what} is a list; expected a dict"):
        step_once(Listed())


@pytest.mark.parametrize("seen", [None, "text", {"x": 1}, [[1], [1, 2]]])
def test_an_observation_of_another_kind_is_named(seen: Any) -> None:
    class Odd(Fleet):
        def see(self, agents: Any) -> Any:
            return {**super().see(agents), **({"uav_1": seen} if self.count else {})}

    with pytest.raises(Refusal, match="uav_1"):
        step_once(Odd())


@pytest.mark.parametrize(("mask", "obs"), [("beside", 2), ("third", 3), ("nested", 4), ("alone", 3), ("infos", 2)])
def test_a_mask_is_taken_out_of_any_dictionary(mask: str, obs: int) -> None:
    team = Team(Fleet(mask=mask))
    description = team.describe()
    assert {(agent.obs, agent.choices, agent.masked) for agent in description.agents} == {(obs, 3, True)}
    assert description.notes == ()
    rows = step_once(Fleet(mask=mask))
    assert rows.legal[0].tolist() == [[True, True, False]] * 3
    seen = {"beside": [0.1] * 2, "third": [1, 0.1, 0.1], "nested": [0.1] * 4, "alone": [1, 1, 0], "infos": [0.1] * 2}
    assert rows.obs[0, 0].tolist() == [np.float32(x) for x in seen[mask]]


@pytest.mark.parametrize(
    ("mask", "text", "obs"),
    [
        ("other", "key 'Mask_of_moves' is not used as a mask, but observed as numbers: call it action_mask", 5),
        ("avail", "key 'avail_actions' is not used as a mask, but observed as numbers: call it action_mask", 5),
        ("infos_other", "key 'Legal_Mask' of infos is not used as a mask: call it action_mask", 2),
    ],
)
def test_a_mask_of_another_name_is_named_once(mask: str, text: str, obs: int) -> None:
    (note,) = Team(Fleet(mask=mask)).describe().notes
    assert note.startswith(text)
    with registered():
        with pytest.warns(FallbackWarning, match=text) as caught:
            name = external(f"{HERE}:Fleet", mask=mask)
        assert len(caught) == 1
        env = ENVIRONMENTS[name].kind()
        assert (env.spec.obs, env.description.agents[0].masked) == (obs, False)
        assert env.record()["notes"] == [note]


def test_a_mask_of_continuous_actions_and_one_of_another_length_are_named() -> None:
    class Free(Fleet):
        def action_space(self, agent: Any) -> Any:
            return self.observation_space(agent)["observations"]

    (note,) = Team(Free(mask="beside")).describe().notes
    assert note.endswith("actions are continuous; leave it out, or act by moves")
    with pytest.raises(Refusal, match=r"action_mask of uav_0 is .*; expected 3 numbers, 1 for each move that is open"):
        step_once(Fleet(mask="short"))


def test_an_agent_without_a_move_waits_while_another_one_has_some() -> None:
    class Turns(Fleet):
        closed: Any = ("uav_1", "uav_2")

        def see(self, agents: Any) -> Any:
            seen = super().see(agents)
            for agent in {*self.closed} & {*agents}:
                seen[agent]["action_mask"] = 0 * CLOSED
            return seen

    rows = step_once(Turns(mask="beside"))
    assert rows.legal[0].tolist() == [[True, True, False], *[[True, False, False]] * 2]
    Turns.closed = ("uav_0", "uav_1", "uav_2")
    with pytest.raises(Refusal, match=r"action_mask of uav_0 is all 0, and nobody has a move.*: leave a move open"):
        step_once(Turns(mask="beside"))


@pytest.mark.parametrize("env", [Fleet(last=False), Adapter(Spot("unseen"))])
def test_a_cut_without_a_last_observation_is_an_end(env: Any) -> None:
    rows = step_once(env, steps=5 if isinstance(env, Fleet) else 4)
    assert set(rows.end[0].tolist()) == {UNSEEN}
    assert set(step_once(Fleet(), steps=5).end[0].tolist()) == {TRUNCATED}


@pytest.mark.parametrize(("factory", "steps"), [("Fleet,last=false", 5), ("Spot,fault=unseen", 4)])
def test_it_is_reported_once_and_no_value_follows(factory: str, steps: int) -> None:
    with registered():
        env = ENVIRONMENTS[external(f"{HERE}:{factory}")].kind(workers=1, copies=2)
        for _ in range(2):
            state = env.initial(torch.rand(2, 2, generator=torch.Generator().manual_seed(1)))
            move = torch.zeros(2, env.spec.agents, dtype=torch.int64)
            for _ in range(steps - 1):
                state = env.transition(state, move, torch.zeros(2, 0))
            if env.record().get("unseen"):
                state = env.transition(state, move, torch.zeros(2, 0))  # no second warning
            else:
                with pytest.warns(FallbackWarning, match="without a last observation, so this counts as an end"):
                    state = env.transition(state, move, torch.zeros(2, 0))
            assert state.ended.all()
            assert not state.cut.any()
        assert env.record()["unseen"] == 4 * env.spec.agents
    close_all()


def test_what_was_read_is_one_line() -> None:
    with registered():
        line = ENVIRONMENTS[external(f"{HERE}:Fleet", mask="third")].kind().reading
        assert line == (
            "3 agents in 1 group by groups=names, 3 numbers, 3 moves, masked; an agent may end before the others; "
            "horizon 1000 by default, as the environment does not say"
        )
        pendulum = ENVIRONMENTS[external("gymnasium:Pendulum-v1")].kind
        assert pendulum().reading == "1 agent, 3 numbers, 1 action in [-2, 2]; horizon 200 by its spec"
        assert pendulum(horizon=50).reading.endswith("horizon 50 by the setting horizon")


def test_a_name_of_thousands_of_characters_is_not_printed_whole() -> None:
    with pytest.raises(ConfigError, match=r"5,0.. characters; expected at most 1,000") as caught:
        external(f"{HERE}:{'x' * 5000}")
    assert len(str(caught.value)) < 300
