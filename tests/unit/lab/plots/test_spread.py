"""A spread flight shows what is covered and who collides, and says so."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from torch import Tensor

from uavlab.envs.spread import Spread, State, assignment
from uavlab_lab.plots import flight, spread
from uavlab_lab.plots.spread import draw_flight

PAIR = Spread(uavs=2, dt=0.1)
COVERED, TRAIL, UAVS, CRASHES = range(4)  # moving traces
NAMES = ["landmark", "covered", "UAV", "collision"]


def team(*places: tuple[float, float]) -> State:
    """Place two UAVs; landmarks are at (0.5, 0) and (0, -0.5)."""
    landmark = torch.tensor([[[0.5, 0.0], [0.0, -0.5]]])
    return State(torch.tensor([places]), torch.zeros(1, 2, 2), landmark, torch.tensor([0]))


FAR, ONE = team((-0.5, 0.5), (0.5, 0.5)), team((-0.5, 0.5), (0.5, 0.05))
BOTH, CRASH = team((0.02, -0.5), (0.5, 0.05)), team((0.5, 0.0), (0.5, 0.05))


def fly(env: Spread, worlds: int = 2) -> list[State]:
    states = [env.initial(torch.rand(worlds, env.spec.initial_noise, generator=torch.Generator().manual_seed(0)))]
    for _ in range(env.horizon):
        action: Tensor = assignment(env, states[-1], torch.zeros(worlds, env.uavs))
        states.append(env.transition(states[-1], action, torch.zeros(worlds, 0)))
    return states


@pytest.fixture(scope="module")
def figure() -> go.Figure:
    return draw_flight(PAIR, [FAR, ONE, CRASH, BOTH])


def shapes(trace: go.Scatter) -> list[np.ndarray]:
    """Return the lines of a trace, which gaps separate; none for a trace with one empty place."""
    places = np.stack((trace.x, trace.y), 1)
    parts = np.split(places, np.flatnonzero(np.isnan(places[:, 0])))
    return [part[~np.isnan(part[:, 0])] for part in parts if not np.isnan(part).all()]


def test_circles_lie_around_all_landmarks(figure: go.Figure) -> None:
    walls, landmarks, paths = figure.data[:3]
    assert {*walls.x} == {*walls.y} == {-1.0, 1.0}
    for circle, center in zip(shapes(landmarks), FAR.landmark[0].numpy(), strict=True):
        assert np.linalg.norm(circle - center, axis=1) == pytest.approx(PAIR.cover_radius, rel=1e-5)
    assert [len(path) for path in shapes(paths)] == [4, 4]


def test_covered_landmarks_are_filled_at_each_moment(figure: go.Figure) -> None:
    assert [len(shapes(frame.data[COVERED])) for frame in figure.frames] == [0, 1, 1, 2]
    [circle] = shapes(figure.frames[1].data[COVERED])
    assert circle[:-1].mean(0) == pytest.approx([0.5, 0.0], abs=1e-5)  # the first of two, not the second


def test_collisions_are_marked_at_each_moment(figure: go.Figure) -> None:
    assert [len(shapes(frame.data[CRASHES])) for frame in figure.frames] == [0, 0, 1, 0]
    assert np.stack((figure.frames[2].data[CRASHES].x, figure.frames[2].data[CRASHES].y), 1) == pytest.approx(
        CRASH.pos[0].numpy()
    )


def test_uavs_are_where_they_are_with_short_trails() -> None:
    env = Spread(horizon=50, dt=0.1)
    states = fly(env)
    picture = draw_flight(env, states)
    for frame in (picture.frames[0], picture.frames[-1]):
        state = states[round(float(frame.name) / env.dt)]
        assert np.stack((frame.data[UAVS].x, frame.data[UAVS].y), 1) == pytest.approx(state.pos[0].numpy())
    trails = [len(shapes(frame.data[TRAIL])[0]) for frame in picture.frames]
    assert trails[:3] == [1, 2, 3]
    assert max(trails) == spread.TRAIL + 1


def test_it_can_be_played_and_stays_small() -> None:
    env = Spread(uavs=8, horizon=200, dt=0.1)
    picture = flight.animate(env, fly(env))
    assert (picture.frames[0].name, picture.frames[-1].name) == ("0.0", "20.0")
    assert len(picture.frames) <= flight.FRAMES
    assert len(picture.to_json()) < 400_000
    assert [trace.name for trace in picture.data if trace.showlegend is not False] == NAMES
    assert {tuple(frame.traces) for frame in picture.frames} == {(3, 4, 5, 6)}


def test_axes_have_units_and_are_alike(figure: go.Figure) -> None:
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("x (units)", "y (units)")
    assert tuple(figure.layout.xaxis.range) == tuple(figure.layout.yaxis.range) == (-1.1, 1.1)
    assert (figure.layout.yaxis.scaleanchor, figure.layout.sliders[0].currentvalue.suffix) == ("x", " s")


@pytest.mark.parametrize(
    ("states", "title", "caption"),
    [
        ([CRASH, FAR, ONE], "1 of 2 landmarks covered after 0.2 s", "No UAVs collided."),  # but at the start
        ([FAR, CRASH, BOTH], "2 of 2 landmarks covered after 0.2 s", "in 1 of 2 steps."),
        ([FAR, CRASH, CRASH], "1 of 2 landmarks covered after 0.2 s", "in 2 of 2 steps."),
    ],
)
def test_the_title_tells_how_it_ended(states: list[State], title: str, caption: str) -> None:
    layout = draw_flight(PAIR, states).layout.title
    assert layout.text == title
    assert layout.subtitle.text.endswith(caption)


def test_it_draws_the_first_world_of_a_batch() -> None:
    states = fly(Spread())
    first = [replace(each, pos=each.pos[:1], vel=each.vel[:1], landmark=each.landmark[:1]) for each in states]
    assert draw_flight(Spread(), states).to_json() == draw_flight(Spread(), first).to_json()
