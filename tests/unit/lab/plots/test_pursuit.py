"""A pursuit shows both groups, obstacles and who is caught, and says so."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
import torch.nn.functional as F

from uavlab.core.types import tree_map
from uavlab.envs.pursuit import Pursuit, State, chase
from uavlab_lab.plots import flight, pursuit
from uavlab_lab.plots.pursuit import draw_flight

ENV = Pursuit(pursuers=1, evaders=2, side=3, obstacles=2, dt=0.5)
OBSTACLES = [(1, 1), (0, 2)]
PURSUER_TRAIL, EVADER_TRAIL, PURSUERS, EVADERS, CAUGHT = range(5)  # moving traces
NAMES = ["obstacle", "pursuer", "evader", "caught"]


def moment(pursuer: tuple[int, int], *caught: bool) -> State:
    """Place the pursuer; evaders are at (1, 0) and (2, 2)."""
    blocked = torch.zeros(1, 3, 3, dtype=torch.bool)
    for x, y in OBSTACLES:
        blocked[0, y, x] = True
    pos = torch.tensor([[pursuer, (1.0, 0.0), (2.0, 2.0)]])
    walls = F.pad(blocked, (1, 1, 1, 1), value=True)
    return State(pos, walls, torch.tensor([caught]), torch.tensor([0]))


START, ONE = moment((0, 0), False, False), moment((1, 0), True, False)
MORE, BOTH = moment((2, 0), True, False), moment((2, 2), True, True)


def fly(env: Pursuit, worlds: int = 2) -> list[State]:
    states = [env.initial(torch.rand(worlds, env.spec.initial_noise, generator=torch.Generator().manual_seed(0)))]
    for _ in range(env.horizon):
        action = chase(env, states[-1], torch.full((worlds, env.spec.agents), 0.5))
        states.append(env.transition(states[-1], action, torch.zeros(worlds, 0)))
    return states


@pytest.fixture(scope="module")
def figure() -> go.Figure:
    return draw_flight(ENV, [START, ONE, MORE, BOTH])


def points(trace: go.Scatter) -> np.ndarray:
    """Return the places of a trace without gaps."""
    places = np.stack((trace.x, trace.y), 1)
    return places[~np.isnan(places[:, 0])]


def cells(trace: go.Scatter) -> list[tuple[int, int]]:
    """Return the cells in which markers are."""
    return [(x, y) for x, y in np.rint(points(trace)).astype(int).tolist()]


def test_obstacles_fill_their_cells(figure: go.Figure) -> None:
    walls, obstacles = figure.data[:2]
    assert (points(walls).min(), points(walls).max()) == (-0.5, 2.5)
    centers = points(obstacles).reshape(-1, 5, 2)[:, :4].mean(1)
    assert sorted(map(tuple, centers.tolist())) == sorted(OBSTACLES)


def test_groups_are_where_they_are_at_each_moment(figure: go.Figure) -> None:
    assert [cells(frame.data[PURSUERS]) for frame in figure.frames] == [[(0, 0)], [(1, 0)], [(2, 0)], [(2, 2)]]
    assert [cells(frame.data[EVADERS]) for frame in figure.frames] == [[(1, 0), (2, 2)], [(2, 2)], [(2, 2)], []]
    assert [cells(frame.data[CAUGHT]) for frame in figure.frames] == [[], [(1, 0)], [(1, 0)], [(1, 0), (2, 2)]]


def test_uavs_in_one_cell_are_seen(figure: go.Figure) -> None:
    frame = figure.frames[1]
    assert cells(frame.data[PURSUERS]) == cells(frame.data[CAUGHT])
    assert np.linalg.norm(points(frame.data[PURSUERS]) - points(frame.data[CAUGHT])) > pursuit.APART


def test_trails_are_short() -> None:
    picture = draw_flight(ENV, [START] * 9)
    lengths = [len(points(frame.data[EVADER_TRAIL])) for frame in picture.frames]
    assert lengths == [2, 4, 6, 8, 10, 12, 14, 14, 14]  # of two evaders


def test_trails_cut_no_corners_where_steps_are_skipped() -> None:
    env = Pursuit(horizon=100)
    picture = draw_flight(env, fly(env))
    assert len(picture.frames) < 50
    for frame in picture.frames:
        for trail in np.split(points(frame.data[PURSUER_TRAIL]), env.pursuers):
            assert np.abs(np.diff(trail, axis=0)).sum(1).max(initial=0) < 1.001  # one cell per step, never diagonally


def test_it_can_be_played_and_stays_small() -> None:
    env = Pursuit(pursuers=8, evaders=6, horizon=120, dt=0.5)
    picture = flight.animate(env, fly(env))
    assert (picture.frames[0].name, picture.frames[-1].name) == ("0.0", "60.0")
    assert len(picture.frames) <= flight.FRAMES
    assert len(picture.to_json()) < 400_000
    assert [trace.name for trace in picture.data if trace.showlegend is not False] == NAMES
    assert {tuple(frame.traces) for frame in picture.frames} == {(2, 3, 4, 5, 6)}


def test_axes_have_units_and_are_alike(figure: go.Figure) -> None:
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("x (cells)", "y (cells)")
    assert tuple(figure.layout.xaxis.range) == tuple(figure.layout.yaxis.range) == (-0.7, 2.7)
    assert (figure.layout.yaxis.scaleanchor, figure.layout.sliders[0].currentvalue.suffix) == ("x", " s")


@pytest.mark.parametrize(
    ("states", "title", "caption"),
    [
        ([START, START], "0 of 2 evaders caught after 0.5 s", "No evader was caught."),
        ([START, ONE, MORE, BOTH], "2 of 2 evaders caught after 1.5 s", "Time of each catch: 0.5, 1.5 s."),
        ([START, START, BOTH], "2 of 2 evaders caught after 1.0 s", "Time of each catch: 1.0, 1.0 s."),
    ],
)
def test_the_title_tells_how_it_ended(states: list[State], title: str, caption: str) -> None:
    layout = draw_flight(ENV, states).layout.title
    assert (layout.text, layout.subtitle.text) == (title, caption)


def test_a_grid_without_obstacles_is_drawn() -> None:
    env = replace(ENV, obstacles=0)
    bare = draw_flight(env, fly(env)).data[1]
    assert (bare.name, len(points(bare))) == ("obstacle", 0)


def test_it_draws_the_first_world_of_a_batch() -> None:
    states = fly(Pursuit())
    first = [tree_map(lambda leaf: leaf[:1], each) for each in states]
    assert draw_flight(Pursuit(), states).to_json() == draw_flight(Pursuit(), first).to_json()
