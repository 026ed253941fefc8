"""Flights can be played, show first and last states in few frames, say how they ended, and become files."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest
import torch
from PIL import Image

from tests.support.registries import outside
from tests.support.scenes import FLIGHTS, FOUR, LEGENDS, fly, straight
from tests.support.web_page import loaded_addresses
from uavlab.core.errors import ConfigError, MissingPackageError, ResourceError
from uavlab.core.registry import SCENES, scene
from uavlab.core.types import tree_map
from uavlab.envs.leader_follower.env import LeaderFollower, SlowLeaderFollower
from uavlab.envs.pursuit import Pursuit, chase
from uavlab.envs.spread import Spread
from uavlab.envs.spread import State as SpreadState
from uavlab.ops import belief_maps
from uavlab_lab import films
from uavlab_lab.plots import flight, scenes
from uavlab_lab.plots.beside import beside


@pytest.fixture(scope="module", params=FLIGHTS)
def flown(request: pytest.FixtureRequest) -> tuple[str, Any, list[Any], go.Figure]:
    env, states = FLIGHTS[request.param]
    flown = states()
    return request.param, env, flown, flight.animate(env, flown)


def points(trace: go.Scatter) -> np.ndarray:
    """Return the places of a trace without gaps."""
    places = np.stack((trace.x, trace.y), 1).astype(float)
    return places[~np.isnan(places[:, 0])]


def test_a_flight_can_be_played_and_stays_small(flown: tuple[str, Any, list[Any], go.Figure]) -> None:
    name, env, states, figure = flown
    names = [frame.name for frame in figure.frames]
    assert 2 <= len(names) <= flight.FRAMES
    last = {"assignment": len(states) - 1, "mapping": len(states)}.get(name, (len(states) - 1) * env.spec.dt)
    assert float(names[-1]) == pytest.approx(last)
    [menu], [slider] = figure.layout.updatemenus, figure.layout.sliders
    assert [button.label for button in menu.buttons] == ["Play", "Pause"]
    assert [step.args[0][0] for step in slider.steps] == names
    assert menu.buttons[0].args[1]["frame"]["redraw"] is (name == "mapping")  # a map stays as it was otherwise
    assert len({tuple(frame.traces) for frame in figure.frames}) == 1
    assert len(figure.to_json()) < 400_000


def test_its_legend_title_and_axes_can_be_read(flown: tuple[str, Any, list[Any], go.Figure]) -> None:
    name, _, _, figure = flown
    layout = figure.layout
    assert [t.name for t in figure.data if t.showlegend is not False and t.name] == LEGENDS[name]
    assert any(character.isdigit() for character in layout.title.text)
    assert layout.title.subtitle.text
    assert all(axis.title.text.endswith(")") for axis in (layout.xaxis, layout.yaxis))  # a unit
    assert layout.yaxis.scaleanchor == "x"


def test_the_first_world_is_drawn(flown: tuple[str, Any, list[Any], go.Figure]) -> None:
    _, env, states, figure = flown
    first = [tree_map(lambda leaf: leaf[:1], each) for each in states]
    assert flight.animate(env, first).to_json() == figure.to_json()


def placed(state: Any, **values: float) -> Any:
    return replace(state, **{name: torch.full_like(getattr(state, name), value) for name, value in values.items()})


@pytest.mark.parametrize(
    ("distances", "end"),
    [
        ({"to_goal": 39.0, "clearance": 5.0}, "Goal reached after 0.4 s"),
        ({"to_goal": 90.0, "clearance": 19.0}, "Leader lost to an obstacle after 0.4 s"),
        ({"to_goal": 90.0, "clearance": 21.0}, "Goal not reached in 0.4 s"),
    ],
)
def test_leader_and_followers_by_hand(distances: dict[str, float], end: str) -> None:
    states = [placed(state, gap=60.0) for state in fly(FOUR, straight, 4)]
    states[1] = placed(states[1], gap=49.0)  # in formation after one step of four
    states[-1] = placed(states[-1], **distances)
    figure = scenes.leader_follower(FOUR, states)
    assert figure.layout.title.text == end
    assert figure.layout.title.subtitle.text == "The whole team was in formation for 25% of the flight."
    leader, followers = figure.frames[2].data[-2:]
    assert [*leader.x, *followers.x] == pytest.approx(states[2].pos[0, :, 0].tolist(), abs=0.05)
    assert leader.marker.angle[0] == pytest.approx(90 - np.degrees(states[2].heading[0, 0].item()), abs=0.1)


def test_covered_landmarks_and_collisions_by_hand() -> None:
    landmark, env = torch.tensor([[[0.5, 0.0], [0.0, -0.5]]]), Spread(uavs=2, dt=0.1)
    states = [
        SpreadState(torch.tensor([places]), torch.zeros(1, 2, 2), landmark, torch.tensor([0]))
        for places in ([(-0.5, 0.5), (0.5, 0.5)], [(-0.5, 0.5), (0.5, 0.05)], [(0.5, 0.0), (0.5, 0.05)])
    ]
    figure = scenes.spread(env, states)
    assert [len(points(frame.data[0])) // 31 for frame in figure.frames] == [0, 1, 1]  # circles
    assert [len(points(frame.data[3])) for frame in figure.frames] == [0, 0, 2]  # collisions
    assert figure.layout.title.text == "1 of 2 landmarks covered after 0.2 s"
    assert figure.layout.title.subtitle.text.endswith("in 1 of 2 steps.")


def test_catches_by_hand_and_trails_that_cut_no_corners() -> None:
    env = Pursuit(horizon=100, dt=0.5)
    states = fly(env, chase, 100)
    figure = scenes.pursuit(env, states)
    caught = [int(state.caught[0].sum()) for state in states]
    assert figure.layout.title.text.startswith(f"{caught[-1]} of {env.evaders} evaders caught")
    for frame in figure.frames:
        number = round(float(frame.name) / env.dt)
        assert len(points(frame.data[4])) == caught[number]
        for trail in np.split(points(frame.data[0]), env.pursuers):
            assert np.abs(np.diff(trail, axis=0)).sum(1).max(initial=0) < 1.001  # one cell per step, never diagonally


def test_the_map_is_the_teams_belief_in_percent() -> None:
    env, states = FLIGHTS["mapping"][0], FLIGHTS["mapping"][1]()
    for frame, state in zip(scenes.mission(env, states).frames, states, strict=True):
        belief = 100 * belief_maps.belief(state.logits[0, -1], torch.float32).numpy()
        assert np.abs(np.asarray(frame.data[0].z) - belief).max() <= 0.51
        assert list(frame.data[-1].text) == [f"{5 * (z + 1):g}" for z in state.place[0, :, 2].tolist()]
    image = torch.zeros(2 * scenes.SIDE, 2 * scenes.SIDE)
    image[0, 0] = 1.0  # a quarter of the first cell
    assert (int(scenes.shrink(image)[0, 0]), int(scenes.shrink(image).sum())) == (25, 25)


def test_an_environment_without_a_picture_is_drawn_by_its_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    env = outside.Drift()
    states = [outside.State(pos=torch.arange(2.0)[None] + n, step=torch.tensor([n])) for n in range(4)]
    figure = flight.animate(env, states)
    lines = [trace for trace in figure.data if trace.name]
    seen = np.stack([env.observe(state)[0].numpy() for state in states], 1)
    assert [*lines[0].y] == pytest.approx(seen[0, :, 0].tolist())
    assert figure.frames[2].data[0].x[0] == pytest.approx(2 * env.spec.dt)
    monkeypatch.delitem(SCENES, type(FLIGHTS["mapping"][0]))
    with pytest.raises(ConfigError, match=r"Mapping has no picture; registered are LeaderFollower, .*; add"):
        flight.animate(FLIGHTS["mapping"][0], FLIGHTS["mapping"][1]())


def test_a_picture_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        pass

    monkeypatch.setitem(SCENES, Own, None)  # removed afterwards
    del SCENES[Own]
    scene(Own)(lambda env, states: go.Figure(layout={"title": f"{len(states)} states"}))
    assert flight.animate(Own(), [1, 2]).layout.title.text == "2 states"
    env = SlowLeaderFollower(step_ms=0.0)
    assert "Goal" in flight.animate(env, fly(env, straight, 2)).layout.title.text  # drawn as its base
    monkeypatch.setitem(SCENES, object, lambda env, states: None)
    with pytest.raises(ConfigError, match="scene of object: got a NoneType; expected a plotly figure; return it"):
        flight.animate(object(), [])


@pytest.fixture(scope="module")
def short() -> go.Figure:
    return flight.animate(FOUR, fly(FOUR, straight, 7))


def test_flights_beside_each_other_play_together() -> None:
    env = LeaderFollower(followers=2, dt=1.0)
    joint = beside(
        {"yours": flight.animate(env, fly(env, straight, 3)), "b": flight.animate(env, fly(env, straight, 6))}
    )
    assert len(joint.frames) == flight.FRAMES
    assert joint.frames[-1].name == "6.0"
    assert [note.text.split(":<br>")[0] for note in joint.layout.annotations] == ["yours", "b"]
    assert {trace.xaxis or "x" for trace in joint.data} == {"x", "x2"}
    assert sum(trace.name == "goal" and trace.showlegend is not False for trace in joint.data) == 1
    with pytest.raises(ConfigError, match="flight of b: expected an animation"):
        beside({"b": go.Figure()})


@pytest.fixture
def squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a square that moves, in place of the browser's drawing."""

    def draw(figures: list[go.Figure], files: list[Path], width: int, height: int) -> None:
        for number, file in enumerate(files):
            picture = Image.new("RGBA", (width, height))
            picture.paste("red", (10 * number, 0, 10 * number + 10, 10))
            picture.save(file)

    monkeypatch.setattr(plotly.io, "write_images", draw)


