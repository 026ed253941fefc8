"""A policy in teams of other sizes: which settings change, what is compared, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import uavlab as ul
from tests.support.cli_runner import uavlab
from tests.support.fixtures_config import tiny, train_run
from uavlab.core.errors import ConfigError
from uavlab.experiment.config import configure
from uavlab.experiment.transfer import Transfer, places_by_stage, ratio, resized

SMALL = {"updates": 1, "worlds": 2, "rollout_steps": 3, "hidden": 8, "heads": 2, "layers": 1, "epochs": 1}
SMALL |= {"minibatches": 1, "evaluate_episodes": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_run(configure("assignment", SMALL), folder)
    return folder


def test_teams_of_each_size_are_scored_by_the_same_weights(run: Path) -> None:
    table = ul.transfer(run, [2, 7], policies=["greedy"], episodes=20)
    assert [row["settings"] for row in table.rows] == [{"uavs": (n, n), "targets": (n, n)} for n in (2, 7)]
    trained, env = ul.load(run), ul.make("assignment", uavs=(7, 7), targets=(7, 7))
    expected = ul.evaluate(trained, env=env, episodes=20)["normalized_score"]["mean"]
    assert table.rows[1]["score"]["mean"] == pytest.approx(expected)
    assert table.rows[1]["ratio"]["mean"] == pytest.approx(expected / table.home["mean"])
    greedy = ul.evaluate("assignment", policy="greedy", env=env, episodes=20)["normalized_score"]["mean"]
    assert table.rows[1]["plans"]["greedy"]["mean"] == pytest.approx(greedy)
    assert re.search(r"^ +7 .* 0\.\d{3} \[", str(table), re.M)


def test_stages_of_a_curriculum_are_those_of_evaluation(run: Path) -> None:
    table = ul.transfer(run, stages="assignment_curriculum", policies=["greedy"], episodes=8)
    assert [row["stage"] for row in table.rows] == [1, 2, 3, 4]
    assert table.rows[1]["settings"]["uavs"] == (4, 6)
    values = {"uavs": (8, 12), "targets": (5, 8), "obstacles": (3, 6), "slots": (20, 15, 10), "variance": 0.6}
    env = ul.make("assignment_curriculum", **values, clustering=0.7, jitter=0)
    mine, greedy = (ul.evaluate(run, policy=plan, env=env, episodes=8) for plan in (None, "greedy"))
    assert table.rows[2]["score"]["mean"] == pytest.approx(mine["normalized_score"]["mean"])
    over = table.rows[2]["over"]["greedy"]
    assert [*over][:3] == ["normalized_score", "distance", "completion"]
    for name in ("normalized_score", "distance", "completion"):
        each = over[name]
        assert each["mean"] == pytest.approx(mine[name]["mean"] / greedy[name]["mean"])
        assert each["low"] < each["mean"] < each["high"]
    assert re.search(r"^ +3 over greedy: normalized_score \d\.\d{3} \[.*, distance ", str(table), re.M)


def test_what_a_policy_perceives_goes_with_it() -> None:
    places = places_by_stage(ul.make("assignment", near=7, variance=0.1), "assignment_curriculum")
    assert [place.env.near for place in places] == 4 * [7]
    assert [place.env.uavs for place in places] == [(2, 3), (4, 6), (8, 12), (15, 20)]
    assert 0.1 not in [place.env.variance for place in places]  # of the task, not of the policy
    assert "near" not in places[0].settings  # which no stage changes
    with pytest.raises(ConfigError, match="transfer: sight 5 > obstacles 3"):
        places_by_stage(ul.make("leader_follower", obstacles=5, sight=5), "leader_follower_curriculum")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"stages": "assignment_quick"},
            "transfer: assignment_quick has no curriculum; expected a preset with",
        ),
        ({"stages": "leader_follower_curriculum"}, "transfer: leader_follower_curriculum has a curriculum of LeaderFo"),
        (
            {"stages": "assignment_curriculum", "sizes": [2]},
            "transfer: got sizes [2] and stages 'assignment_curriculum'",
        ),
        ({"stages": "few"}, "unknown preset 'few'"),
    ],
)
def test_stages_that_cannot_be(run: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ul.transfer(run, **options)


def test_followers_are_a_size_too() -> None:
    table = ul.transfer(train_run(tiny()), [1, 3], episodes=3)
    assert (table.metric, [row["settings"] for row in table.rows]) == (
        "completion",
        [{"followers": 1}, {"followers": 3}],
    )


def test_as_many_followers_take_part_as_the_size_says() -> None:
    table = ul.transfer(train_run(tiny(followers=2, present=[1, 2])), [1, 3], episodes=3)
    assert [row["settings"] for row in table.rows] == [{"followers": n, "present": (n, n)} for n in (1, 3)]


def test_the_command_writes_the_table(run: Path, tmp_path: Path) -> None:
    result = uavlab(
        "transfer", str(run), "--sizes", "2,3", "--episodes", "4", "--out", str(tmp_path / "t.json"), "--json"
    )
    record = json.loads((tmp_path / "t.json").read_text())
    assert record["rows"] == result.json["rows"]
    assert [row["size"] for row in record["rows"]] == [2, 3]


def test_ratios_by_hand() -> None:
    several = ratio(np.array([[0.4, 0.6], [0.8, 0.8]]), np.array([[1.0, 1.0], [1.0, 1.0]]))
    assert several is not None
    assert (several["mean"], several["low"]) == (pytest.approx(0.65), pytest.approx(0.65 - 12.706 * 0.15, rel=1e-3))
    one = ratio(np.array([[1.0, 1.0, 1.0]]), np.array([[2.0, 2.0, 2.0]]))
    assert one == {"mean": 0.5, "low": 0.5, "high": 0.5}
    assert ratio(np.ones((1, 3)), np.zeros((1, 3))) is None
    assert ratio(np.ones((1, 9)), np.eye(9)[:1]) is None  # many a draw of the episodes has none above 0


@pytest.mark.parametrize(("alike", "paired", "covered"), [(0.0, False, True), (1.0, True, True), (1.0, False, False)])
def test_an_interval_covers_the_ratio_of_means(alike: float, paired: bool, covered: bool) -> None:
    """Where both scores of an episode are alike, an interval that does not pair them is too wide: it misses nothing."""
    dice, inside = np.random.default_rng(0), 0
    for _ in range(200):
        episode = 1 + alike * dice.normal(0.0, 0.3, (1, 100))
        both = (mean * episode + dice.normal(0, 0.1, (1, 100)) for mean in (0.8, 1.0))
        each = ratio(*both, paired=paired)
        inside += each is not None and each["low"] <= 0.8 <= each["high"]
    assert (180 <= inside <= 199) == covered


def table(home: float, *scores: float) -> Transfer:
    rows = [
        {
            "size": size,
            "settings": {"uavs": size, "targets": size},
            "score": dict.fromkeys(("mean", "low", "high"), score),
            "ratio": ratio(np.array([[score, score]]), np.array([[home, home]])),
            "plans": {},
            "over": {},
        }
        for size, score in enumerate(scores, 1)
    ]
    return Transfer("size", "normalized_score", dict.fromkeys(("mean", "low", "high"), home), tuple(rows))


def test_what_failed_and_what_to_try() -> None:
    some = table(0.8, 0.9, 0.4, 0.39, 0.0)  # half of 0.8 is enough
    assert some.failed == [3, 4]
    last = str(some).splitlines()[-1]
    assert last.startswith("failed, below 0.5 of home: size 3, 4. Train on more sizes (uavs, targets; a curriculum)")
    assert "failed" not in str(table(0.8, 0.9, 0.4))
    assert table(-1.0, -3.0).failed == []  # a ratio of negative scores says nothing
    assert table(0.0, 0.5).failed == []


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([], "transfer: got sizes []; expected whole numbers from 1 on"),
        ([2, 0], "transfer: got sizes [2, 0]; expected whole numbers from 1 on"),
        (
            [60],
            "transfer: uavs (60, 60), targets (60, 60) and obstacles (1, 3) with slots (0, 0, 0): more than",
        ),
    ],
)
def test_sizes_that_cannot_be(run: Path, sizes: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ul.transfer(run, sizes, episodes=1)


def test_an_environment_without_sizes() -> None:
    config = configure("spread", {"updates": 1, "hidden": 8, "learning_starts": 64, "worlds": 2, "batch": 4})
    with pytest.raises(ConfigError, match="transfer: Spread does not say which settings are sizes"):
        ul.transfer(train_run(config), [2], episodes=1)


def test_policies_of_other_layers_cannot_be_moved() -> None:
    run = train_run(configure("assignment", {**SMALL, "layers": 0}))
    with pytest.raises(ConfigError, match="policy: trained on"):
        ul.transfer(run, [3], episodes=1)


def test_a_resized_team_acts_on_as_many(run: Path) -> None:
    env = resized(ul.make("assignment"), {"uavs": (9, 9), "targets": (2, 2)})
    state = env.initial(torch.rand(3, env.spec.initial_noise))
    act = ul.load(run).policy(env)
    assert bool(state.legal.flatten(1).gather(1, act(env.observe(state))).all())
