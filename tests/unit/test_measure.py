"""Measurements from Python take a task and settings as training does, and pass on what was asked for."""

from pathlib import Path
from typing import Any

import pytest

import uavlab as ul
from tests.support.fixtures_config import TINY
from uavlab import api
from uavlab_lab.measure import profile_run


def test_fit_takes_a_task_and_its_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def search(config: Any, memory: Any, most: int, margin: float, say: Any) -> str:
        say("worlds 1: slow")
        asked.append((config.env.followers, config.values["hidden"], config.toggles.threads, memory, most, margin))
        return "sizes"

    monkeypatch.setattr(api.search, "fit", search)
    env = ul.make("leader_follower", followers=2, horizon=20)
    settings = {name: value for name, value in TINY.items() if name not in ("horizon", "formation_radius", "device")}
    given: dict[str, Any] = {"device": "cpu", "toggles": {"threads": 2}, "settings": settings}
    assert ul.fit(env, memory="1GB", most=9, margin=0.2, **given) == "sizes"
    assert capsys.readouterr().out == "worlds 1: slow\n"
    ul.fit(env, progress=False, **given)
    assert capsys.readouterr().out == ""
    assert asked == [(2, 8, 2, "1GB", 9, 0.2), (2, 8, 2, None, api.MOST, 0.1)]
    with pytest.raises(ul.ConfigError, match="unknown setting 'hiden'"):
        ul.fit(env, settings={"hiden": 8})


def test_profile_passes_on_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(profile_run, "profile_preset", lambda *given, **options: asked.append((given, options)) or {})
    ul.profile("leader_follower", settings={"hidden": 8}, rounds=4, trace="t.json", every=True, limit=9.0)
    options = {"rounds": 4, "trace": Path("t.json"), "every": True, "limit": 9.0}
    assert asked == [(("leader_follower", {"hidden": 8}), options)]
