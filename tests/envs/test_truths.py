"""Maps to be found out: what they cover, and how they hang together."""

import pytest
import torch

from uavlab.envs import truths


def test_halves_cover_30_to_60_percent_from_one_side() -> None:
    corner = torch.tensor([[0.0, 0.0], [0.3, 0.0], [0.6, 0.999], [0.9, 0.999]])
    truth = truths.halves(corner, 100, 112)
    assert not truth[..., 100:].any()
    inside = truth[..., :100].double()
    assert inside.mean((1, 2)).tolist() == pytest.approx([0.3, 0.3, 0.6, 0.6])
    line = [inside[0].mean(0), inside[1].mean(0), inside[2].mean(1), inside[3].mean(1)]  # along x, then along y
    assert [(int(each[0]), int(each[-1])) for each in line] == [(1, 0), (0, 1), (1, 0), (0, 1)]


def test_fields_cover_what_they_should() -> None:
    unit = torch.rand(4, 1 + truths.FIELD_NOISE, generator=torch.Generator().manual_seed(0))
    unit[:, 0] = torch.tensor([0.0, 0.5, 0.7, 0.999])
    truth = truths.fields(unit, 100, 112)
    assert not truth[..., 100:].any()
    assert truth[..., :100].double().mean((1, 2)).tolist() == pytest.approx([0.30, 0.45, 0.51, 0.60], abs=2e-4)


def test_fields_hang_together_and_differ() -> None:
    """Neighbours agree nearly always, cells far apart about as often as not; no row or column alone tells a map."""
    unit = torch.rand(64, 1 + truths.FIELD_NOISE, generator=torch.Generator().manual_seed(1))
    truth = truths.fields(unit, 64, 64)
    assert (truth[:, 1:] == truth[:, :-1]).double().mean() > 0.95
    far = (truth[:, 0, 0] == truth[:, 32, 32]).double().mean()
    assert 0.2 < float(far) < 0.8
    assert len({row.numpy().tobytes() for row in truth.flatten(1)}) == 64
    assert (truth.any(1) & ~truth.all(1)).double().mean() > 0.5


def test_power_falls_with_the_wave_number() -> None:
    """One wave at a time: amplitude is the wave number to the power of -2.5."""
    assert truths.FALL / 2 == 2.5
    unit = torch.zeros(2, 1 + truths.FIELD_NOISE, dtype=torch.float64)
    first, second = (unit[i, 1:].view(2, truths.WAVES + 1, 2 * truths.WAVES + 1) for i in range(2))
    first[0, 0, truths.WAVES + 1] = 0.9  # one period across
    second[0, 0, truths.WAVES + 2] = 0.9  # two
    for row, waves in ((unit[:1], 1), (unit[1:], 2)):
        truth = truths.fields(row, 64, 64)[0, 0]
        assert int((truth[1:] != truth[:-1]).sum() + (truth[0] != truth[-1])) == 2 * waves
