"""An environment without a picture is drawn by its observations; one that observes maps is refused."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from tests.support.fixtures_mapping import TINY_MISSION, start_missions
from tests.support.registries import outside
from uavlab.core.errors import ConfigError
from uavlab.core.registry import SCENES
from uavlab.core.types import ChoiceObs, EnvSpec
from uavlab_lab.plots import flight, observations


class Plain(outside.Drift):
    """Its observations are place and step, of six agents."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(6, obs=2, action=1, horizon=8, dt=0.5, initial_noise=6, step_noise=6, groups=(0,) * 6)

    def observe(self, state: outside.State) -> torch.Tensor:
        return torch.stack((state.pos, state.step[:, None].expand_as(state.pos).float()), -1)


@pytest.fixture(scope="module")
def figure() -> go.Figure:
    states = [outside.State(pos=torch.arange(6.0)[None] + n, step=torch.tensor([n])) for n in range(4)]
    return flight.animate(Plain(), states)


def test_each_observation_is_a_line_over_time(figure: go.Figure) -> None:
    lines = [trace for trace in figure.data if trace.name]
    assert len(lines) == 4 * 2
    assert [line.name for line in lines[:2]] == ["observation 1", "observation 2"]
    assert [*lines[4].x] == [0, 0.5, 1, 1.5]
    assert [*lines[4].y] == [2, 3, 4, 5]  # the place of agent 3
    assert [*lines[5].y] == [0, 1, 2, 3]
    assert lines[4].yaxis == "y3"
    assert sum(bool(line.showlegend) for line in lines) == 2


class Choosing(Plain):
    """Agents that choose moves on vectors."""

    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, choices=3)

    def observe(self, state: outside.State) -> ChoiceObs:
        features = super().observe(state)
        return ChoiceObs(features=features, legal=torch.ones(*features.shape[:2], 3, dtype=torch.bool))


def test_vectors_of_agents_that_choose_moves_are_drawn_alike(figure: go.Figure) -> None:
    states = [outside.State(pos=torch.arange(6.0)[None] + n, step=torch.tensor([n])) for n in range(4)]
    other = flight.animate(Choosing(), states)
    assert [[*trace.y] for trace in other.data] == [[*trace.y] for trace in figure.data]


def test_what_is_left_out_is_said(figure: go.Figure) -> None:
    caption = figure.layout.title.subtitle.text
    assert caption == "Plain has no picture of its own. Drawn are 4 of 6 agents, 2 of 2 observations of each."


def test_a_line_stands_at_the_present(figure: go.Figure) -> None:
    assert [frame.name for frame in figure.frames] == ["0", "0.5", "1", "1.5"]
    assert figure.frames[2].traces == (8, 9, 10, 11)
    assert np.array_equal(figure.frames[2].data[1].x, [1, 1])
    assert np.array_equal(figure.frames[2].data[1].y, [0, 4])


def test_an_environment_that_observes_maps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SCENES, next(kind for kind in SCENES if kind.__name__ == "Mapping"))
    start, _ = start_missions(TINY_MISSION, 1)
    with pytest.raises(
        ConfigError, match="Mapping has no picture; registered are LeaderFollower, Pursuit, Spread, Assignment; add"
    ):
        flight.animate(TINY_MISSION, [start])


def test_it_serves_every_class() -> None:
    assert SCENES[object] is observations.draw_observations
