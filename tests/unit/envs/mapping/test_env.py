"""Informative mapping: cases by hand."""

from dataclasses import fields, replace

import pytest
import torch

from tests.support.fixtures_config import sizes
from tests.support.fixtures_mapping import SMALL, TINY_MISSION, random_step, require_close, start_missions
from uavlab.collectors.on_policy import OnPolicyCollector, RolloutConfig
from uavlab.core.errors import ConfigError, DivergedError
from uavlab.core.rng import Streams
from uavlab.core.types import tree_map
from uavlab.envs.mapping import baselines
from uavlab.envs.mapping.env import CHANNELS, Mapping, State
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.ops import belief_maps
from uavlab.runtime.runtime import Runtime


def test_published_starts() -> None:
    state, _ = start_missions(Mapping(), 2)
    assert state.place[0].tolist() == [[2, 2, 2], [8, 2, 2], [8, 8, 2], [2, 8, 2]]


def test_uncertainty_is_the_sum_over_the_whole_map() -> None:
    state, generator = start_missions(SMALL, 4)
    for _ in range(14):
        _, state = random_step(SMALL, state, generator)
        whole = belief_maps.weighted_entropy(belief_maps.belief(state.logits[:, -1], torch.float64)).sum((1, 2))
        torch.testing.assert_close(state.uncertainty.double(), whole, rtol=1e-5, atol=0)


def test_cells_seen_by_two_uavs_count_once() -> None:
    """With two UAVs at one place, what both see is learned twice but lost once."""
    env = replace(SMALL, uavs=2)
    state, _ = start_missions(env, 1)
    together = state.place[:, :1].expand(-1, 2, -1)
    uncertainty = torch.full_like(state.uncertainty, 0.5 * SMALL.cells**2)
    blank = replace(
        state, logits=torch.zeros_like(state.logits), mean=torch.zeros_like(state.mean), uncertainty=uncertainty
    )
    after = env._measure(blank, together, torch.full((1, env.step_noise), 0.9))
    whole = belief_maps.weighted_entropy(belief_maps.belief(after.logits[:, -1], torch.float64)).sum((1, 2))
    torch.testing.assert_close(after.uncertainty.double(), whole, rtol=1e-5, atol=0)


def test_reward_is_that_of_the_measurement_after_or_before_the_move() -> None:
    for lagged in (False, True):
        env = replace(SMALL, lagged=lagged)
        state, generator = start_missions(env, 2)
        action, after = random_step(env, state, generator)
        gain = (state if lagged else after).gain
        torch.testing.assert_close(env.reward(state, action, after), (22 * gain - 0.5)[:, None].expand(-1, 3))


def test_metrics_by_hand() -> None:
    """Two target cells, one claimed and sure, one unknown: (0 + 1) / 2 bits; one of one claim right: F1 2 / 3."""
    env = Mapping(cells=17, cell=50 / 17, uavs=1)
    state, _ = start_missions(env, 1)
    truth, logits = torch.zeros_like(state.truth), torch.full_like(state.logits, -belief_maps.LIMIT)
    truth[0, 3, 4:6] = 1
    logits[0, -1, 3, 4], logits[0, -1, 3, 5] = belief_maps.LIMIT, 0
    judged = env.measure(state, torch.zeros(1, 1), replace(state, truth=truth, logits=logits))
    sure = float(belief_maps.entropy(torch.tensor(1e-4, dtype=torch.float64)))
    assert judged["entropy"].item() == pytest.approx((1 + sure) / 2, abs=1e-5)
    assert judged["f1"].item() == pytest.approx(2 / 3)


