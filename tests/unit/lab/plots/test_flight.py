"""Scenes are registered by class, and animations show first and last states in few frames."""

import plotly.graph_objects as go
import pytest

from tests.support.fixtures_mapping import TINY_MISSION, start_missions
from tests.unit.lab.plots.test_leader_follower import FOUR, fly_straight
from uavlab.core.errors import ConfigError
from uavlab.core.registry import SCENES, scene
from uavlab.envs.leader_follower.env import SlowLeaderFollower
from uavlab_lab.plots import flight, mapping


@pytest.fixture(scope="module")
def short() -> go.Figure:
    return flight.animate(FOUR, fly_straight(FOUR, 20))


class TestScenes:
    def test_each_environment_has_its_own(self, short: go.Figure) -> None:
        start, _ = start_missions(TINY_MISSION, 1)
        mission = flight.animate(TINY_MISSION, [start, start])
        assert (short.data[0].type, mission.data[0].type) == ("scatter", "heatmap")
        assert mission.to_json() == mapping.draw_mission(TINY_MISSION, [start, start]).to_json()

    def test_a_subclass_is_drawn_as_its_base(self) -> None:
        env = SlowLeaderFollower(step_ms=0.0)
        assert "Goal" in flight.animate(env, fly_straight(env, 2)).layout.title.text

    def test_one_from_outside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Own:
            pass

        monkeypatch.setitem(SCENES, Own, None)  # removed afterwards
        del SCENES[Own]

        @scene(Own)
        def draw_own(env: Own, states: list[int]) -> go.Figure:
            return go.Figure(layout={"title": f"{len(states)} states"})

        assert flight.animate(Own(), [1, 2]).layout.title.text == "2 states"
        assert scene(Own)(draw_own) is draw_own
        with pytest.raises(ConfigError, match="scene: Own is drawn by draw_own already"):
            scene(Own)(lambda env, states: go.Figure())

    def test_a_scene_that_draws_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(SCENES, object, lambda env, states: None)
        with pytest.raises(ConfigError, match="scene of object: got a NoneType; expected a plotly figure; return it"):
            flight.animate(object(), [])

    def test_without_a_scene_the_message_lists_those_there_are(self) -> None:
        with pytest.raises(ConfigError) as refusal:
            flight.animate(object(), [])
        assert str(refusal.value) == (
            "flight: object has no picture; registered are LeaderFollower, Mapping, Pursuit, Spread, Assignment; "
            "add one with `@uavlab.scene`."
        )


class TestFrames:
    @pytest.mark.parametrize("most", [3, 16, 40])
    @pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40, 41, 79, 1001])
    def test_first_and_last_are_among_few(self, count: int, most: int) -> None:
        indices = flight.select_frames(count, most)
        assert len(indices) <= most
        assert (indices[0], indices[-1]) == (0, count - 1)
        assert indices == sorted(set(indices))

    def test_short_flights_are_drawn_whole(self) -> None:
        assert flight.select_frames(15, 16) == list(range(15))

    def test_the_controls_name_every_frame(self) -> None:
        moving = [[go.Scatter(x=[n], y=[n], name="dot", text="a")] for n in range(2)]
        figure = go.Figure([go.Scatter(), *moving[0]])
        flight.add_frames(figure, moving, ["1", "4"], 1, prefix="step ", suffix=" of 4", pause_ms=300, redraw=True)
        [slider], [menu] = figure.layout.sliders, figure.layout.updatemenus
        assert [(step.label, *step.args[0]) for step in slider.steps] == [("1", "1"), ("4", "4")]
        assert (slider.currentvalue.prefix, slider.currentvalue.suffix) == ("step ", " of 4")
        assert all(step.args[1]["frame"]["redraw"] for step in slider.steps)
        assert [button.label for button in menu.buttons] == ["Play", "Pause"]
        assert menu.buttons[0].args[1]["frame"] == {"duration": 300, "redraw": True}
        assert [(frame.name, frame.traces) for frame in figure.frames] == [("1", (1,)), ("4", (1,))]
        [dot] = figure.frames[1].data
        assert (dot.x, dot.y, dot.text, dot.name) == ((1,), (1,), "a", None)  # what stays is not repeated

    def test_lines_play_without_being_drawn_anew(self, short: go.Figure) -> None:
        assert short.layout.updatemenus[0].buttons[0].args[1]["frame"]["redraw"] is False


def test_a_frozen_flight_is_one_of_its_frames(short: go.Figure) -> None:
    still = flight.freeze(short, 0.5)
    assert (still.layout.updatemenus, still.layout.sliders, still.frames) == ((), (), ())
    middle = short.frames[10].data[5]
    assert [*still.data[8].y] == [*middle.y] != [*short.data[8].y]


def test_a_picture_without_frames_or_without_their_traces_has_moments(short: go.Figure) -> None:
    figure = go.Figure(go.Scatter(y=[1]))
    assert [[*still.data[0].y] for still in flight.stills(figure)] == [[1]]
    figure.frames = [go.Frame(data=[go.Scatter(y=[n])], layout={"title": {"text": str(n)}}) for n in (2, 3)]
    assert [([*still.data[0].y], still.layout.title.text) for still in flight.stills(figure)] == [
        ([2], "2"),
        ([3], "3"),
    ]
    assert len(flight.stills(short)) == len(short.frames)
