"""Equal agents share networks unless their names count within several groups; a setting chooses otherwise."""

import json
from pathlib import Path

import pytest

import uavlab as ul
from tests.support.registries import registered
from uavlab.core.errors import ConfigError
from uavlab.experiment.config import configure
from uavlab.workers.pool import close_all
from uavlab.workers.registration import external
from uavlab.workers.team import groups_by_name, stem_of

FLEET = "tests.support.foreign:Fleet"
TINY = {"worlds": 4, "rollout_steps": 8, "hidden": 8, "evaluate_episodes": 2, "workers": 1, "copies": 4}


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        *((style, [("uav", 3)]) for style in ("tail", "ordinals", "letters")),
        *((style, [("agent", 3)]) for style in ("numbers", "digits", "words", "people")),
        ("middle", [("uav_blue", 3)]),
        ("roles", [("adversary", 1), ("agent", 2)]),
    ],
)
def test_names_that_count_are_one_group(names: str, groups: list[tuple[str, int]]) -> None:
    with registered():
        env = configure(external(FLEET, names=names)).env
        assert [part[1] for part in groups] == [env.spec.groups.count(n) for n in range(len(groups))]
        expected = groups if len(groups) > 1 else []  # one group is the whole team
        assert [(part.name, part.agents) for part in env.spec.parts] == expected
        count = f"3 agents in {len(groups)} group{'s' * (len(groups) > 1)} by groups=names"
        assert env.reading.startswith(count)
        assert all(f"{number} {name} (" in env.reading for name, number in expected)


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("wolf-pack_0", "wolf-pack"), ("team_a_0", "team_a"), ("team_a_1", "team_a"), ("team_b_0", "team_b"),
        ("uavB", "uav"), ("uav_bravo", ""), ("1station_2", "station"), ("walker", ""), ("('uav', 1)", "uav"),
        ("X", ""), ("leftWing", ""),
    ],
)  # fmt: skip
def test_the_stem_of_a_name(name: str, stem: str) -> None:
    assert stem_of(name) == stem


def test_no_agent_is_lost_where_labels_meet() -> None:
    sizes = {"a": (1,), "b": (1,), "c": (2,), "d": (2,), "a1": (1,), "a2": (1,)}
    groups = groups_by_name(sizes)
    assert sorted(name for members in groups.values() for name in members) == sorted(sizes)
    assert [len(members) for members in groups.values()] == [2, 2, 2]


def test_a_setting_chooses_the_groups() -> None:
    with registered():
        name = external(FLEET, names="roles")
        assert configure(name, {"groups": "all"}).env.spec.groups == (0, 0, 0)
        each = configure(name, {"groups": "each"}).env
        assert each.spec.groups == (0, 1, 2)
        assert [metric.name for metric in each.metrics] == ["adversary_0_return", "agent_0_return", "agent_1_return"]
        assert sorted(each.group_scores) == ["adversary_0", "agent_0", "agent_1"]
        assert "in 3 groups by groups=each" in each.reading
        with pytest.raises(ConfigError, match=r"eval_groups all is another one than groups each: .*; leave it out"):
            configure(name, {"groups": "each", "eval_groups": "all"})
        with pytest.raises(ConfigError, match=r"groups: .*got 'some'"):
            configure(name, {"groups": "some"})


def test_one_group_of_unlike_agents_is_refused_with_their_spaces() -> None:
    with registered():
        name = external(FLEET, names="roles", wide="agent_1")
        text = (
            "groups=all, but adversary_0 has 2 numbers, 3 moves, and agent_1 3 numbers, 3 moves; expected equal spaces"
        )
        with pytest.raises(ConfigError, match=text):
            configure(name, {"groups": "all"})
        with pytest.raises(ConfigError, match=text):
            ul.make(name, groups="all")
        assert len(configure(name, {"groups": "names"}).env.spec.parts) == 3


def test_groups_survive_resume_evaluation_and_export(tmp_path: Path) -> None:
    with registered():
        name = external(FLEET, names="people")
        run = ul.train(name, updates=1, out=tmp_path / "run", settings={**TINY, "groups": "all"}, progress=False)
        assert run.config.env.spec.groups == (0, 0, 0)
        record = json.loads((tmp_path / "run/run.json").read_text())
        assert record["environment"]["read"].startswith("3 agents in 1 group by groups=all, 2 numbers, 3 moves;")
        again = ul.resume(tmp_path / "run", updates=2, progress=False)
        assert again.config.env.groups == "all"
        assert ul.evaluate(again, episodes=2)["return"]
        ul.export(ul.load(tmp_path / "run"), tmp_path / "copy")
        assert ul.load(tmp_path / "copy").config.env.groups == "all"
        with pytest.raises(ConfigError, match="cannot go on with groups all -> each"):
            ul.resume(tmp_path / "run", updates=3, settings={"groups": "each"}, progress=False)
    close_all()
