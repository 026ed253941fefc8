"""What a team learns: box by box as on whole maps."""

import torch

from tests.support.fixtures_mapping import SMALL, drawn
from uavlab.envs.mapping import fusion
from uavlab.envs.mapping.geometry import averages


def test_boxes_learn_what_whole_maps_do() -> None:
    """Crowded missions with links lost at random, for which boxes overlap each other and the edges of the map."""
    generator = torch.Generator().manual_seed(0)
    for dtype, most in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        state, _ = drawn(SMALL, 6)
        logits, means = torch.zeros_like(state.logits), torch.zeros_like(state.mean, dtype=dtype)
        for _ in range(8):
            place = torch.randint(11, (6, 3, 3), generator=generator)
            place[..., 2] = torch.randint(3, (6, 3), generator=generator)
            place[:3] = place[:3, :1] // 4 + place[:3] // 6
            place[:3, :, 2] = 1
            given = (
                state.truth,
                place,
                torch.cat(SMALL.places.footprint(place), -1),
                torch.rand(6, 4, 3, generator=generator) < 0.7,
                torch.rand(6, 3, -(-SMALL.places.widest // 2), generator=generator, dtype=dtype),
                SMALL.flip,
                *averages(SMALL.places, torch.device("cpu"), dtype),
            )
            given[3][:, -1] = True
            kept = logits.clone(), means.clone()
            boxes = fusion.fuse(logits, means, *given)
            over = logits.clone()
            reused = fusion.fuse(over, means, *given, reuse=True)
            whole = fusion.whole_maps(logits, means, *given)
            assert torch.equal(logits, kept[0])
            assert torch.equal(means, kept[1])
            assert torch.equal(boxes[0], whole[0])
            assert reused[0] is over
            assert all(torch.equal(one, other) for one, other in zip(reused, boxes, strict=True))
            for name, one, other in zip(("mean", "near", "added", "lost"), boxes[1:], whole[1:], strict=True):
                assert one.dtype == dtype
                far = (one - other).abs().max() / other.abs().max().clamp_min(1)
                assert far <= most, f"{name}: {float(far)}"
            logits, means = boxes[:2]


def test_a_number_serves_two_cells() -> None:
    """As likely to fall short of a chance, and independent: both do as often as the product says."""
    noise = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0))
    high, low = fusion.digits(noise).view(2, -1)
    for chance in (0.01, 0.265, 0.375):
        one, other = high < chance, low < chance
        for share, expected in ((one, chance), (other, chance), (one & other, chance**2)):
            off = 5 * (expected * (1 - expected) / len(noise)) ** 0.5 + 2**-12  # what 12 bits cannot tell
            assert abs(float(share.double().mean()) - expected) < off


def test_a_compiler_is_told_what_comes_out() -> None:
    state, generator = drawn(SMALL, 2)
    place = state.place
    torch.library.opcheck(
        torch.ops.uavlab.box_by_box.default,
        (
            state.logits,
            state.mean,
            state.truth,
            place,
            torch.cat(SMALL.places.footprint(place), -1),
            torch.ones(2, 4, 3, dtype=torch.bool),
            torch.rand(2, 3, -(-SMALL.places.widest // 2), generator=generator),
            list(SMALL.flip),
            *averages(SMALL.places, torch.device("cpu"), torch.float32),
        ),
        test_utils=("test_schema", "test_faketensor"),
    )
