"""Advice follows where the time goes, and never raises an interval in vain."""

from typing import Any

import pytest

from tests.support.fixtures_config import TINY
from uavlab_lab.measure.profile_run import format_profile, interval_advice, profile_preset

BOUND = {"environment": 0.8, "update": 0.2}  # 80 of 100 ms, as published
BALANCED = {"environment": 0.3, "acting": 0.2, "update": 0.5}
LEARNING = {"environment": 0.03, "acting": 0.02, "update": 0.95}
OVERLAP, MORE, IN_VAIN, NOTHING = ("prefetch=overlap", "more worlds", "no update cheaper", "worth trying")


@pytest.mark.parametrize(
    ("shares", "settings", "expected"),
    [
        (BOUND, {"interval": 1, "prefetch": "off"}, [OVERLAP, MORE]),
        (BOUND, {"interval": 10, "prefetch": "off"}, [OVERLAP, MORE, IN_VAIN]),
        (BOUND, {"interval": 10, "prefetch": "overlap"}, [MORE]),
        (BALANCED, {"interval": 1, "prefetch": "off"}, [OVERLAP]),
        (LEARNING, {"interval": 1, "prefetch": "off"}, [NOTHING]),
        (LEARNING, {"interval": 20, "prefetch": "off"}, [NOTHING, IN_VAIN]),
    ],
)
def test_lines(shares: dict[str, float], settings: dict[str, Any], expected: list[str]) -> None:
    lines = interval_advice(shares, **settings)
    assert len(lines) == len(expected)
    assert all(words in line for words, line in zip(expected, lines, strict=True))


@pytest.mark.parametrize(("shares", "most"), [(BOUND, "1.25x"), (BALANCED, "2.00x")])
def test_the_most_that_overlap_can_do_by_hand(shares: dict[str, float], most: str) -> None:
    assert most in interval_advice(shares, 1, "off")[0]


def test_a_profile_of_a_run_with_replay_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uavlab_lab.measure.profile_run.candidates", lambda config: {})
    profile = profile_preset("leader_follower", TINY, {"interval": 4}, rounds=3)
    assert any(IN_VAIN in line for line in profile["advice"])
    assert all(line in format_profile(profile) for line in profile["advice"])
    assert all(line in profile._repr_html_() for line in profile["advice"])