def test_a_film_has_every_frame(short: go.Figure, tmp_path: Path, squares: None) -> None:
    av = pytest.importorskip("av", reason="no PyAV: the extra video is not part of make setup")
    films.write(short, path := tmp_path / "deep" / "flight.mp4")
    with av.open(str(path)) as film:
        pictures = [frame.to_image() for frame in film.decode(film.streams.video[0])]
    assert [picture.size for picture in pictures] == [films.SIZE] * len(short.frames)
    red, green, blue = pictures[3].getpixel((35, 5))
    assert red > 200 > 60 > max(green, blue)
    assert min(pictures[3].getpixel((300, 300))) > 240  # white


def test_a_page_of_a_flight_loads_nothing(short: go.Figure, tmp_path: Path) -> None:
    films.write(short, path := tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    assert loaded_addresses(page) == []
    assert '"frames":[' in page
    assert any("http" in address for address in loaded_addresses(short.to_html(include_plotlyjs="cdn")))


def test_other_kinds_and_a_missing_encoder_are_refused(short: go.Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flight.avi", "flight", "flight.gif"):
        with pytest.raises(ConfigError, match=r"expected one of \.html, \.mp4, \.png, \.svg, \.pdf\."):
            films.write(short, Path(name))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingPackageError, match="films as MP4: needs av"):
        films.require_kind(Path("flight.mp4"))


def test_a_refusing_disk_or_browser_leaves_an_older_file(
    short: go.Figure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flight.png").write_text("older")

    def refuse(*words: object, **settings: object) -> None:
        raise RuntimeError("\n\nno\nbrowser\n")

    monkeypatch.setattr(go.Figure, "write_image", refuse)
    with pytest.raises(ResourceError, match=r"flight\.png: not drawn \(no browser\)"):
        films.write(short, tmp_path / "flight.png")
    with pytest.raises(ResourceError, match=r"page\.html: cannot be written"):
        films.write(short, tmp_path / "flight.png" / "page.html")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("flight.png", "older")]
