"""Runs, policies and scores from Python equal those of the command line, and settings start from the same toggles."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest
import torch

import uavlab as ul
from tests.support.cli_runner import uavlab
from tests.support.fixtures_config import SMALL_FLIGHTS, SMALL_MISSION, TINY
from uavlab.core.errors import ConfigError, FileError
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.types import EnvSpec, Metric, tensors
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.config import configure
from uavlab.runtime.toggles import Toggles

SMALL = {name: value for name, value in TINY.items() if name not in ("updates", "seed", "runs")}
OWN = {name: value for name, value in SMALL.items() if name not in ("horizon", "formation_radius")}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ul.Run:
    folder = tmp_path_factory.mktemp("api") / "pair"
    return ul.train("leader_follower", updates=8, runs=2, settings=SMALL, out=folder, progress=False)


def observations(env: Any, worlds: int) -> torch.Tensor:
    return env.observe(env.initial(torch.rand(worlds, env.spec.initial_noise)))


def test_import_loads_no_torch_and_lists_the_public_names() -> None:
    code = "import sys, uavlab as ul; print(set(dir(ul)) >= set(ul.__all__), 'torch' in sys.modules, hasattr(ul, 'x'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]
    assert all(getattr(ul, name) is not None for name in ul.__all__)


def test_help_begins_with_every_public_name() -> None:
    assert [name for name in ul.__all__ if not re.search(rf"\b{name}\b", ul.__doc__ or "")] == ["__version__"]


def test_settings_start_from_the_toggles_of_the_command_line() -> None:
    run = ul.start("leader_follower", settings=SMALL)
    assert run.config.toggles == configure("leader_follower").toggles
    assert ul.start("leader_follower", settings=SMALL, toggles="plain").config.toggles == Toggles()
    assert ul.start("leader_follower", settings=SMALL, toggles={"update": "loop"}).config.toggles.update == "loop"


def test_training_equals_that_of_the_command_line(pair: ul.Run, tmp_path: Path) -> None:
    words = [f"--set={name}={value}" for name, value in SMALL.items()]
    result = uavlab("train", "leader_follower", "--updates", "8", "--runs", "2", "--out", str(tmp_path / "run"), *words)
    assert result.code == 0, result.err
    assert torch.equal(ul.load(tmp_path / "run").parameters, pair.trained().parameters)


class TestRun:
    def test_it_is_iterated_stopped_and_continued(self) -> None:
        run = ul.start("leader_follower", updates=6, settings=SMALL)
        for progress in run:
            if progress.number == 2:
                run.stop()
        assert (run.number, run.done) == (2, False)
        assert [progress.number for progress in run] == [3, 4, 5, 6]
        assert run.done

    def test_log_rows_reach_the_callback_which_can_stop(self) -> None:
        rows: list[dict[str, Any]] = []

        def log(run: ul.Run, row: dict[str, Any]) -> None:
            rows.append(row)
            if row["update"] >= 4:
                run.stop()

        run = ul.train("leader_follower", updates=8, settings={**SMALL, "log_every": 2}, on_log=log, progress=False)
        assert [row["update"] for row in rows] == [1, 2, 4]
        assert run.number == 4

    def test_a_run_is_monitored_and_goes_on_without(self, tmp_path: Path) -> None:
        more: Any = {"settings": {**SMALL, "log_every": 2}, "progress": False}
        run = ul.train("leader_follower", updates=2, monitor=True, out=tmp_path / "run", **more)
        assert "load/cpu" in run.recorder.rows[-1]
        again = ul.resume(tmp_path / "run", updates=4, monitor=False, progress=False)
        assert "load/cpu" not in again.recorder.rows[-1]

    def test_rows_hold_the_values_of_each_seed(self, pair: ul.Run) -> None:
        table = pair.rows()
        assert [row["seed"] for row in table[:2]] == [0, 1]
        last, means = table[-2:], pair.recorder.rows[-1]
        assert last[0]["critic_loss"] != last[1]["critic_loss"]
        for name in ("critic_loss", "eval/return"):
            assert means[name] == pytest.approx((last[0][name] + last[1][name]) / 2, rel=1e-5)

    def test_resume_goes_on_with_equal_bits(self, pair: ul.Run, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        ul.train("leader_follower", updates=4, runs=2, settings=SMALL, out=folder, progress=False)
        again = ul.resume(folder, updates=8, progress=False)
        assert torch.equal(again.learner.parameters(), pair.learner.parameters())
        assert again.rows()[-1]["critic_loss"] == pair.rows()[-1]["critic_loss"]

    def test_the_update_of_the_best_policy_is_known_after_loading(self, pair: ul.Run) -> None:
        assert pair.folder is not None
        best = ul.load(pair.folder).updates
        assert best == pair.trained().updates
        scored = [row for row in pair.rows() if "eval/return" in row]
        for seed, update in enumerate(best):
            scores = {row["update"]: row for row in scored if row["seed"] == seed}
            weights = pair.config.evaluation.score
            value = {at: sum(w * row[f"eval/{name}"] for name, w in weights.items()) for at, row in scores.items()}
            assert value[update] == pytest.approx(max(value.values()), rel=1e-5)


class TestPolicy:
    @pytest.mark.parametrize("worlds", [1, 5])
    def test_a_function_of_observations(self, pair: ul.Run, worlds: int) -> None:
        env = ul.make("leader_follower", followers=3)
        act, obs = pair.policy(env, run=1), observations(env, worlds)
        action = act(obs)
        assert action.shape == (worlds, 4, 2)
        assert action.abs().max() <= 1
        assert torch.equal(action, pair.trained().batched_policy(env, 1)(obs[None], None)[0])
        assert not torch.equal(action, pair.policy(env, run=0)(obs))

    def test_a_generator_samples(self, pair: ul.Run) -> None:
        env = pair.config.evaluation
        act, obs = pair.policy(), observations(env, 4)
        first, second = (act(obs, torch.Generator().manual_seed(seed)) for seed in (0, 1))
        assert torch.equal(first, act(obs, torch.Generator().manual_seed(0)))
        assert not torch.equal(first, second)
        assert not torch.equal(first, act(obs))

    def test_observations_that_do_not_fit(self, pair: ul.Run) -> None:
        env = ul.make("leader_follower", followers=3)
        act, obs = pair.policy(env), observations(env, 2)
        for wrong, message in (
            (obs[0], "got observations of torch.float32, (4, "),
            (obs[:, :3], "expected float32 of shape (B, 4, "),
            (obs.double(), "got observations of torch.float64"),
            (obs.numpy(), "got a ndarray; expected a Tensor"),
        ):
            with pytest.raises(ConfigError, match=re.escape(message)):
                act(wrong)
        with pytest.raises(ConfigError, match=r"got 0; expected a torch\.Generator"):
            act(obs, 0)  # type: ignore[arg-type]

    def test_observations_of_agents_that_choose_moves(self) -> None:
        env = ul.make("pursuit")
        act = ul.TeamPolicy(lambda obs, noise: obs.legal.long().argmax(-1), env.spec, torch.device("cpu"))
        obs = env.observe(env.initial(torch.rand(3, env.spec.initial_noise)))
        assert act(obs).tolist() == [[0] * 6] * 3
        for wrong, message in (
            (obs.features, "got a Tensor; expected a ChoiceObs"),
            (replace(obs, legal=obs.legal.float()), "of torch.float32, (3, 6, 5); expected bool of shape (B, 6, 5)"),
            (replace(obs, legal=obs.legal[..., :4]), "(3, 6, 4); expected bool of shape (B, 6, 5)"),
            (replace(obs, features=obs.features.double()), "got observations of torch.float64"),
        ):
            with pytest.raises(ConfigError, match=re.escape(message)):
                act(wrong)

    def test_observations_and_noise_are_moved_to_the_device(self, pair: ul.Run) -> None:
        devices = []

        def function(obs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            devices.extend((obs.device.type, noise.device.type))
            return obs

        env = pair.config.evaluation
        ul.TeamPolicy(function, env.spec, torch.device("meta"))(observations(env, 2), torch.Generator())
        assert devices == ["meta", "meta"]

    def test_another_environment_whose_team_does_not_fit(self, pair: ul.Run) -> None:
        with pytest.raises(ConfigError, match="obs"):
            pair.policy(Line())

    def test_rows_of_a_stored_run(self, pair: ul.Run) -> None:
        assert pair.trained().rows() == pair.rows()
        with pytest.raises(FileError, match="in memory"):
            ul.start("leader_follower", settings=SMALL).trained().rows()

    def test_runs_and_policies_describe_themselves(self, pair: ul.Run) -> None:
        assert repr(pair) == f"<Run of leader_follower: complete, update 8, in {pair.folder}>"
        updates = pair.trained().updates
        where = f"2 seed(s), updates {updates}, in {pair.folder}"
        assert repr(pair.trained()) == f"<TrainedPolicy of leader_follower: {where}>"

    def test_moves(self) -> None:
        run = ul.start("mapping", settings=SMALL_MISSION)
        env = run.config.env
        obs = observations(env, 3)
        for moves in (run.policy()(obs), run.policy()(obs, torch.Generator().manual_seed(0))):
            assert moves.shape == (3, env.spec.agents)
            assert obs.legal.gather(-1, moves[..., None]).all()

    def test_logs_have_none(self) -> None:
        run = ul.start("telemetry", settings=SMALL_FLIGHTS)
        with pytest.raises(ConfigError, match="telemetry trains no team"):
            run.policy()


class TestEvaluate:
    def test_run_folder_and_loaded_policy_give_equal_scores(self, pair: ul.Run) -> None:
        assert pair.folder is not None
        first = ul.evaluate(pair, episodes=4)
        assert first == ul.evaluate(pair.folder, episodes=4) == ul.evaluate(ul.load(pair.folder), episodes=4)
        assert len(first["return"]["each"]) == 2
        assert str(first).splitlines()[0].startswith("completion ")

    def test_in_another_environment(self, pair: ul.Run) -> None:
        env = ul.make("leader_follower", followers=3, horizon=2)
        scores = ul.evaluate(pair, env=env, episodes=4)
        assert scores["flight_time"]["mean"] <= 2
        assert scores["energy"] != ul.evaluate(pair, env=ul.make("leader_follower", horizon=2), episodes=4)["energy"]
        assert ul.evaluate(pair, policy="random", env=env, episodes=4)["flight_time"]["mean"] <= 2

    def test_a_function_equals_the_same_policy_by_name(self) -> None:
        env = LeaderFollower(followers=2, horizon=20)
        still = ul.evaluate(env, policy=lambda obs: torch.zeros(*obs.shape[:2], 2), episodes=4)
        moving = ul.evaluate(env, policy=lambda obs: torch.ones(*obs.shape[:2], 2), episodes=4)
        assert still["flight_time"]["mean"] <= 20
        assert still != moving
        assert still == ul.evaluate(env, policy=lambda obs: 0 * obs[..., :2], episodes=4)

    def test_random_needs_no_registration(self) -> None:
        env = LeaderFollower(horizon=20)
        first = ul.evaluate(env, policy="random", episodes=4)
        assert first == ul.evaluate(env, policy="random", episodes=4)
        assert first != ul.evaluate(env, policy="random", episodes=4, seed=1)
        with pytest.raises(ConfigError, match=r"unknown \(did you mean 'random'\?\)\. Known: random, steer\."):
            ul.evaluate("leader_follower", policy="rondom", episodes=4)

    def test_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is a preset, expected a run"):
            ul.evaluate("leader_follower", episodes=4)
        with pytest.raises(FileError, match="is no run"):
            ul.evaluate(tmp_path, episodes=4)
        with pytest.raises(ConfigError, match="expected a run or its folder"):
            ul.evaluate(3, episodes=4)  # type: ignore[arg-type]


class TestLeaving:
    def test_a_folder_of_a_run_in_memory_or_stored(self, pair: ul.Run, tmp_path: Path) -> None:
        memory = ul.train("leader_follower", updates=2, settings=SMALL, progress=False)
        for number, run in enumerate((memory, pair)):
            copy = ul.export(run, tmp_path / f"copy{number}")
            assert torch.equal(ul.load(copy).parameters, run.trained().parameters)
            assert ul.load(copy).updates == run.trained().updates
        with pytest.raises(ConfigError, match="not empty"):
            ul.export(pair, tmp_path / "copy0")
        with pytest.raises(ConfigError, match="a folder holds all seeds and agents"):
            pair.export(tmp_path / "copy2", run=1)
        assert not (tmp_path / "copy2").exists()
        with pytest.raises(ConfigError, match=r"expected a name that ends in \.pt2 or \.onnx"):
            ul.export(pair, tmp_path / "team.pt")

    def test_a_flight_with_another_team(self, pair: ul.Run, tmp_path: Path) -> None:
        env = ul.make("leader_follower", followers=3, horizon=4)
        figure = ul.fly(pair, tmp_path / "flight.html", env=env, run=1)
        assert figure.layout.meta["steps"] <= 4
        assert (tmp_path / "flight.html").stat().st_size > 1e6
        greedy = ul.fly(env, policy=lambda obs: torch.ones(*obs.shape[:2], 2))
        assert greedy.layout.meta["steps"] <= 4
        first, second = (ul.fly(pair.folder, policy="random", seed=seed).to_json() for seed in (0, 1))  # type: ignore[arg-type]
        assert first != second
        with pytest.raises(ConfigError, match="telemetry has no team that flies"):
            ul.fly("telemetry", policy="ridge")
        with pytest.raises(ConfigError, match=r"^fly: got 3; expected a run"):
            ul.fly(3)  # type: ignore[arg-type]


class TestReport:
    def test_a_run_its_folder_and_the_command_give_equal_pages(self, pair: ul.Run, tmp_path: Path) -> None:
        assert pair.folder is not None
        pages = [ul.report(each, tmp_path / "r.html", episodes=2).read_text() for each in (pair, pair.folder)]
        assert uavlab("report", pair.folder, "--episodes", "2", "--out", tmp_path / "r.html").code == 0
        by_command = (tmp_path / "r.html").read_text()
        assert pages[0] == pages[1]
        assert bodies(pages[0]) == bodies(by_command)

    def test_where_the_page_lies(self, pair: ul.Run, tmp_path: Path) -> None:
        assert pair.folder is not None
        assert ul.report(str(pair.folder), episodes=2) == pair.folder / "report.html"
        policies = [ul.export(pair, tmp_path / name) for name in ("a", "b")]
        assert ul.report([ul.load(policies[0]), policies[1], str(policies[0])], episodes=2) == tmp_path / "report.html"
        assert ul.report(tmp_path.glob("?"), tmp_path / "new" / "page.html", episodes=2).exists()
        assert "<h1>Report of a, b</h1>" in (tmp_path / "report.html").read_text()

    def test_what_is_missing_is_warned_of(self, pair: ul.Run, tmp_path: Path) -> None:
        assert pair.folder is not None
        shutil.copytree(pair.folder, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
        with pytest.warns(UserWarning, match=r"^run: No policy: "):
            assert ul.report(tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("runs", "kind", "message"),
        [
            (3, ConfigError, "report: got 3; expected a run that is kept in a folder, or its folder"),
            ([3], ConfigError, "report: got 3; expected a run"),
            ([], ConfigError, "report: got no run; expected at least one"),
            ("leader_follower", ConfigError, "is a preset, expected a run"),
            ("no/such", FileError, "no/such is no run"),
        ],
    )
    def test_what_is_no_run(self, runs: Any, kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message):
            ul.report(runs)

    def test_a_run_in_memory_and_a_page_that_cannot_be(self, pair: ul.Run, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"in memory> has no folder; train it with out=FOLDER"):
            ul.report(ul.start("leader_follower", settings=SMALL))
        with pytest.raises(ConfigError, match="is a folder; name a file in it"):
            ul.report(pair, tmp_path)
        with pytest.raises(ConfigError, match="got episodes=0"):
            ul.report(pair, episodes=0)
        (tmp_path / "file").touch()
        with pytest.raises(ul.ResourceError, match="is a file"):
            ul.report(pair, tmp_path / "file" / "page.html")

    def test_without_the_extra(self, pair: ul.Run, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.startswith("uavlab_lab")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "plotly", None)
        with pytest.raises(ul.MissingPackageError, match=r'pip install "uavlab\[lab\]"'):
            ul.report(pair)


def bodies(page: str) -> str:
    """Return what a page shows, apart from the command that made it."""
    return page.partition("<body>")[2].partition("<p>This page:")[0]


class TestTask:
    def test_an_object_gives_its_parameters(self) -> None:
        run = ul.start(LeaderFollower(followers=2, dt=0.5), settings=OWN)
        assert (run.config.preset, run.config.env) == ("leader_follower", LeaderFollower(followers=2, dt=0.5))
        assert run.config.evaluation == run.config.env

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: ul.start("leader_folower"), "unknown preset 'leader_folower'"),
            (lambda: ul.start(LeaderFollower), "expected the name of a preset, or an environment: an instance"),
            (lambda: ul.start(LeaderFollower(followers=-1)), "followers: .* from LeaderFollower"),
            (lambda: ul.start("leader_follower", updates=3, settings={"updates": 4}), "updates is given twice"),
            (lambda: ul.start("leader_follower", toggles="fast"), "unknown toggles 'fast'"),
            (lambda: ul.start("leader_follower", settings={"gama": 0.9}), "did you mean 'gamma'"),
            (lambda: ul.make("leader_follower", followers=-1), "followers: "),
            (lambda: ul.make("leader_follower", lr=1e-3), "lr is a setting of a run, not of LeaderFollower"),
            (
                lambda: ul.start(LeaderFollower(followers=2), settings={"followers": 4}),
                "followers is given twice, by Leader",
            ),
            (
                lambda: ul.start("leader_follower", toggles={"update": "loop"}, settings={"update": "vmap"}),
                "update is given twice, by toggles and by settings",
            ),
            (lambda: ul.start("leader_follower", toggles=["compile"]), "toggles: got .*; expected values by name"),  # type: ignore[arg-type]
            (lambda: ul.start("leader_follower", settings=["lr"]), "settings: got .*; expected values by name"),  # type: ignore[arg-type]
            (lambda: ul.train("leader_follower", settings=SMALL, on_log="print"), "on_log: got 'print'"),  # type: ignore[arg-type]
            (lambda: ul.resume(ul.start("leader_follower", settings=SMALL)), "To train a run on, iterate over it"),  # type: ignore[arg-type]
            (lambda: ul.load(ul.start("leader_follower", settings=SMALL)), "got .*Run.*; expected the folder of a run"),  # type: ignore[arg-type]
            (lambda: ul.bench("ladders"), "unknown suite 'ladders' .did you mean 'ladder'"),
            (lambda: ul.bench("env", full=True), "no option 'full'; `bench ladder` has it"),
        ],
    )
    def test_bad_input(self, call: Callable[[], Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            call()

    @pytest.mark.parametrize("kind", [list, dict])
    def test_a_thousandfold_nested_value_is_refused_wherever_it_is_given(self, kind: type) -> None:
        deep = reduce(lambda inner, _: [inner] if kind is list else {"a": inner}, range(1000), kind())
        functions: tuple[Any, ...] = (ul.start, ul.make, ul.resume, ul.load, ul.evaluate, ul.fly, ul.report, ul.bench)
        settings = [partial(ul.start, "leader_follower", **{name: deep}) for name in ("settings", "toggles", "updates")]
        for call in (*(partial(each, deep) for each in functions), partial(ul.export, deep, "copy"), *settings):
            with pytest.raises(ConfigError) as refusal:
                call()
            assert len(str(refusal.value).partition(" Known ")[0]) < 300  # all names that are known may follow


@tensors
class State:
    pos: torch.Tensor
    step: torch.Tensor


@dataclass(frozen=True)
class Line:
    """One agent on a line, without a preset."""

    metrics = (Metric("place", "last"),)
    score = {"place": 1.0}  # noqa: RUF012

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(1, obs=1, action=1, horizon=5, dt=1.0, initial_noise=1, step_noise=0, groups=(0,))

    def initial(self, noise: torch.Tensor) -> State:
        return State(noise, torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: State, action: torch.Tensor, noise: torch.Tensor) -> State:
        return State(state.pos + action[..., 0], state.step + 1)

    def observe(self, state: State) -> torch.Tensor:
        return state.pos[..., None].clone()

    def reward(self, state: State, action: torch.Tensor, after: State) -> torch.Tensor:
        return after.pos

    def terminated(self, state: State) -> torch.Tensor:
        return torch.zeros_like(state.pos, dtype=torch.bool)

    def measure(self, state: State, action: torch.Tensor, after: State) -> dict[str, torch.Tensor]:
        return {"place": after.pos[:, 0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": {}}, r"Broken\.score: got \{\}"),
        ({"score": {"plaice": 1.0}}, "'plaice'"),
        ({"measure": lambda self, state, action, after: {}}, r"measure, step 0 .* keys \[\]"),
        ({"reward": lambda self, state, action, after: torch.inf * after.pos}, "a number that is not finite"),
    ],
)
def test_a_broken_environment_is_refused_before_training(change: dict[str, Any], message: str) -> None:
    broken = dataclass(frozen=True)(type("Broken", (Line,), change))
    with pytest.raises(ConfigError, match=message):
        ul.start(broken(), settings=OWN)
    ENVIRONMENTS.pop("Broken")


def test_an_environment_of_ones_own_needs_no_name() -> None:
    try:
        run = ul.train(Line(), updates=3, settings=OWN, progress=False)
        assert run.config.preset == "Line"
        assert ul.evaluate(Line(), policy=lambda obs: torch.ones_like(obs), episodes=6)["place"]["mean"] > 5
        assert "place" in ul.evaluate(run, episodes=2)
    finally:
        ENVIRONMENTS.pop("Line", None)
