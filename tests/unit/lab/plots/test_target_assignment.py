"""The picture of an assignment shows who is where, what is still needed, and says how it ended."""

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from uavlab.envs.target_assignment.env import Assignment, State, greedy
from uavlab_lab.plots import flight
from uavlab_lab.plots.target_assignment import LARGEST, SMALLEST, draw_flight

ENV = Assignment(uavs=(2, 3), targets=(2, 3), obstacles=(1, 2), slots=(4, 5, 3))
OBSTACLES, STARTS, OPEN, SATISFIED, LEGS, UAVS = range(6)


def fly(env: Assignment = ENV, seed: int = 0) -> list[State]:
    states = [env.initial(torch.rand(2, env.spec.initial_noise, generator=torch.Generator().manual_seed(seed)))]
    while not bool(env.terminated(states[-1])[0]):
        states.append(env.transition(states[-1], greedy(env, states[-1], torch.zeros(2, 1)), torch.zeros(2, 0)))
    return states


def points(trace: go.Scatter) -> np.ndarray:
    """Return the places of a trace without gaps."""
    places = np.stack((trace.x, trace.y), 1).astype(float)
    return places[~np.isnan(places[:, 0])]


@pytest.fixture(scope="module")
def states() -> list[State]:
    return fly()


@pytest.fixture(scope="module")
def figure(states: list[State]) -> go.Figure:
    return draw_flight(ENV, states)


def test_empty_slots_are_not_drawn(figure: go.Figure, states: list[State]) -> None:
    uavs, targets = int((states[0].speed[0] > 0).sum()), int((states[0].demand[0].sum(-1) > 0).sum())
    assert (uavs, targets) < (ENV.rows, ENV.columns)
    for frame in figure.frames:
        open_, satisfied, _, flyers = (points(each) for each in frame.data)
        assert (len(open_) + len(satisfied), len(flyers)) == (targets, uavs)
    assert len(points(figure.data[STARTS])) == uavs


def test_legs_join_places_of_uavs_before_and_after_each_decision(figure: go.Figure, states: list[State]) -> None:
    for number, frame in enumerate(figure.frames):
        legs = points(frame.data[LEGS - OPEN])
        assert len(legs) == 2 * number
    at = states[0].at[0]
    first = points(figure.frames[1].data[LEGS - OPEN])
    assert any(np.allclose(first[0], each) for each in at.tolist())
    torch.testing.assert_close(torch.tensor(points(figure.frames[-1].data[UAVS - OPEN])).double(), places(states[-1]))


def places(state: State) -> torch.Tensor:
    return state.at[0][state.speed[0] > 0].double()


def test_marks_are_as_large_as_what_is_needed(figure: go.Figure, states: list[State]) -> None:
    sizes = figure.frames[0].data[0].marker.size
    need = states[0].demand[0].sum(-1)
    expected = SMALLEST + (LARGEST - SMALLEST) * need[need > 0] / need.max()
    assert list(sizes) == pytest.approx(expected.tolist())


def test_the_title_says_how_it_ended(figure: go.Figure, states: list[State]) -> None:
    end = states[-1]
    count, done = int(end.targets[0]), round(float(ENV.completion(end)[0] * end.targets[0]))
    assert figure.layout.title.text == f"{done} of {count} targets satisfied after {len(states) - 1} decisions"
    way = float((states[0].left - end.left)[0].sum())
    assert figure.layout.title.subtitle.text.startswith(f"All UAVs flew {way:,.0f} m; mean congestion ")


def test_it_can_be_played_without_obstacles_too() -> None:
    env = Assignment(uavs=(6, 6), targets=(4, 4), obstacles=(0, 0))
    picture = flight.animate(env, fly(env))
    assert {tuple(frame.traces) for frame in picture.frames} == {(2, 3, 4, 5)}
    assert len(points(picture.data[OBSTACLES])) == 0
    assert [trace.name for trace in picture.data if trace.showlegend is not False][:2] == ["obstacle", "start"]