def test_missions_are_independent() -> None:
    state, generator = start_missions(SMALL, 4)
    action, noise = torch.randint(6, (4, 3), generator=generator), torch.rand(4, SMALL.step_noise, generator=generator)
    together = tree_map(lambda leaf: leaf[2:3], SMALL.transition(state, action, noise))
    alone = SMALL.transition(tree_map(lambda leaf: leaf[2:3].clone(), state), action[2:3], noise[2:3])
    require_close(alone, together, 0.0)
    assert (together.logits != state.logits[2:3]).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uavs": 26, "lattice": 5}, "uavs 26 > lattice 5 x 5"),
        ({"measurements": 0}, "measurements: input should be greater than or equal to 2, got 0"),
        ({"measurements": 1}, "measurements: input should be greater than or equal to 2, got 1"),
        ({"flip": []}, "flip: tuple should have at least 1 item"),
        ({"flip": [0.01, 0.5]}, "less than 0.5"),
        ({"reach": -1.0}, "reach: input should be greater than or equal to 0, got -1.0"),
        ({"dropout": 1.5}, "dropout: input should be less than or equal to 1"),
        ({"lattice": 3}, "starts corners: a lattice of 3 has no corners"),
        ({"cells": 100}, "UAVs would leave the map"),
        ({"channels": ["belief", "belief"]}, "expected each at most once"),
        ({"channels": ["beleif"]}, "input should be 'budget', 'number', 'places'"),
        ({"channels": []}, "channels: tuple should have at least 1 item"),
        ({"cell": 10.0}, "no whole cell is seen"),
        ({"cells": 16, "lattice": 17, "cell": 10.0, "starts": "random"}, "cells 16 < lattice 17"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match="mapping: ") as refused:
        configure("mapping", settings)
    assert message in str(refused.value)


def test_an_altitude_without_a_sensor_is_refused() -> None:
    state, _ = start_missions(SMALL, 1)
    with pytest.raises(ConfigError, match=r"altitude 3: expected 0 to 2"):
        SMALL.places.half(3)
    with pytest.raises(ConfigError, match=r"altitude 7: expected 0 to 2"):
        baselines.sweep(SMALL, state, torch.zeros(1, 3), altitude=7)


@pytest.mark.parametrize("name", ["logits", "truth", "place", "mean"])
def test_states_of_another_shape_are_refused(name: str) -> None:
    state, _ = start_missions(SMALL, 2)
    wrong = replace(state, **{name: getattr(state, name)[:, :-1]})
    for call in (SMALL.observe, lambda given: SMALL.transition(given, torch.zeros(2, 3).long(), torch.zeros(2, 1))):
        with pytest.raises(ConfigError, match=rf"state\.{name} has shape \(2, .*expected \(missions, "):
            call(wrong)


def test_nan_beliefs_are_reported() -> None:
    class Torn(Mapping):
        def initial(self, noise: torch.Tensor) -> State:
            state = super().initial(noise)
            return replace(state, mean=state.mean * torch.nan)

    env = Torn(**{field.name: getattr(TINY_MISSION, field.name) for field in fields(TINY_MISSION)})
    rollouts = OnPolicyCollector(
        env, lambda obs, noise: torch.zeros(1, 2, 3).long(), RolloutConfig(2), Streams([0]), Runtime()
    )
    with pytest.raises(DivergedError, match=r"obs\.maps of run 0, world 0 is nan"):
        rollouts.next()


def test_target_cells_are_places_on_the_ground() -> None:
    state, _ = start_missions(SMALL, 1)
    obs = SMALL.observe(state)
    x, y = state.place[0, 0, :2].tolist()
    size = SMALL.lattice
    assert obs.place[0, 0] == y * size + x
    assert obs.target_cell[0, 0].tolist() == [
        y * size + x,
        y * size + x - 1,
        (y - 1) * size + x,
        (y + 1) * size + x,
        y * size + x + 1,
        y * size + x,
    ]
    assert torch.equal(obs.legal, SMALL.places.legal(state.place))


def test_centred_maps_are_the_same_maps_moved() -> None:
    state, _ = start_missions(SMALL, 2)
    plain, centred_maps = SMALL.observe(state).maps, replace(SMALL, centred=True).observe(state).maps
    assert torch.equal(plain[:, :, :3], centred_maps[:, :, :3])  # constants, and where everybody is
    spot = SMALL.observe(state).place
    for mission in range(2):
        for uav in range(3):
            y, x = divmod(int(spot[mission, uav]), SMALL.lattice)
            assert torch.equal(centred_maps[mission, uav, 3:, 5, 5], plain[mission, uav, 3:, y, x])


def test_fewer_channels_are_the_same_channels_and_networks_follow() -> None:
    state, _ = start_missions(SMALL, 2)
    whole = replace(SMALL, centred=True)
    few = replace(whole, channels=("belief", "places"))
    chosen = [CHANNELS.index(name) for name in few.channels]
    assert torch.equal(few.observe(state).maps, whole.observe(state).maps[:, :, chosen])
    other = {"channels": ["belief", "places"], "lattice": 7, "spacing": 3.0, "updates": 1}
    run = Run(configure("mapping", sizes("mapping"), other))
    for _ in run.train():
        pass
    assert run.learner.actor_net.shapes[0][2] == 2
    assert run.learner.actor_net.side == 7
