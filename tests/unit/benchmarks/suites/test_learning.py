"""Curves by the clock: what is run and what the rows hold."""

from typing import Any

import pytest

from uavlab.core.errors import ConfigError
from uavlab_lab.suites import learning as module
from uavlab_lab.suites.learning import learning_suite


def test_the_goal_is_reached_when_it_is_first_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completion passes 0.95 at the second score, 30 s after the start, 20 of which came before the second update."""
    calls: list[Any] = []

    def learning(preset: str, settings: Any, *layers: Any, say: Any) -> list[dict[str, Any]]:
        calls.append((preset, list(settings), layers[0]["seed"]))
        scores = [(500, 10.0, 0.4), (1000, 30.0, 0.96), (1500, 40.0, 0.9)] if len(calls) > 1 else [(500, 9.0, 0.5)]
        curve = [{"update": n, "seconds": s, "each": {"completion": [c]}} for n, s, c in scores]
        base = {"setting": next(iter(settings)), "seeds": [0], "first_update_s": 20.0, "updates_per_s": 1.0}
        return [{**base, "fell_back": {}, "curve": curve}]

    monkeypatch.setattr(module, "learning", learning)
    rows = learning_suite(3, "cpu")["rows"]
    assert calls == [("leader_follower_quick", [name], seed) for seed in range(5) for name in ("plain", "laptop")]
    assert (rows[0]["to_goal_s"], rows[0]["to_goal_warm_s"], rows[0]["completion"]) == (None, None, 0.5)
    assert (rows[1]["to_goal_s"], rows[1]["to_goal_warm_s"], rows[1]["completion"]) == (30, 10, 0.96)
    assert rows[1]["curve"][0] == [500, 10.0, 0.4]
    lower = learning_suite(3, "cpu", sets=("laptop",), goal=0.4)
    assert [call[1:] for call in calls[10:]] == [(["laptop"], seed) for seed in range(5)]
    assert (lower["goal"], lower["rows"][0]["to_goal_s"]) == (0.4, 10)


def test_an_unknown_set_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "learning", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ConfigError, match="laptpo"):
        learning_suite(3, "cpu", sets=("plain", "laptpo"))
