"""A flight can be played and says how it ended; every axis has a unit; a page needs no network."""

import dataclasses
import html.parser
import math
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

from tests.support.fixtures_mapping import TINY_MISSION, drawn
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower, State
from uavlab.lab.plots import animation, leader_follower, mapping

FOUR = dataclasses.replace(PUBLISHED, lagged=False, obstacles=2)


def flown(env: LeaderFollower, steps: int) -> list[State]:
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
    return leader_follower.flight(FOUR, flown(FOUR, 1000))


class TestFlight:
    def test_can_be_played(self, long: go.Figure) -> None:
        assert 30 <= len(long.frames) <= animation.FRAMES
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
        figure = leader_follower.flight(env, flown(env, steps))
        assert len(figure.frames) <= animation.FRAMES
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
        states = flown(env, 3)
        frame = leader_follower.flight(env, states).frames[2]
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
        states = [placed(state, gap=60.0) for state in flown(FOUR, 4)]
        states[1] = placed(states[1], gap=49.0)  # in formation after one step of four
        states[0] = placed(states[0], gap=0.0)  # before the first step: does not count
        states[-1] = placed(states[-1], **distances)
        title = leader_follower.flight(FOUR, states).layout.title.text
        assert title == f"{end}; the whole team was in formation for 25% of the flight"

    def test_one_follower_apart_breaks_formation(self) -> None:
        states = [placed(state, gap=10.0, to_goal=90.0, clearance=90.0) for state in flown(FOUR, 2)]
        states[1].gap[0, 3] = 50.0
        assert "for 50% of the flight" in leader_follower.flight(FOUR, states).layout.title.text


class TestOtherTasks:
    def test_a_mapping_mission_is_drawn_as_one(self) -> None:
        start, _ = drawn(TINY_MISSION, 1)
        figure = leader_follower.flight(TINY_MISSION, [start, start])
        assert figure.data[0].type == "heatmap"
        assert figure.to_json() == mapping.mission(TINY_MISSION, [start, start]).to_json()
        assert leader_follower.picture(figure).layout.updatemenus == ()

    def test_others_have_no_picture(self) -> None:
        with pytest.raises(ConfigError, match=r"object has no picture; .* LeaderFollower and Mapping alone"):
            leader_follower.flight(object(), [])


class TestCurves:
    ROWS = (
        {"update": 1, "q": 0.5},
        {"update": 2, "eval/completion": 0.25, "eval/formation_strict": 0.5},
        {"update": 4, "eval/completion": 0.75, "eval/formation_strict": 0.125},
    )

    def test_only_scores_are_drawn(self) -> None:
        figure = leader_follower.curves(self.ROWS, "Learning")
        assert [list(trace.x) for trace in figure.data] == [[2, 4], [2, 4]]
        assert [list(trace.y) for trace in figure.data] == [[0.25, 0.75], [0.5, 0.125]]
        assert len({trace.line.dash for trace in figure.data}) == 2  # told apart without colour
        assert figure.layout.title.text == "Learning"
        assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == (
            "updates",
            "share of episodes or steps",
        )

    def test_before_the_first_score(self) -> None:
        assert [list(trace.x) for trace in leader_follower.curves([]).data] == [[], []]


def test_comparison() -> None:
    ours = {
        "completion": {"mean": 0.5, "low": 0.25, "high": 0.756},
        "flight_time": {"mean": 212, "low": 200, "high": 220},
    }
    rows = (("completion", "completion (share)", ".2f"), ("flight_time", "flight time (steps)", ".0f"))
    table = leader_follower.comparison({"ours": ours, "theirs": {"flight_time": 264.9}}, rows).data[0]
    assert list(table.header["values"]) == ["", "<b>ours</b>", "<b>theirs</b>"]
    assert [list(column) for column in table.cells["values"]] == [
        ["completion (share)", "flight time (steps)"],
        ["0.50  [0.25, 0.76]", "212  [200, 220]"],
        ["not published", "265"],
    ]


class Addresses(html.parser.HTMLParser):
    """Collects what a browser would load for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[Any]) -> None:
        self.found += [f"{tag} {value}" for name, value in attributes if name in ("src", "href", "data")]


class TestPage:
    def test_it_loads_nothing(self, long: go.Figure, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "page.html"
        leader_follower.write_page(long, path)
        page = path.read_text()
        addresses = Addresses()
        addresses.feed(page)
        assert addresses.found == []
        assert "the whole team was in formation" in page
        assert page.count("Plotly.newPlot(") >= 1
        assert "Plotly.addFrames(" in page

    def test_loading_from_elsewhere_would_be_seen(self, long: go.Figure) -> None:
        addresses = Addresses()
        addresses.feed(long.to_html(include_plotlyjs="cdn"))  # the mutant
        assert any("http" in found for found in addresses.found)

    def test_a_refusing_disk_is_told(self, long: go.Figure, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ResourceError, match=r"page\.html: cannot be written .*; choose another --out"):
            leader_follower.write_page(long, tmp_path / "file" / "page.html")
