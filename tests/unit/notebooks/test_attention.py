"""Attention on the map is drawn for what is attended to, and empty slots are zeros after what there is."""

import torch

from uavlab.core.types import Entities
from uavlab.envs.target_assignment.env import Assignment
from uavlab_lab.lessons.attention import WIDEST, draw_attention, with_slots


def test_empty_slots_follow_what_there_is() -> None:
    x = torch.arange(1.0, 3 * 2 + 3)[None]  # a row and two columns of two features, and two numbers of neighbours
    wide = with_slots(x, Entities(1, 2, 2, 1), rows=2, columns=3)
    assert wide.tolist() == [[1, 2, 0, 0, 3, 4, 5, 6, 0, 0, 7, 8]]


def test_lines_lead_to_targets_by_attention() -> None:
    env = Assignment(uavs=(2, 2), targets=(3, 3))
    state = env.initial(torch.rand(1, env.spec.initial_noise, generator=torch.Generator().manual_seed(0)))
    weight = torch.tensor([[0.0, 0.0, 1.0], [0.75, 0.25, 0.0]])
    figure = draw_attention(env, state, weight, 1, "A title", "A caption")
    lines = [trace for trace in figure.data if trace.mode == "lines+text"]
    assert [trace.text[1] for trace in lines] == ["75%", "25%"]
    assert [trace.line.width for trace in lines] == [0.75 * WIDEST, 0.25 * WIDEST]
    ends = [(trace.x[1], trace.y[1]) for trace in lines]
    assert ends == [tuple(round(value, 1) for value in state.pos[0, 2 + target].tolist()) for target in (0, 1)]
    assert (lines[0].x[0], lines[0].y[0]) == tuple(round(value, 1) for value in state.at[0, 1].tolist())
    assert not figure.frames
    assert figure.layout.title.text == "A title"
