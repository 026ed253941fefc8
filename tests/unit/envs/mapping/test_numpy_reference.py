"""Informative mapping beside its twin on the host, with equal noise."""

from dataclasses import fields, replace

import pytest

from tests.support.fixtures_mapping import SMALL, differ, drawn, moved
from uavlab.envs.mapping.env import Mapping
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.ops import belief_maps


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
def test_equals_its_twin_on_the_host(env: Mapping) -> None:
    host = HostMapping(**{f.name: getattr(env, f.name) for f in fields(env)})
    here, generator = drawn(env, 3)
    there, _ = drawn(host, 3)
    for _ in range(env.measurements - 1):
        differ(here, there)
        differ(env.observe(here), host.observe(there))
        action, after = moved(env, here, generator.manual_seed(int(here.step[0])))
        _, then = moved(host, there, generator.manual_seed(int(there.step[0])))
        assert (env.reward(here, action, after) - host.reward(there, action, then)).abs().max() <= 1e-5
        for name, figure in env.measure(here, action, after).items():
            assert (figure - host.measure(there, action, then)[name]).abs().max() <= 1e-5
        here, there = after, then


def test_the_twin_catches_a_wrong_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostMapping(cells=SMALL.cells, cell=SMALL.cell, uavs=SMALL.uavs)
    there, _ = drawn(host, 2)
    monkeypatch.setattr(belief_maps, "log_odds_steps", lambda flip: 900)
    here, _ = drawn(SMALL, 2)
    with pytest.raises(AssertionError, match="logits"):
        differ(here, there)


@pytest.mark.soak
def test_whole_published_missions_equal_their_twins() -> None:
    """Weighted entropy jumps where a belief passes 0.5 +- 0.001: no two ways of adding up agree on every such cell."""
    env, host = Mapping(), HostMapping()
    here, generator = drawn(env, 20)
    there, _ = drawn(host, 20)
    jumps = values = 0
    for _ in range(env.measurements - 1):
        seen, shown = env.observe(here), host.observe(there)
        for mine, other in ((seen.maps, shown.maps), (seen.team, shown.team)):
            apart = (mine - other).abs()
            off = apart > 1e-5
            assert ((apart[off] - 0.5).abs() < 0.01).all()
            jumps, values = jumps + int(off.sum()), values + off.numel()
        action, after = moved(env, here, generator.manual_seed(int(here.step[0])))
        _, then = moved(host, there, generator.manual_seed(int(there.step[0])))
        differ(after, then)
        assert (env.reward(here, action, after) - host.reward(there, action, then)).abs().max() <= 1e-5
        for name, figure in env.measure(here, action, after).items():
            assert (figure - host.measure(there, action, then)[name]).abs().max() <= 1e-5
        here, there = after, then
    assert jumps <= values // 100_000
