"""Bytes counted by hand, and a refused update bit for bit."""

import pytest
import torch

from uavlab.experiment.config import Config, configure
from uavlab_lab.lessons import memory
from uavlab_lab.lessons.memory import peak_bytes, refuse_memory, to_rates

SMALL = {"hidden": 16, "worlds": 4, "learning_starts": 16, "capacity": 64, "batch": 64, "device": "cpu"}


@pytest.fixture
def config() -> Config:
    return configure("leader_follower_quick", SMALL)


def test_peak_bytes_counts_what_lives_at_a_time() -> None:
    def call() -> None:
        for _ in range(3):
            first = torch.zeros(100)
            (first + 1).sum()

    assert peak_bytes(call) == 2 * 400 + 4


def test_a_refused_update_ends_in_the_bits_of_one_cut_from_the_start(config: Config) -> None:
    result = refuse_memory(config)
    assert result["limit_bytes"] == result["peak_bytes"] // 2
    assert [(each["what"], each["from"], each["to"]) for each in result["retries"]] == [
        ("critic_loss", 1, 2),
        ("actor_loss", 1, 2),
        ("actor_loss", 2, 4),
    ]
    assert result["same_bits"]
    assert 0 < result["difference"] < 1e-4


def test_targets_are_cut_alike() -> None:
    result = refuse_memory(configure("leader_follower_quick", SMALL, {"batch": 1024, "capacity": 1024}), share=0.2)
    assert "targets" in {each["what"] for each in result["retries"]}
    assert result["same_bits"]


def test_enough_memory_is_not_refused(config: Config) -> None:
    result = refuse_memory(config, share=1.0)
    assert (result["retries"], result["difference"], result["same_bits"]) == ([], 0, True)


def test_an_update_that_was_not_repeated_alike_would_be_seen(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    build_update, seeds = memory._build_update, iter(range(4))

    def other(config: Config) -> object:
        return build_update(configure("leader_follower_quick", SMALL, {"seed": next(seeds)}))

    monkeypatch.setattr(memory, "_build_update", other)
    assert not refuse_memory(config)["same_bits"]


def test_rates() -> None:
    rows = [
        {"setting": "10", "ms": 2.0, "over_first": 1.0, "low": 1.0, "high": 1.0},
        {"setting": "40", "ms": 4.0, "over_first": 0.5, "low": 0.25, "high": 0.75},
    ]
    assert to_rates(rows) == [
        {"size": 10, "ms": 2.0, "rate": 5000.0, "low": 5000.0, "high": 5000.0},  # 10 in 2 ms
        {"size": 40, "ms": 4.0, "rate": 10_000.0, "low": 5000.0, "high": 15_000.0},
    ]
