"""Rounds, gradient steps and episodes of a run, and the updates in which episodes are played, by hand."""

from typing import Any

import pytest

from tests.support.fixtures_config import sizes, tiny
from tests.support.live_runs import trained
from uavlab.experiment.config import configure
from uavlab.experiment.counts import rounds, updates_of
from uavlab.experiment.run_state import Change


def change(update: int, undone: str = "", **settings: tuple[int, int]) -> Change:
    return Change(update, settings, undone=undone)


@pytest.mark.parametrize(
    ("updates", "interval", "ratio", "changes", "expected"),
    [
        (0, 10, 1, [], 0),
        (200, 10, 1, [], 20),  # an episode of 200 steps: 20 rounds of 10 updates, which are 200
        (200, 1, 1, [], 200),
        (21, 10, 1, [], 3),  # the third has begun
        (20, 5, 2, [], 2),
        (30, 10, 1, [change(20, interval=(1, 10))], 21),
        (30, 10, 2, [change(20, interval=(1, 10)), change(24, ratio=(1, 2), lr=(1, 2))], 20 + 1 + 1),
        (30, 10, 1, [change(20, interval=(1, 10), undone="memory"), change(25, worlds=(1, 2))], 3),
    ],
)
def test_rounds_by_hand(updates: int, interval: int, ratio: int, changes: list[Change], expected: int) -> None:
    assert rounds(updates, interval, ratio, changes) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((6250, 200), 1_250_000),
        ((6250, 200, 64), 19_532),  # 19,531.25 steps of all worlds
        ((6250, 200, 64, 1, 64), 19_532 * 64),
        ((10, 20, 4, 5), 10),
        ((10, 20, 4, 5, 3), 30),
    ],
)
def test_updates_of_episodes_by_hand(sizes: tuple[int, ...], expected: int) -> None:
    assert updates_of(*sizes) == expected


@pytest.mark.parametrize("name", ["scale_out_balanced", "scale_out_aggressive"])
def test_presets_of_the_command_lines_have_their_episodes(name: str) -> None:
    config = configure(name)
    source, toggles = config.source, config.toggles
    sizes = (config.env.horizon, source.worlds, source.world_steps, toggles.ratio)
    assert config.run.updates == updates_of(6250, *sizes)
    assert (source.batch, toggles.interval) == (512, 10 if name.endswith("balanced") else 20)
    assert config.env.horizon % toggles.interval == 0


def test_presets_of_intervals_differ_by_the_interval_alone() -> None:
    first = configure("interval_1").values
    for k in (1, 5, 10, 20):
        assert configure(f"interval_{k}").values == {**first, "interval": k}


SAFE = {"horizon": 6, "worlds": 4, "learning_starts": 16, "crash_radius": 1.0, "evaluate_every": 99}


def counted(**settings: Any) -> list[dict[str, float]]:
    """Return the counts of each row of a run whose episodes all end at their horizon."""
    run = trained(tiny(**{**SAFE, "updates": 18, "log_every": 6, "checkpoint_every": 99, **settings}))
    rows = [{name: row[name] for name in row if name.startswith("counts/")} for row in run.recorder.rows]
    assert rows[-1]["counts/episodes"] == run.source.ended() == 4 * (run.source.steps // 6)
    return rows


@pytest.mark.parametrize("settings", [{}, {"runs": 2}, {"prefetch": "overlap"}])
def test_a_run_with_replay_logs_its_counts(settings: dict[str, Any]) -> None:
    rows = counted(interval=3, **settings)
    assert [row["counts/rounds"] for row in rows] == [1, 2, 4, 6]  # at updates 1, 6, 12 and 18
    assert [row["counts/gradient_steps"] for row in rows] == [1, 6, 12, 18]
    # 4 worlds of episodes of 6 steps, a step for each update
    assert rows[-1]["counts/updates_per_episode"] == pytest.approx(6 / 4)
    assert "counts/updates_per_episode" not in rows[0]


def test_the_ratio_multiplies_updates_per_episode() -> None:
    assert counted(ratio=6, updates=72, log_every=36)[-1]["counts/updates_per_episode"] == 6 * 6 / 4


def test_a_run_without_replay_has_no_counts() -> None:
    run = trained(configure("spread", sizes("spread", "mappo") | {"learner": "mappo", "updates": 2}))
    assert not [name for row in run.recorder.rows for name in row if name.startswith("counts/")]
