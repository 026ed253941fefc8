"""The environment that waits keeps Gymnasium's contract, and waits."""

import time
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from uavlab_lab.waiting import Waiting


def test_the_contract_of_gymnasium() -> None:
    with warnings.catch_warnings(action="ignore"):
        check_env(Waiting(0.0), skip_render_check=True)


def test_forces_push_the_point_which_starts_at_rest() -> None:
    env = Waiting(0.0, length=2)
    start, _ = env.reset(seed=1)
    assert start[2:].tolist() == [0.0, 0.0]
    assert np.abs(start[:2]).max() <= 1
    after, reward, ended, cut, _ = env.step(np.array([1.0, -0.5]))
    assert after.tolist() == pytest.approx([start[0] + 0.1, start[1] - 0.05, 0.1, -0.05])
    assert reward == pytest.approx(-np.hypot(*after[:2]))
    assert (ended, cut) == (False, False)
    again, *_, cut, _ = env.step(np.zeros(2))
    assert again.tolist() == pytest.approx([after[0] + 0.09, after[1] - 0.045, 0.09, -0.045])
    assert cut


def test_a_step_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    env = Waiting(0.25)
    env.reset(seed=0)
    env.step(np.zeros(2))
    assert waits == [0.25]
