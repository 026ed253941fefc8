"""All settings end in a valid Config or in one ConfigError that lists every problem."""

import dataclasses
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from annotated_types import Ge

from uavlab.collectors.off_policy import ReplayConfig
from uavlab.core.errors import ConfigError
from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.core.types import Rule
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.config import (
    ELSEWHERE,
    LARGEST_FILE,
    Config,
    Layer,
    RunConfig,
    configure,
    gather,
    parse_setting,
    read_yaml,
    single_layer,
)
from uavlab.experiment.names import presets
from uavlab.experiment.settings import settings_of
from uavlab.learners.masac.masac import MASACConfig
from uavlab.runtime.toggles import Toggles

PRESET = "leader_follower"
PARTS = (RunConfig, ReplayConfig, MASACConfig, Toggles, LeaderFollower)


def refused(*layers: dict[str, Any], preset: str = PRESET) -> str:
    with pytest.raises(ConfigError) as refusal:
        configure(preset, *layers)
    return str(refusal.value)


def read(folder: Path, content: str | bytes) -> dict[str, Any]:
    path = folder / "settings.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_yaml(path)


class TestNames:
    def test_every_field_is_reached_flat(self) -> None:
        names = [setting.name for part in PARTS for setting in settings_of(part)]
        assert len(set(names)) == len(names)
        evaluation = [f"eval_{field.name}" for field in dataclasses.fields(LeaderFollower)]
        assert set(configure(PRESET).values) == {*names, *evaluation}

    @pytest.mark.parametrize("part", ["run", "source", "learner", "env"])
    def test_a_setting_arrives_where_it_belongs(self, part: str) -> None:
        plain = configure(PRESET)
        for field in dataclasses.fields(getattr(plain, part)):
            value = plain.values[field.name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            other = value / 2 if isinstance(value, float) else value + 1
            config = configure(PRESET, {"obstacles": 2, "share": False, field.name: other})
            assert getattr(getattr(config, part), field.name) == other == config.values[field.name]

    @pytest.mark.parametrize("name", ["seed", "batch", "gamma", "eval_dt"])
    def test_a_name_taken_twice_is_caught(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        fields = [("dt", float, 1.0), (name, float, 1.0)]
        clashing = dataclasses.make_dataclass("Clashing", fields, frozen=True)
        monkeypatch.setitem(ENVIRONMENTS, f"clashing {name}", Environment(clashing))
        assert f"Clashing.{name}: '{name}' is another setting; rename the field." in refused(preset=f"clashing {name}")

    def test_a_field_of_an_own_environment_is_a_setting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @dataclasses.dataclass(frozen=True)
        class Windy(LeaderFollower):
            wind: Annotated[float, Ge(0)] = 0.0

        monkeypatch.setitem(ENVIRONMENTS, "windy", Environment(Windy))
        config = configure("windy", {"wind": 1.5, "eval_wind": 2})
        assert (config.env, config.evaluation) == (Windy(wind=1.5), Windy(wind=2))
        assert "wind: input should be greater than or equal to 0, got -1" in refused({"wind": -1}, preset="windy")

    def test_an_environment_says_how_it_is_evaluated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @dataclasses.dataclass(frozen=True)
        class Breezy(LeaderFollower):
            evaluation: ClassVar[dict[str, float]] = {"breeze": 0.0}
            breeze: float = 1.0

        monkeypatch.setitem(ENVIRONMENTS, "breezy", Environment(Breezy))
        for given, evaluated in (({}, 0.0), ({"eval_breeze": 2.0}, 2.0), ({"eval_breeze": None}, 1.0)):
            config = configure("breezy", given)
            assert (config.env, config.evaluation) == (Breezy(), Breezy(breeze=evaluated))

    def test_an_evaluation_by_an_unknown_setting_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @dataclasses.dataclass(frozen=True)
        class Gusty(LeaderFollower):
            evaluation: ClassVar[dict[str, float]] = {"gutst": 0.0}

        monkeypatch.setitem(ENVIRONMENTS, "gusty", Environment(Gusty))
        with pytest.raises(ConfigError, match=r"Gusty\.evaluation: 'gutst' is no setting of this environment"):
            configure("gusty")

    def test_an_own_environment_brings_its_own_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @dataclasses.dataclass(frozen=True)
        class Squall(LeaderFollower):
            wind: float = 0.0
            gust: float = 0.0
            rules: ClassVar[tuple[Rule, ...]] = ((("wind", "gust"), lambda w, g: w <= g, "wind {0} > gust {1}"),)

        monkeypatch.setitem(ENVIRONMENTS, "squall", Environment(Squall))
        assert refused({"wind": 2, "gust": 1, "batch": 0, "sight": 2}, preset="squall") == (
            "squall: batch: input should be greater than or equal to 1, got 0; wind 2 > gust 1."
        )
        assert configure("squall", {"wind": 1, "gust": 1}).env == Squall(wind=1, gust=1)

    @pytest.mark.parametrize(
        ("layers", "expected"),
        [
            ([{}], (8000, None)),
            ([{"minutes": 3}], (None, 3)),
            ([{"minutes": 3}, {"seed": 1}], (None, 3)),
            ([{"minutes": 3, "updates": 9}], (9, 3)),
            ([{"updates": 9}, {"minutes": 3}], (9, 3)),
            ([{"minutes": 3}, {"updates": 9}], (9, 3)),
            ([{"minutes": 3}, {"minutes": None}], (8000, None)),
        ],
    )
    def test_minutes_alone_lift_the_presets_updates(self, layers: list[dict[str, Any]], expected: tuple[Any]) -> None:
        run = configure("leader_follower_quick", *layers).run
        assert (run.updates, run.minutes) == expected

    def test_evaluation_differs_where_it_is_told_to(self) -> None:
        config = configure(PRESET, {"dt": 0.5, "eval_followers": 4, "eval_lagged": False})
        assert config.env == LeaderFollower(dt=0.5)
        assert config.evaluation == LeaderFollower(dt=0.5, followers=4)

    def test_layers_win_in_order_over_the_preset(self) -> None:
        quick = "leader_follower_quick"
        assert configure(quick).source.batch == 128
        config = configure(quick, {"batch": 1, "lr": 0.1, "tau": 0.1}, {"batch": 2, "lr": 0.2}, {"batch": 3})
        assert (config.source.batch, config.learner.lr, config.learner.tau, config.learner.hidden) == (3, 0.2, 0.1, 128)

    def test_layers_and_presets_stay_as_they_are(self) -> None:
        layer = {"batch": 4}
        configure("leader_follower_quick", layer).values["gamma"] = 7
        assert layer == {"batch": 4}
        assert configure("leader_follower_quick").learner.gamma == 0.95


class TestRefusals:
    def test_all_problems_are_told_at_once(self) -> None:
        layer = {"hiden": 3, "seed": -1, "updates": None, "batch": 10**6, "device": "tpu", "gamma": math.nan}
        layer |= {"lr": math.inf, "share": "on", "keep": True, "worlds": 4.0, "tau": "0.1", "eval_dt": "a", "zzz": 1}
        assert refused(layer, {"sight": 3}) == (
            "leader_follower: unknown setting 'hiden' (did you mean 'hidden'?); unknown setting 'zzz'; "
            "seed: input should be greater than or equal to 0, got -1; "
            "device: input should be 'auto', 'cpu' or 'cuda', got 'tpu'; "
            "keep: input should be a valid integer, got True; "
            "worlds: input should be a valid integer, got 4.0; "
            "gamma: input should be a finite number, got nan; "
            "tau: input should be a valid number, got '0.1'; "
            "lr: input should be a finite number, got inf; "
            "share: input should be a valid boolean, got 'on'; "
            "eval_dt: input should be a valid number, got 'a'; "
            "batch 1000000 > capacity 100000: lower batch or raise capacity; "
            "neither updates nor minutes is set: the run would never end; "
            "sight 3 > obstacles 1: an agent cannot see more than there are. "
            "All settings: uavlab settings leader_follower."
        )

    def test_each_problem_says_where_it_came_from(self) -> None:
        file = Layer({"hiden": 3, "seed": -1, "capacity": 9}, {"hiden": "a.yaml:1", "seed": "a.yaml:2"})
        assigned = Layer({"batch": 10, "lr": 2, "worlds": 10}, {"batch": "--set", "lr": "--set"})
        assert refused(file, assigned, {"lr": 3, "learning_starts": 9}) == (
            "leader_follower: unknown setting 'hiden' from a.yaml:1 (did you mean 'hidden'?); "
            "seed: input should be greater than or equal to 0, got -1 from a.yaml:2; "
            "lr: input should be less than or equal to 1, got 3; "  # a later layer that does not say
            "batch 10 > capacity 9: lower batch or raise capacity (batch from --set); "
            "worlds 10 > capacity 9: one step would overwrite itself. All settings: uavlab settings leader_follower."
        )
        file.origins |= {"capacity": "a.yaml:3"}  # type: ignore[operator]
        assert "raise capacity (batch from --set, capacity from a.yaml:3)" in refused(file, assigned)

    def test_a_name_that_other_programs_use(self) -> None:
        for other, own in ELSEWHERE.items():
            assert f"unknown setting {other!r} (did you mean {own!r}?)" in refused({other: 1})

    def test_a_flood_of_unknown_settings_is_told_briefly(self) -> None:
        message = refused({f"unknown{i}": 1 for i in range(8000)})
        assert "; unknown setting 'unknown19'; 7980 more unknown settings. All settings: " in message

    def test_an_unknown_preset(self) -> None:
        assert refused(preset="leader_folower_quick") == (
            "unknown preset 'leader_folower_quick' (did you mean 'leader_follower_quick'?). "
            f"Known presets: {', '.join(presets())}."
        )

    @pytest.mark.parametrize(
        ("layer", "message"),
        [
            ({"worlds": 9, "capacity": 8, "batch": 8, "learning_starts": 8}, "worlds 9 > capacity 8"),
            ({"learning_starts": 300, "capacity": 256}, "learning_starts 300 > capacity 256"),
            ({"log_std_low": 0, "log_std_high": 0}, "log_std_low 0 >= log_std_high 0"),
            ({"sight": 2, "obstacles": 2, "eval_obstacles": 1}, "sight 2 > eval_obstacles 1"),
            ({"eval_sight": 1}, "to be used with group 0 (9 observations, 2 actions), group 1 (9 observations"),
            ({"followers": 0, "eval_followers": 2}, "trained on group 0 (7 observations, 2 actions), to be used"),
        ],
    )
    def test_contradictions(self, layer: dict[str, Any], message: str) -> None:
        assert message in refused(layer)

    @pytest.mark.parametrize(
        "layer",
        [
            {"worlds": 8, "capacity": 8, "batch": 8, "learning_starts": 8},
            {"updates": None, "minutes": 1},
            {"update": "loop", "followers": 3, "runs": 2},
            {"sight": 2, "obstacles": 2, "eval_obstacles": 3},
            {"followers": 0, "eval_followers": None},
        ],
    )
    def test_their_borders_are_allowed(self, layer: dict[str, Any]) -> None:
        assert layer.items() <= configure(PRESET, layer).values.items()

    def test_a_wrong_value_is_not_called_contradictory_as_well(self) -> None:
        assert refused({"batch": "many"}) == "leader_follower: batch: input should be a valid integer, got 'many'."

    def test_values_and_names_are_shown_briefly(self) -> None:
        for value in ("x" * 10**6, [[]] * 10**6, 10**6000):
            assert len(refused({"seed": value})) < 200
        assert len(refused({"x" * 10**6: 1})) < 200


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("lr: 1e-3", 1e-3),
            ("lr: .nan", math.nan),
            ("share: on", "on"),
            ("share: true", True),
            ("seed: 0o17", 15),
            ("seed: 1:30", "1:30"),
        ],
    )
    def test_scalars_are_those_of_yaml_1_2(self, tmp_path: Path, text: str, value: Any) -> None:
        [got] = read(tmp_path, text).values()
        assert type(got) is type(value)
        assert got == value or math.isnan(got)
        assert repr(parse_setting(text.replace(": ", "="))[1]) == repr(value)

    def test_a_file_of_settings(self, tmp_path: Path) -> None:
        values = read(tmp_path, "# a run\nlr: 1e-2\nbatch: 64   # rows\nshare: false\n")
        assert values == {"lr": 0.01, "batch": 64, "share": False}
        assert configure(PRESET, values).learner.lr == 0.01

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("lr: 1\n2: 2", ": expected lines `name: value`, got the name 2."),
            (b"\xff\xfe\x00\x00", ": not readable as UTF-8: invalid start byte at byte 0."),
            (b"a\xe9", ": not readable as UTF-8: unexpected end of data at byte 1."),
            (b"#" * (LARGEST_FILE + 1), ": not readable: larger than 50,000 bytes."),
        ],
    )
    def test_traps_are_refused(self, tmp_path: Path, content: str | bytes, message: str) -> None:
        with pytest.raises(ConfigError) as refusal:
            read(tmp_path, content)
        assert str(refusal.value) == f"{tmp_path / 'settings.yaml'}{message}"

    def test_a_missing_file_and_a_folder_are_refused(self, tmp_path: Path) -> None:
        for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "a\0b"):
            with pytest.raises(ConfigError, match=": not readable: "):
                read_yaml(path)

    @pytest.mark.parametrize("kind", ["apply:os.system", "new:os.system", "name:os.system", "module:os", "object:os.x"])
    def test_tags_build_no_objects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        monkeypatch.chdir(tmp_path)
        for text in (f"lr: !!python/object/{kind} ['touch made']", f"lr: !!python/{kind} ['touch made']"):
            with pytest.raises(ConfigError, match="expected plain values without tags"):
                read(tmp_path, text)
            with pytest.raises(ConfigError, match="expected plain values without tags"):
                parse_setting(text.replace(": ", "=", 1))
        assert [path.name for path in tmp_path.iterdir()] == ["settings.yaml"]


