"""Informative mapping against its reference on the host, with equal noise."""

from dataclasses import fields, replace

import pytest
import torch

from tests.support.fixtures_mapping import SMALL, random_step, require_close, start_missions
from uavlab.envs.mapping import fusion
from uavlab.envs.mapping.env import Mapping
from uavlab.envs.mapping.numpy_reference import HostMapping


@pytest.mark.parametrize(
    "env",
    [
        SMALL,
        replace(SMALL, dropout=0.4, reach=10.0, starts="random"),
        replace(SMALL, uavs=1, truth="fields"),
        replace(SMALL, lagged=True),
    ],
    ids=["defaults", "dropout", "alone", "lagged"],
)
def test_equals_the_reference(env: Mapping) -> None:
    host = HostMapping(**{f.name: getattr(env, f.name) for f in fields(env)})
    here, generator = start_missions(env, 3)
    there, _ = start_missions(host, 3)
    for _ in range(env.measurements - 1):
        require_close(here, there)
        require_close(env.observe(here), host.observe(there))
        action, after = random_step(env, here, generator.manual_seed(int(here.step[0])))
        _, then = random_step(host, there, generator.manual_seed(int(there.step[0])))
        assert (env.reward(here, action, after) - host.reward(there, action, then)).abs().max() <= 1e-5
        for name, figure in env.measure(here, action, after).items():
            assert (figure - host.measure(there, action, then)[name]).abs().max() <= 1e-5
        here, there = after, then


def test_a_wrong_measurement_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostMapping(cells=SMALL.cells, cell=SMALL.cell, uavs=SMALL.uavs)
    there, _ = start_missions(host, 2)
    monkeypatch.setattr(fusion, "log_odds_steps", lambda flip: 900)
    here, _ = start_missions(SMALL, 2)
    with pytest.raises(AssertionError, match="logits"):
        require_close(here, there)


@pytest.mark.soak
def test_whole_published_missions_equal_the_reference() -> None:
    """Weighted entropy jumps where a belief passes 0.5 +- 0.001: sums in another order differ on some such cells."""
    env, host = Mapping(), HostMapping()
    here, generator = start_missions(env, 20)
    there, _ = start_missions(host, 20)
    jumps = values = 0
    for _ in range(env.measurements - 1):
        obs, reference = env.observe(here), host.observe(there)
        for mine, other in ((obs.maps, reference.maps), (obs.team, reference.team)):
            apart = (mine - other).abs()
            off = apart > 1e-5
            assert ((apart[off] - 0.5).abs() < 0.01).all()
            jumps, values = jumps + int(off.sum()), values + off.numel()
        action, after = random_step(env, here, generator.manual_seed(int(here.step[0])))
        _, then = random_step(host, there, generator.manual_seed(int(there.step[0])))
        require_close(after, then)
        assert (env.reward(here, action, after) - host.reward(there, action, then)).abs().max() <= 1e-5
        for name, figure in env.measure(here, action, after).items():
            assert (figure - host.measure(there, action, then)[name]).abs().max() <= 1e-5
        here, there = after, then
    assert jumps <= values // 100_000


def test_observations_of_a_float64_world_keep_its_digits() -> None:
    """The weights of OpenCV's averages are float32: 2e-8 off; rounding here as well would make it 1e-7."""
    host = HostMapping(**{f.name: getattr(SMALL, f.name) for f in fields(SMALL)})
    noise = torch.rand(2, SMALL.initial_noise, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    here, there = SMALL.observe(SMALL.initial(noise)), host.observe(host.initial(noise))
    torch.testing.assert_close(here.maps, there.maps, rtol=0, atol=3e-8)
    torch.testing.assert_close(here.team, there.team, rtol=0, atol=3e-8)
    assert torch.equal(here.maps[:, 0, 1], torch.full((2, 11, 11), 1 / 3, dtype=torch.float64))
