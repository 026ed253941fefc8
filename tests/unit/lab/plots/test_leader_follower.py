"""A leader-follower flight can be played and says how it ended; every axis has a unit."""

import dataclasses
import math

import plotly.graph_objects as go
import pytest
import torch

from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower, State
from uavlab_lab.plots import flight, leader_follower
from uavlab_lab.plots.leader_follower import draw_flight

FOUR = dataclasses.replace(PUBLISHED, lagged=False, obstacles=2)


def fly_straight(env: LeaderFollower, steps: int) -> list[State]:
    """Fly straight on from one start, whatever happens."""
    noise = torch.full((1, env.spec.initial_noise), 0.25)
    states = [env.initial(noise)]
    for _ in range(steps):
        states.append(env.transition(states[-1], torch.zeros(1, env.spec.agents, 2), torch.zeros(1, 0)))
    return states


def placed(state: State, **distances: float) -> State:
    """Set distances by hand: those of all agents to the goal, to obstacles, and of followers to the leader."""
    changed = {name: torch.full_like(getattr(state, name), value) for name, value in distances.items()}
    return dataclasses.replace(state, **changed)


@pytest.fixture(scope="module")
def long() -> go.Figure:
    """The longest flight of the published test: 1000 steps of 0.1 s with 4 followers."""
    return draw_flight(FOUR, fly_straight(FOUR, 1000))


class TestFlight:
    def test_can_be_played(self, long: go.Figure) -> None:
        assert 30 <= len(long.frames) <= flight.FRAMES
        [menu] = long.layout.updatemenus
        assert [(button.label, button.method) for button in menu.buttons] == [("Play", "animate"), ("Pause", "animate")]
        [slider] = long.layout.sliders
        names = [frame.name for frame in long.frames]
        assert [list(step.args[0]) for step in slider.steps] == [[name] for name in names]
        assert (names[0], names[-1]) == ("0.0", "100.0")
        times = [float(name) for name in names]
        assert times == sorted(set(times))

    @pytest.mark.parametrize("steps", [1, 2, 58, 59, 60, 61, 118, 119, 120, 1000])
    def test_shows_first_and_last_in_few_frames(self, steps: int) -> None:
        env = LeaderFollower(horizon=1000)
        figure = draw_flight(env, fly_straight(env, steps))
        assert len(figure.frames) <= flight.FRAMES
        assert [figure.frames[0].name, figure.frames[-1].name] == ["0.0", f"{steps:.1f}"]

    def test_is_small(self, long: go.Figure) -> None:
        assert len(long.to_json()) < 200_000

    def test_frames_move_what_moves(self, long: go.Figure) -> None:
        moved = {tuple(frame.traces) for frame in long.frames}
        assert len(moved) == 1
        [traces] = moved
        assert all(len(frame.data) == len(traces) for frame in long.frames)
        names = [long.data[i].name for i in traces]
        assert names == ["obstacle", "obstacle", "formation radius", None, None, "leader", "followers"]
        assert [long.data[i].name for i in range(min(traces))] == ["goal", None, None]  # the goal and whole paths stay
        legend = [trace.name for trace in long.data if trace.showlegend is not False]
        assert legend == ["goal", "obstacle", "formation radius", "leader", "followers"]

    def test_agents_are_where_they_are(self) -> None:
        env = LeaderFollower(followers=2)
        states = fly_straight(env, 3)
        frame = draw_flight(env, states).frames[2]
        ring, leader, followers = frame.data[1], frame.data[4], frame.data[5]
        x, y = states[2].pos[0].T.tolist()
        assert [*leader.x, *followers.x] == pytest.approx(x, abs=0.05)
        assert [*leader.y, *followers.y] == pytest.approx(y, abs=0.05)
        reach = {round(math.dist((a, b), (x[0], y[0]))) for a, b in zip(ring.x, ring.y, strict=True)}
        assert reach == {50}
        degrees = math.degrees(states[2].heading[0, 0].item())  # 0 is to the right, 90 up the screen
        assert leader.marker.angle[0] == pytest.approx(90 - degrees, abs=0.1)  # plotly's 0 is up, clockwise

    def test_trails_look_back_a_little(self, long: go.Figure) -> None:
        trails = [len([x for x in frame.data[3].x if not math.isnan(x)]) for frame in long.frames]
        assert trails[:3] == [1, 2, 3]
        assert max(trails) == leader_follower.TRAIL + 1

    def test_axes_have_units_and_y_points_down(self, long: go.Figure) -> None:
        assert (long.layout.xaxis.title.text, long.layout.yaxis.title.text) == ("x (px)", "y (px, downwards)")
        assert long.layout.yaxis.range[0] > long.layout.yaxis.range[1]
        assert (long.layout.yaxis.scaleanchor, long.layout.sliders[0].currentvalue.suffix) == ("x", " s")

    @pytest.mark.parametrize(
        ("distances", "end"),
        [
            ({"to_goal": 39.0, "clearance": 100.0}, "Goal reached after 0.4 s"),
            ({"to_goal": 39.0, "clearance": 5.0}, "Goal reached after 0.4 s"),
            ({"to_goal": 90.0, "clearance": 19.0}, "Leader lost to an obstacle after 0.4 s"),
            ({"to_goal": 90.0, "clearance": 21.0}, "Goal not reached in 0.4 s"),
        ],
    )
    def test_the_title_tells_how_it_ended(self, distances: dict[str, float], end: str) -> None:
        states = [placed(state, gap=60.0) for state in fly_straight(FOUR, 4)]
        states[1] = placed(states[1], gap=49.0)  # in formation after one step of four
        states[0] = placed(states[0], gap=0.0)  # before the first step: does not count
        states[-1] = placed(states[-1], **distances)
        title = draw_flight(FOUR, states).layout.title
        assert title.text == end
        assert title.subtitle.text == "The whole team was in formation for 25% of the flight."

    def test_one_follower_apart_breaks_formation(self) -> None:
        states = [placed(state, gap=10.0, to_goal=90.0, clearance=90.0) for state in fly_straight(FOUR, 2)]
        states[1].gap[0, 3] = 50.0
        assert "for 50% of the flight" in draw_flight(FOUR, states).layout.title.subtitle.text
