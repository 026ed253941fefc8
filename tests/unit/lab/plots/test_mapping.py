"""A mission is drawn where it took place and with what was believed; curves are means with their intervals."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from tests.support.fixtures_mapping import TINY_MISSION, random_step, start_missions
from uavlab.envs.mapping.env import Mapping, State
from uavlab.ops import belief_maps
from uavlab_lab.plots import mapping as pictures

UAVS = TINY_MISSION.uavs


def fly(env: Mapping, missions: int = 1) -> list[State]:
    state, generator = start_missions(env, missions)
    states = [state]
    for _ in range(env.measurements - 1):
        states.append(random_step(env, states[-1], generator)[1])
    return states


@pytest.fixture(scope="module")
def states() -> list[State]:
    return fly(TINY_MISSION, missions=2)


@pytest.fixture(scope="module")
def figure(states: list[State]) -> go.Figure:
    return pictures.draw_mission(TINY_MISSION, states)


class TestMission:
    def test_a_frame_for_each_measurement_and_controls_that_redraw(self, figure: go.Figure) -> None:
        assert [frame.name for frame in figure.frames] == ["1", "2", "3", "4", "5"]
        [menu], [slider] = figure.layout.updatemenus, figure.layout.sliders
        assert menu.buttons[0].args[1]["frame"]["redraw"] is True  # a map stays as it was otherwise
        assert (slider.currentvalue.prefix, slider.currentvalue.suffix) == ("measurement ", " of 5")
        assert all(step.args[1]["frame"]["redraw"] for step in slider.steps)

    def test_frames_move_what_moves_and_keep_the_targets(self, figure: go.Figure) -> None:
        kinds = ["heatmap", *["scatter", "scatter"] * UAVS, "scatter"]
        assert [trace.type for trace in figure.data] == [*kinds, "contour"]
        for frame in figure.frames:
            assert [trace.type for trace in frame.data] == kinds
            assert list(frame.traces) == list(range(len(kinds)))
        assert [trace.name for trace in figure.data if trace.showlegend is not False and trace.name] == [
            "belief",
            *(f"UAV {uav + 1}" for uav in range(UAVS)),
            "edge of the targets",
        ]

    def test_the_map_is_the_teams_belief_in_percent(self, figure: go.Figure, states: list[State]) -> None:
        for frame, state in zip(figure.frames, states, strict=True):
            belief = 100 * belief_maps.belief(state.logits[0, -1], torch.float32).numpy()
            drawn_map = np.asarray(frame.data[0].z)
            assert drawn_map.dtype == np.uint8
            assert np.abs(drawn_map - belief).max() <= 0.51  # 41 cells a side need no averaging
        own = 100 * belief_maps.belief(states[-1].logits[0, 0], torch.float32).numpy()
        assert np.abs(np.asarray(figure.frames[-1].data[0].z) - own).max() > 10  # a UAV's own map would be seen

    def test_paths_footprints_and_altitudes(self, figure: go.Figure, states: list[State]) -> None:
        env = TINY_MISSION
        places = np.stack([state.place[0].numpy() for state in states])
        frame = figure.frames[3]
        (top, left), (bottom, right) = (edge.T for edge in env.places.footprint(states[3].place[0]))
        for uav in range(UAVS):
            path, square = frame.data[1 + 2 * uav], frame.data[2 + 2 * uav]
            assert list(path.x) == pytest.approx(env.spacing * places[:4, uav, 0])
            assert list(path.y) == pytest.approx(env.spacing * places[:4, uav, 1])
            assert {*square.x} == {float(np.float32(edge[uav] * env.cell)) for edge in (left, right)}
            assert {*square.y} == {float(np.float32(edge[uav] * env.cell)) for edge in (top, bottom)}
        assert list(frame.data[-1].text) == [f"{5 * (z + 1):g}" for z in places[3, :, 2]]

    def test_the_outline_lies_where_targets_begin(self, figure: go.Figure, states: list[State]) -> None:
        outline = figure.data[-1]
        assert (np.asarray(outline.z) == 100 * states[0].truth[0].numpy()).all()
        assert (outline.contours.start, outline.contours.end, outline.contours.coloring) == (50, 50, "none")

    def test_axes_are_in_metres(self, figure: go.Figure) -> None:
        edge = TINY_MISSION.cells * TINY_MISSION.cell
        assert tuple(figure.layout.xaxis.range) == tuple(figure.layout.yaxis.range) == (0, edge)
        assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("x (m)", "y (m)")
        heat = figure.data[0]
        assert heat.x0 + heat.dx * (len(np.asarray(heat.z)) - 0.5) == pytest.approx(edge)

    def test_the_title_tells_the_scores(self, figure: go.Figure, states: list[State]) -> None:
        last = TINY_MISSION.measure(states[-1], states[-1].place[..., 0], states[-1])
        title = figure.layout.title
        assert title.text == f"F1 of targets {last['f1'][0]:.2f} after 5 measurements"
        assert (
            f"{last['entropy'][0]:.2f} after 5. Numbers on the map are altitudes (m)."
            in title.subtitle.text.replace("<br>", " ")
        )

    def test_long_missions_and_large_maps_stay_small(self) -> None:
        long = replace(TINY_MISSION, measurements=60)
        assert len(pictures.draw_mission(long, fly(long)).frames) <= pictures.FRAMES
        whole = Mapping()
        start, _ = start_missions(whole, 1)
        assert len(pictures.draw_mission(whole, [start] * 15).to_json()) < 150_000


class TestShrink:
    def test_maps_are_averaged(self) -> None:
        image = torch.zeros(2 * pictures.SIDE, 2 * pictures.SIDE)
        image[0, 0] = 1.0  # a quarter of the first cell
        drawn_map = pictures.shrink(image)
        assert drawn_map.shape == (pictures.SIDE, pictures.SIDE)
        assert (drawn_map[0, 0], drawn_map.sum()) == (25, 25)

    def test_small_maps_stay(self) -> None:
        image = torch.rand(5, 5)
        assert torch.equal(pictures.shrink(image), (100 * image).round().to(torch.uint8))
