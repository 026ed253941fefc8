"""Fusion footprint by footprint equals fusion of whole maps."""

import torch

from tests.support.fixtures_mapping import SMALL, start_missions
from uavlab.envs.mapping import fusion
from uavlab.envs.mapping.geometry import Measurement, averages


def test_footprints_equal_whole_maps() -> None:
    """Crowded missions with links lost at random, for which boxes overlap each other and the edges of the map."""
    generator = torch.Generator().manual_seed(0)
    for dtype, most in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        state, _ = start_missions(SMALL, 6)
        logits, means = torch.zeros_like(state.logits), torch.zeros_like(state.mean, dtype=dtype)
        for _ in range(8):
            place = torch.randint(11, (6, 3, 3), generator=generator)
            place[..., 2] = torch.randint(3, (6, 3), generator=generator)
            place[:3] = place[:3, :1] // 4 + place[:3] // 6
            place[:3, :, 2] = 1
            measurement = Measurement(
                state.truth,
                place,
                torch.cat(SMALL.places.footprint(place), -1),
                torch.rand(6, 4, 3, generator=generator) < 0.7,
                torch.rand(6, 3, -(-SMALL.places.widest // 2), generator=generator, dtype=dtype),
                SMALL.flip,
                *averages(SMALL.places, torch.device("cpu"), dtype),
            )
            measurement.heard[:, -1] = True
            before = logits.clone(), means.clone()
            boxes = fusion.fuse(logits, means, measurement)
            over = logits.clone()
            reused = fusion.fuse(over, means, measurement, reuse=True)
            whole = fusion.fuse_whole_maps(logits, means, measurement)
            assert torch.equal(logits, before[0])
            assert torch.equal(means, before[1])
            assert torch.equal(boxes[0], whole[0])
            assert reused[0] is over
            assert all(torch.equal(one, other) for one, other in zip(reused, boxes, strict=True))
            for name, one, other in zip(("mean", "footprint", "added", "removed"), boxes[1:], whole[1:], strict=True):
                assert one.dtype == dtype
                far = (one - other).abs().max() / other.abs().max().clamp_min(1)
                assert far <= most, f"{name}: {float(far)}"
            logits, means = boxes[:2]


def test_a_number_serves_two_cells() -> None:
    """Both digits are uniform, and independent: both are below a chance as often as the product of chances."""
    noise = torch.rand(1_000_000, generator=torch.Generator().manual_seed(0))
    high, low = fusion.split_digits(noise).view(2, -1)
    for chance in (0.01, 0.265, 0.375):
        one, other = high < chance, low < chance
        for share, expected in ((one, chance), (other, chance), (one & other, chance**2)):
            off = 5 * (expected * (1 - expected) / len(noise)) ** 0.5 + 2**-12  # the resolution of 12 bits
            assert abs(float(share.double().mean()) - expected) < off


def test_the_operator_describes_its_results() -> None:
    state, generator = start_missions(SMALL, 2)
    place = state.place
    torch.library.opcheck(
        torch.ops.uavlab.fuse_footprints.default,
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
