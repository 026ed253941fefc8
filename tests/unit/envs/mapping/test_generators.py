"""Ground truth: its share of targets, and how it is connected."""

import math

import pytest
import torch

from uavlab.envs.mapping import env


def test_halves_cover_30_to_60_percent_from_one_side() -> None:
    corner = torch.tensor([[0.0, 0.0], [0.3, 0.0], [0.6, 0.999], [0.9, 0.999]])
    truth = env.halves(corner, 100)
    inside = truth.double()
    assert inside.mean((1, 2)).tolist() == pytest.approx([0.3, 0.3, 0.6, 0.6])
    line = [inside[0].mean(0), inside[1].mean(0), inside[2].mean(1), inside[3].mean(1)]  # along x, then along y
    assert [(int(each[0]), int(each[-1])) for each in line] == [(1, 0), (0, 1), (1, 0), (0, 1)]


def test_fields_cover_the_requested_share() -> None:
    unit = torch.rand(4, 1 + env.FIELD_NOISE, generator=torch.Generator().manual_seed(0))
    unit[:, 0] = torch.tensor([0.0, 0.5, 0.7, 0.999])
    truth = env.fields(unit, 100)
    assert truth.double().mean((1, 2)).tolist() == pytest.approx([0.30, 0.45, 0.51, 0.60], abs=2e-4)


def test_fields_are_smooth_and_differ() -> None:
    """Neighbours agree nearly always, cells far apart about as often as not; no row or column determines a map."""
    unit = torch.rand(64, 1 + env.FIELD_NOISE, generator=torch.Generator().manual_seed(1))
    truth = env.fields(unit, 64)
    assert (truth[:, 1:] == truth[:, :-1]).double().mean() > 0.95
    far = (truth[:, 0, 0] == truth[:, 32, 32]).double().mean()
    assert 0.2 < float(far) < 0.8
    assert len({row.numpy().tobytes() for row in truth.flatten(1)}) == 64
    assert (truth.any(1) & ~truth.all(1)).double().mean() > 0.5


def test_waves_are_cosines_whose_amplitudes_fall_with_the_wave_number() -> None:
    """One wave at a time, its amplitude drawn from 0.9: sqrt(-2 ln 0.1) / k^2.5, at its highest in the corner."""
    first = 2.145966026289347
    for down, across in ((0, 1), (0, 2), (3, 4), (5, -6)):
        noise = torch.zeros(1, 2, env.WAVES + 1, 2 * env.WAVES + 1, dtype=torch.float64)
        noise[0, 0, down, env.WAVES + across] = 0.9
        got = env.heights(noise.flatten(1), 40)[0]
        y, x = torch.meshgrid(torch.arange(40), torch.arange(40), indexing="ij")
        wave = torch.cos(2 * math.pi * (down * y + across * x).double() / 40)
        torch.testing.assert_close(got, first * math.hypot(down, across) ** -2.5 * wave)


def test_no_wave_counts_twice_and_the_mean_is_zero() -> None:
    noise = torch.zeros(1, 2, env.WAVES + 1, 2 * env.WAVES + 1, dtype=torch.float64)
    noise[0, 0, 0, : env.WAVES + 1] = 0.9  # nothing down, backwards or not at all across
    assert not env.heights(noise.flatten(1), 16).any()
