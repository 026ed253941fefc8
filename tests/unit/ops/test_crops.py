"""Maps moved around agents, against a plain loop."""

import torch

from uavlab.ops.crops import centred


def test_equals_a_plain_loop() -> None:
    maps = torch.rand(3, 2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    place = torch.tensor([[0, 24], [12, 3], [7, 20]])
    made = centred(maps, place)
    for world in range(3):
        for agent in range(2):
            row, column = divmod(int(place[world, agent]), 5)
            for y in range(5):
                for x in range(5):
                    r, c = row + y - 2, column + x - 2
                    inside = 0 <= r < 5 and 0 <= c < 5
                    expected = maps[world, agent, :, r, c] if inside else torch.zeros(4)
                    assert torch.equal(made[world, agent, :, y, x], expected)
    assert torch.equal(made[1, 0], maps[1, 0])  # who is in the middle sees the map as it is
    assert not torch.equal(made[0, 0], maps[0, 0])
