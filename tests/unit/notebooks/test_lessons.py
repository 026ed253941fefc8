"""The measurements of each lesson run at a small size, and say what is true."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import TINY, sizes, tiny
from tests.support.fixtures_mapping import SMALL as SMALL_MISSION
from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.core.errors import ConfigError, FileError
from uavlab.core.installation import ROOT
from uavlab.core.statistics import student
from uavlab.core.types import Entities
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.envs.target_assignment.env import Assignment
from uavlab.evaluation import COMMON
from uavlab.experiment.config import configure
from uavlab.experiment.curriculum import parse
from uavlab.experiment.run import Run
from uavlab.storage.files import read_json
from uavlab.telemetry import flights, predict
from uavlab.telemetry.flights import Telemetry
from uavlab.testing import check_env
from uavlab_lab.claims import report
from uavlab_lab.claims.ledger import ledger, select
from uavlab_lab.lessons import (
    attention,
    claims,
    harm,
    landing,
    learning_record,
    mapping,
    memory,
    precision,
    stage_shares,
    stale_loader,
    telemetry,
    timeline,
    tour,
    update_interval,
    update_ladder,
)
from uavlab_lab.lessons.records import read_records
from uavlab_lab.lessons.toy_tasks import METRIC, course
from uavlab_lab.measure.compare import learning

SMALL: dict[str, Any] = {
    "hidden": 16,
    "worlds": 4,
    "learning_starts": 64,
    "capacity": 256,
    "batch": 32,
    "device": "cpu",
}
WAYS = {name: {"update": name} for name in ("loop", "cached", "merged", "vmap", "batched")}


def test_attention_is_drawn_for_what_is_attended_to() -> None:
    x = torch.arange(1.0, 3 * 2 + 3)[None]  # a row and two columns of two features, and two numbers of neighbours
    wide = attention.with_slots(x, Entities(1, 2, 2, 1), rows=2, columns=3)
    assert wide.tolist() == [[1, 2, 0, 0, 3, 4, 5, 6, 0, 0, 7, 8]]
    env = Assignment(uavs=(2, 2), targets=(3, 3))
    state = env.initial(torch.rand(1, env.spec.initial_noise, generator=torch.Generator().manual_seed(0)))
    weight = torch.tensor([[0.0, 0.0, 1.0], [0.75, 0.25, 0.0]])
    figure = attention.draw_attention(env, state, weight, 1, "A title", "A caption")
    lines = [trace for trace in figure.data if trace.mode == "lines+text"]
    assert [(trace.text[1], trace.line.width) for trace in lines] == [("75%", 7.5), ("25%", 2.5)]


def test_claims_are_joined_with_their_record() -> None:
    [claim] = select(["cached-forwards"])
    entry = {"value": 1.2, "low": 1.1, "high": 1.4, "note": "", "digest": claim.digest}
    record = {"machine": {"device": "A GPU", "cpu": "A CPU"}, "measured": {claim.claim: entry}}
    [row] = claims.claim_rows([claim], record)
    assert (row["verdict"], row["claimed_text"], row["measured_text"]) == ("partly", "1.40x to 1.60x", "1.20x")
    assert (claims.select_rows([row], "leader_follower"), claims.select_rows([row], "mapping")) == ([row], [])
    newest, _ = report.newest(report.own_path("cpu"))
    drawn = {row["verdict"] for row in claims.claim_rows(ledger(), newest) if row["measured"] is not None}
    assert drawn <= {*claims.POINTS, "ill-defined", "not testable here"}


def test_harm_is_found_in_four_of_five_studies() -> None:
    assert harm.quantile(0.975, 9) == pytest.approx(2.2622, abs=1e-4)
    d = torch.randn(4000, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = torch.tensor([1.0, -1.0] * 8).double()
    least = harm.least_harm((spread / spread.std()).tolist())
    hits = [student(each)[2] < 0 for each in (d - least).numpy()]
    assert sum(hits) / len(hits) == pytest.approx(0.8, abs=0.03)
    base = [0.0, 10.0, 20.0, 30.0]
    (row,) = harm.compare({harm.BASE: base, "interval=20": [x - 1 - 0.1 * (-1) ** n for n, x in enumerate(base)]})
    assert (row["verdict"], row["unpaired"] > 100) == ("worse", True)
    assert row["low"] == pytest.approx(-1 - 3.1824 * 0.11547 / 2, abs=1e-3)
    assert harm.halves([[1, 2, 3, 4, 5]]) == {"early": [1.5], "late": [4]}
    means = harm.read("late")
    assert (list(means), {len(each) for each in means.values()}) == (list(harm.VARIANTS), {128})


@pytest.mark.parametrize(("name", "scores"), [(harm.BASE, 13), ("an update every 20 steps", 2)])
def test_harm_trains_each_seed(name: str, scores: int) -> None:
    small = {"hidden": 8, "batch": 8, "worlds": 2, "learning_starts": 16, "evaluate_episodes": 2, "device": "cpu"}
    returns = harm.train(name, range(3, 5), 40, **small)
    assert (len(returns), len(returns[0])) == (2, scores)


def test_the_landing_pays_on_pads_alone_and_its_stages_are_valid() -> None:
    check_env(landing.Landing(), steps=40)
    env = landing.Landing()
    state = landing.State(torch.tensor([[[0.2, 0.0], [0.0, 1.0]]]), torch.tensor([0]))
    action = torch.tensor([[[-0.6, 0.0], [0.0, -5.0]]])
    after = env.transition(state, action, torch.zeros(1, 0))
    torch.testing.assert_close(after.offset, torch.tensor([[[0.14, 0.0], [0.0, 0.9]]]))
    assert env.reward(state, action, after).tolist() == [[1.0, 0.0]]
    plan, failing = parse(landing.CURRICULUM, env), parse(landing.failing(), env)
    assert [stage.settings["far"] for stage in plan.stages] == [0.3, 0.8, 2.0]
    assert [stage.rate for stage in failing.stages] == [1.0, 100.0, 1.0]
    table = landing.summary(landing.preset_stages("leader_follower_curriculum")[1])
    assert [row[:2] for row in table.rows] == [["1", "[1, 1]"], ["2", "[2, 3]"], ["3", "-"]]


def test_the_toy_task_is_learned_and_not_without_learning() -> None:
    layer = course(80, scores=2, runs=3, device="cpu", evaluate_episodes=10)
    plainly, mutant = learning("leader_follower_quick", {"plainly": {}, "mutant": {"lr": 1e-9}}, layer)
    means = [sum(row["curve"][-1]["each"][METRIC]) / 3 for row in (plainly, mutant)]
    assert means[0] > -14 > -20 > means[1]  # a random flight loses about 27


def test_missions_are_scored_beside_the_plans(tmp_path: Path) -> None:
    small = {name: getattr(TINY_MISSION, name) for name in ("cells", "cell", "lattice", "uavs", "measurements")}
    size = {"device": "cpu", "threads": 1, "worlds": 2, "width": 8, "hidden": 8, "updates": 1, "evaluate_episodes": 2}
    run = Run(configure("mapping_quick", size, small), tmp_path / "run")
    for _ in run.train():
        pass
    trained, name = mapping.load_team(str(tmp_path / "run"), "cpu"), "the trained team"
    scores = mapping.scores_by_policy(TINY_MISSION, {name: trained}, 0, 3, torch.device("cpu"))
    assert list(scores) == ["random", "information gain", "expected entropy", "sweep", name]
    assert all(value.shape == (1, 3, 4) for each in scores.values() for value in each.values())
    assert mapping.load_team("", "cpu").config.preset == "mapping_quick"  # the exported one
    Run(tiny(), tmp_path / "team").save()
    with pytest.raises(ConfigError, match="a run of leader_follower; expected one that maps"):
        mapping.load_team(str(tmp_path / "team"), "cpu")
    same, low = torch.rand(2, 5, 14, generator=torch.manual_seed(0)), torch.linspace(1, 0.5, 14).expand(1, 6, 14)
    assert mapping.best_policy({"b": same, "same": same}, "f1") == "b, same"
    assert mapping.best_policy({"a": low, "b": same + 1}, "entropy") == "a"
    assert mapping.format_scores({"a": low}) == "a 0.50 (0.50 to 0.50)"
    resized = mapping.compare_resizing(SMALL_MISSION)
    assert (resized["area"] - resized["opencv"]).abs().max() < 1e-5 < 0.05
    assert (resized["area"] - resized["bilinear"]).abs().max() > 0.05


def test_a_refused_update_ends_in_the_bits_of_one_cut_from_the_start() -> None:
    first = torch.zeros(100)
    assert memory.peak_bytes(lambda: (first + 1).sum()) == 400 + 4
    result = memory.refuse_memory(configure("leader_follower_quick", SMALL, {"batch": 64, "learning_starts": 64}))
    assert [(each["what"], each["to"]) for each in result["retries"]][:2] == [("critic_loss", 2), ("actor_loss", 2)]
    assert result["same_bits"]
    assert 0 < result["difference"] < 1e-4
    rows = [{"setting": "10", "ms": 2.0, "over_first": 1.0, "low": 1.0, "high": 1.0}]
    assert memory.to_rates(rows) == [{"size": 10, "ms": 2.0, "rate": 5000.0, "low": 5000.0, "high": 5000.0}]


def test_fewer_digits_err_more_and_leave_the_learner_alone() -> None:
    probe = precision.train_probe(configure("leader_follower_quick", SMALL), updates=3)
    before = {name: value.clone() for name, value in probe.learner.state_dict().items()}
    error = {(row["tensor"], row["with"]): row["error"] for row in precision.errors(probe)}
    for name in {tensor for tensor, _ in error}:
        assert error[name, "fp32"] < 1e-5
        assert error[name, "fp32"] < error[name, "fp16"] < error[name, "bf16"] < 0.1
    small, one, huge = precision.scaled_gradients(probe, [2.0**-30, 1.0, 2.0**30])
    assert small["vanished"] > 0.5 > small["overflowed"] == one["overflowed"] == 0
    assert huge["overflowed"] > 0.5
    after = probe.learner.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_workers_never_see_a_row_written_after_they_started() -> None:
    measured = stale_loader.read_through_loader(steps=10, start=20, new=30, batch=60, workers=2)
    newest = {name: [r["newest"] for r in measured["rows"] if r["source"] == name] for name in measured["ms"]}
    assert newest["DataLoader"] == [19] * 10
    assert newest["replay itself"][-1] > 250  # of 320
    assert measured["repeated"] == pytest.approx(5 / 11)  # 11 batches in turn from two: 6 different ones
    measured = stale_loader.read_through_loader(steps=10, start=20, new=30, batch=60, workers=0)  # the mutant
    assert max(r["newest"] for r in measured["rows"] if r["source"] == "DataLoader") > 250


def test_stages_and_their_times() -> None:
    stages = stage_shares.measure_shares(
        "leader_follower", {"plain": {"update": "loop"}, "batched": {}}, TINY, cycles=3
    )
    for rows in stages.values():
        calls = {row["name"]: row["calls"] for row in rows}
        assert (calls["environment"], 0 < sum(row["share"] for row in rows) <= 1) == (3, True)
    size = {
        "hidden": 8,
        "batch": 8,
        "worlds": 4,
        "learning_starts": 16,
        "capacity": 64,
        "device": "cpu",
        "step_ms": 1.0,
    }
    for prefetch, elsewhere in (("off", set()), ("on", {"draw"}), ("overlap", {"acting", "environment"})):
        spans = timeline.record_spans(configure("slow_leader_follower", size, {"prefetch": prefetch}), cycles=3)
        assert {span["name"] for span in spans if span["lane"] != timeline.MAIN} == elsewhere
        assert all(span["end"] >= span["start"] >= 0 for span in spans)
        assert sum(span["name"] == "update" for span in spans) == 3


def test_steps_and_updates_take_turns_or_overlap() -> None:
    def ends(spans: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
        return [(span["start"], span["end"]) for span in spans if span["name"] == name]

    two = update_interval.schedule("a", 2, 80, 25, 4)
    assert ends(two, "step") == [(0, 80), (80, 160), (210, 290), (290, 370)]
    assert ends(two, "update") == [(160, 185), (185, 210), (370, 395), (395, 420)]
    overlap = update_interval.schedule("a", 1, 25, 80, 3, overlap=True)
    assert ends(overlap, "update") == [(25, 105), (105, 185), (185, 265)]


def test_all_rungs_of_an_update_agree() -> None:
    small = {**TINY, "share": False}
    rows = update_ladder.differences("leader_follower", WAYS, small, {"followers": 2}, updates=3)
    assert rows[0]["difference"] == 0
    assert max(row["difference"] for row in rows) < 1e-12
    rows = update_ladder.differences("leader_follower", {"one": {}, "other": {"tau": 0.02}}, small, updates=3)
    assert rows[1]["difference"] > 1e-6
    rows = update_ladder.count_evaluations("leader_follower", WAYS, small, {"followers": 2})
    assert {row["setting"]: row["evaluations"] for row in rows} == {name: 18 if name == "loop" else 6 for name in WAYS}
    assert update_ladder.compare_with_single_runs("leader_follower", TINY, runs=2, updates=3) < 1e-5


def test_hidden_states_are_predicted_and_missed(tmp_path: Path) -> None:
    trained, _ = telemetry.load_network()
    task: Any = trained.config.env
    [flight] = telemetry.unseen_flights(trained, 1)
    forecast: Any = trained.batched_policy(task, 0)
    rows = {row["column"]: row for row in predict.summary(predict.predict(forecast, task, flight))}
    for name, most in (("payload", 0.05), ("motor_lag", 0.01), ("battery_sag", 0.2), ("drag", 0.2)):
        assert rows[name]["rmse"] < most, name
    assert len(predict.predict_log(forecast, task, telemetry.write_flight(tmp_path, 77), stride=250).time) == 8
    [chunk] = flights.simulate(Telemetry(flights=3, least=600, most=600))
    truth, *wrong = telemetry.physics_residuals(flights.concatenate([chunk[0]]), 200)
    noticed = {row["case"].split(" wrong")[0]: row for row in wrong}
    for name, equation in (("wind north", "force"), ("payload", "force"), ("motor lag", "spin")):
        assert noticed[name][equation] > 1.02 * truth[equation], name
    paces = [row["pace"] for row in telemetry.printed_rates([100.0] * 4, 50, 1000)]
    assert (paces[::2], paces[1::2]) == ([100.0] * 4, [2000.0, 1000.0, pytest.approx(2000 / 3), 500.0])
    seeds = [{"r2": {"drag": {"mean": mean, "low": 0.8, "high": 0.95}}} for mean in (0.9, 0.7)]
    [row] = telemetry.scores({"network": seeds})
    assert row == {"target": "drag", "by": "network", "r2": pytest.approx(0.8), "low": 0.7, "high": 0.9}
    Run(tiny(), tmp_path / "team").save()
    with pytest.raises(ConfigError, match="leader_follower: not trained on logs; expected a run of telemetry"):
        telemetry.load_network(str(tmp_path / "team"))
    own = Run(configure("telemetry", sizes("telemetry"), {"updates": 1}), tmp_path / "wind")
    for _ in own.train():
        pass
    own_trained, which = telemetry.load_network(str(tmp_path / "wind"))
    assert which == "the run wind, 1 updates"
    first = telemetry.unseen_flights(own_trained, 2)[0]
    [known] = flights.simulate(replace(own_trained.config.env, flights=3, most=own_trained.config.env.least, first=0))
    assert not torch.equal(first.inputs, flights.features(known[0]))


def test_records_are_read_by_name(tmp_path: Path) -> None:
    for number, name in enumerate(("transfer_b", "transfer_a", "other")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"number": number}))
    assert list(read_records([], "transfer_*.json", tmp_path)) == ["transfer_a", "transfer_b"]
    with pytest.raises(FileError, match=r"missing\.json: cannot be read"):
        read_records([str(tmp_path / "missing.json")], "transfer_*.json", tmp_path)
    assert {len(row["curve"]) for row in read_json(learning_record.RECORD)["rows"]} == {16}


def test_the_tour_holds_settings_and_the_published_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = tour.Choices(followers=4, obstacles=1, seed=7, updates=2000)
    assert choices.values() == {"eval_followers": 4, "obstacles": 1, "sight": 0, "seed": 7, "updates": 2000}
    choices.obstacles.value, choices.followers.value = 3, 99
    config = configure("leader_follower_published", choices.values())
    assert (config.evaluation.followers, config.evaluation.obstacles) == (16, 3)  # type: ignore[attr-defined]
    record = read_json(ROOT / "figures" / "records" / "literature.json")["leader_follower"]
    for column, name in ((tour.MASAC, "weights"), (tour.PAPER, "paper")):  # never mixed
        assert column == pytest.approx({key: record[name][key] for key in column})
    ours = {metric.name for metric in (*LeaderFollower.metrics, *COMMON)}
    assert {key for key, _, _ in tour.ROWS} == ours - {"return"}
    table = tour.comparison(
        {"ours": {"path": {"mean": 2, "low": 1, "high": 3}}, "b": {}}, [("path", "path (px)", ".0f")]
    )
    assert table.rows == [["path (px)", "2  [1, 3]", "not published"]]
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")  # where JupyterLab starts kernels
    (tmp_path / "runs" / "tour").mkdir(parents=True)
    (tmp_path / "runs" / "tour" / "run.json").touch()
    assert (tour.free_folder("runs/tour"), tour.free_folder("")) == (tmp_path / "runs" / "tour-2", None)