class TestCommandLine:
    def test_what_was_read_is_laid_in_order_and_knows_its_origin(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("lr: 0.1\n\nbatch: 9\n")
        given = gather(tmp_path / "a.yaml", ["lr=0.2", "tau=0.3"], {"seed": 4, "runs": None})
        assert given == {"lr": 0.2, "batch": 9, "tau": 0.3, "seed": 4}
        origins = {"lr": "--set", "batch": f"{tmp_path / 'a.yaml'}:3", "tau": "--set", "seed": "--seed"}
        assert given.origins == origins
        assert gather(None, [], {}) == {}

    def test_toggles_lie_under_a_file_and_over_settings(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("compile: default\n")
        given = gather(tmp_path / "a.yaml", ["adam=foreach"], {"device": "cpu"}, "plain", ["adam=single"])
        chosen = ("update", "threads", "compile", "adam")
        assert [given[name] for name in chosen] == ["loop", 1, "default", "single"]
        where = ["--toggles plain", "--toggles plain", f"{tmp_path / 'a.yaml'}:1", "--toggle"]
        assert [given.origins[name] for name in chosen] == where

    def test_a_setting_of_one_layer_is_given_once(self) -> None:
        assert single_layer([("lr", 0.1, "here"), ("tau", 0.2, "there")]).origins == {"lr": "here", "tau": "there"}
        with pytest.raises(ConfigError, match=r"^lr is given twice, by here and by there; leave out one\.$"):
            single_layer([("lr", 0.1, "here"), ("lr", 0.1, "there")])

    @pytest.mark.parametrize(
        ("named", "texts", "message"),
        [
            (
                "plian",
                [],
                "unknown toggles 'plian' (did you mean 'plain'?). Known sets: plain, eager, laptop, gpu, max.",
            ),
            (None, ["adm=fused"], "unknown toggle 'adm' from --toggle (did you mean 'adam'?)"),
            (None, ["lr=1"], "unknown toggle 'lr' from --toggle"),
            (None, ["adam"], "--toggle 'adam': expected key=value."),
        ],
    )
    def test_toggles_that_are_none(self, named: str | None, texts: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=re.escape(message)):
            gather(None, [], {}, named, texts)


class TestSet:
    def test_splits_at_the_first_sign(self) -> None:
        assert parse_setting("lr=1e-3") == ("lr", 0.001)
        assert parse_setting(" device = cpu ") == ("device", "cpu")
        assert parse_setting("device=a=b") == ("device", "a=b")
        assert parse_setting("updates=") == ("updates", None)

    @pytest.mark.parametrize(
        "text", ["lr", "", "=1", " =1", "lr=[1", "lr=" + "[" * 3000, "seed=" + "9" * 5000, "a=!!bool maybe", "a=*x"]
    )
    def test_what_cannot_be_read_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="--set"):
            parse_setting(text)


def mutants(rng: random.Random, count: int) -> Iterator[str]:
    """Damage a good settings file in a way that a person or a broken program might."""
    good = list(configure(PRESET, {"minutes": 5.0}).values.items())
    values = ["1", "-1", "0", "1e-3", "1e400", ".nan", "on", "true", "~", "x", "''", "[1]", "{a: 1}", "0x" + "f" * 5000]
    values += ["!!python/object:os.x {}", "!!bool z", "&a [*a]", "2020-01-01", "!!binary x", "1:30", "cuda", "loop"]
    glyphs = "\t\n :-[]{}#&*!|>'\"%@`,?\0\ufeff\x85é0a"
    for _ in range(count):
        lines = [f"{name}: {json.dumps(value)}" for name, value in rng.sample(good, rng.randint(1, 6))]
        if rng.random() < 0.5:
            lines.append(f"{rng.choice(good)[0]}: {rng.choice(values)}")
        text = "\n".join(lines)
        for _ in range(rng.choice((0, 0, 1, 3))):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice(glyphs) + text[at + rng.randint(0, 2) :]
        yield text


def check_mutants(count: int, folder: Path) -> int:
    """Read mutated settings; return how many are valid."""
    valid = 0
    for text in mutants(random.Random(0), count):
        try:
            config = configure(PRESET, read(folder, text))
            assert isinstance(config, Config)
            assert configure(PRESET, json.loads(json.dumps(config.values))) == config, text
            valid += 1
        except ConfigError as error:
            assert len(str(error)) < 1000, text  # noqa: PT017
        assert [path.name for path in folder.iterdir()] == ["settings.yaml"]
    assert count / 5 < valid < 4 * count / 5  # both ends are met
    return valid


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.soak)])
def test_mutated_settings_end_in_a_config_or_a_refusal(
    count: int, tmp_path: Path, proof: Callable[[str, str], None]
) -> None:
    valid = check_mutants(count, tmp_path)
    proof(
        "mutated settings",
        f"{count} of {count} end in a config or a refusal, {valid} are valid and describe themselves",
    )


@pytest.mark.parametrize("preset", presets())
def test_a_config_is_described_by_its_own_values(preset: str) -> None:
    config = configure(preset, {"minutes": 5.0, "seed": 3})
    stored = json.loads(json.dumps(config.values))
    assert configure(config.preset, stored) == config
    assert configure(config.preset, stored, {"seed": 4}) != config


def test_another_learner_leaves_out_what_only_the_preset_s_own_has() -> None:
    config = configure("leader_follower_quick", {"learner": "mappo"})
    assert "batch" not in config.values
    assert configure("mapping_published", {"learner": "mappo"}).learner.lr == 1e-3  # not that of COMA
    assert (config.values["gamma"], config.values["crash_cost"], config.learner.hidden) == (0.95, 1000.0, 128)
    with pytest.raises(ConfigError, match="unknown setting 'batch'"):
        configure("leader_follower_quick", {"learner": "mappo", "batch": 64})
