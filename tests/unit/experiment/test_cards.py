"""The card of a run, and lines of settings and policies, hold their figures; reading them changes nothing."""

import dataclasses
from typing import Any

import pytest
import torch

import uavlab as ul
from tests.support.card_parts import facts, tables, title
from tests.support.fixtures_config import tiny, train_tiny
from uavlab.core.cards import Html
from uavlab.core.types import EnvSpec, Group
from uavlab.experiment import run_dir, run_state
from uavlab.experiment.config import configure
from uavlab.experiment.diagnostics import Finding
from uavlab.experiment.policy import TeamPolicy, TrainedPolicy
from uavlab.experiment.run import Run


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two seeds after their last update, to be read only."""
    return train_tiny(tmp_path_factory.mktemp("runs") / "pair", runs=2, seed=3)


def untrained(**changes: Any) -> Run:
    """Return a run in memory whose figures a test sets by hand."""
    return Run(tiny(**changes))


def state(run: Run) -> tuple[Any, ...]:
    """Return everything that a card must leave as it is."""
    here = {name: repr(value) for name, value in vars(run).items() if isinstance(value, str | int | float | list)}
    return run_state.digest(run), run_dir.status_record(run, ""), [*run.recorder.rows], here


class TestRun:
    def test_facts(self, pair: Run) -> None:
        page = pair._repr_html_()
        assert title(page) == "Run of leader_follower"
        assert facts(page) == {
            **{"environment": "LeaderFollower", "learner": "masac", "status": "complete", "update": "8 of 8"},
            **{"seconds": f"{pair.seconds:,.1f}", "seeds": "3 to 4", "digest": pair.digest[:12]},
            **{"device": f"cpu, {pair.parts.machine['device']}", "threads": str(torch.get_num_threads())},
            "folder": str(pair.folder),
        }

    def test_a_run_that_has_not_begun_has_no_scores(self) -> None:
        run = untrained(updates=None, minutes=2.0)
        page = run._repr_html_()
        assert tables(page) == []
        assert {"update": "0", "seconds": "0.0 of 120", "seeds": "0", "folder": "none, in memory"}.items() <= facts(
            page
        ).items()
        assert "digest" not in facts(page)

    def test_the_last_score_of_each_metric(self) -> None:
        """Scores after updates 2 and 1,500: of the first metric the later one counts, of the second the only one."""
        run = untrained(runs=2)
        run.recorder.append(
            2, 1.0, {"eval/path": 8.0, "eval/energy": 5.0}, {"eval/path": [6, 10], "eval/energy": [4, 6]}
        )
        run.recorder.append(
            1500, 2.0, {"eval/path": 3.0, "critic_loss": 1.0}, {"eval/path": [2, 4], "critic_loss": [1, 1]}
        )
        head, *rows = tables(run._repr_html_())[0]
        assert head == ["score", "mean", "over seeds", "unit", "at update"]
        assert rows == [["path", "3", "2 to 4", "px", "1,500"], ["energy", "5", "4 to 6", "", "2"]]

    def test_one_seed_has_no_spread(self) -> None:
        run = untrained()
        run.recorder.append(2, 1.0, {"eval/path": 8.0}, {"eval/path": [8.0]})
        assert tables(run._repr_html_())[0][1:] == [["path", "8", "", "px", "2"]]

    def test_reasons_fallbacks_and_symptoms(self) -> None:
        run = untrained()
        run.parts.not_exact_reasons, run.rt.fell_back["graph"] = ["update 4: cpu a -> b"], "no CUDA"
        run.symptoms = [Finding("loss_grows", 6, "the loss grew from 1 to 20")]
        page = run._repr_html_()
        for line in (
            "Not exact: update 4: cpu a -&gt; b",
            "Fell back: graph, no CUDA",
            "Symptom at update 6: the loss grew from 1 to 20",
        ):
            assert f"<p>{line}</p>" in page

    def test_reading_changes_nothing(self, pair: Run) -> None:
        before = state(pair)
        assert pair._repr_html_()
        assert all(map(repr, (pair, pair.config, pair.trained(), pair.policy(), pair.config.toggles)))
        assert state(pair) == before

    @pytest.mark.parametrize("change", ["draw", "count", "write"])
    def test_a_card_that_changes_something_is_caught(self, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def _last_scores(run: Run) -> Html:
            run.number += change == "count"
            if change == "draw":
                run.rng.normal("act", 1)
            if change == "write":
                run.recorder.rows.append({"update": 9, "seconds": 0.0})
            return Html("")

        run = untrained()
        monkeypatch.setattr(Run, "_last_scores", _last_scores)
        with pytest.raises(AssertionError):
            self.test_reading_changes_nothing(run)


class TestConfig:
    def test_the_line(self) -> None:
        assert repr(configure("leader_follower")) == "<Config of leader_follower: learner masac>"
        config = configure("leader_follower", {"hidden": 8, "seed": 2, "eval_horizon": 9})
        assert repr(config) == "<Config of leader_follower: learner masac, seed=2, hidden=8, eval_horizon=9>"

    def test_a_long_line_ends_with_a_count(self) -> None:
        """Ten settings are changed, so two are not listed."""
        names = (
            "hidden",
            "batch",
            "worlds",
            "learning_starts",
            "capacity",
            "updates",
            "log_every",
            "keep",
            "seed",
            "horizon",
        )
        assert repr(configure("leader_follower", dict.fromkeys(names, 40))).endswith(", 2 more>")

    def test_another_learner_is_no_change_of_its_own_settings(self) -> None:
        assert configure("leader_follower_quick", {"learner": "mappo"}).changed == {}
        assert repr(configure("leader_follower_quick", {"learner": "mappo"})).endswith("learner mappo>")

    def test_a_preset_that_is_gone(self) -> None:
        config = dataclasses.replace(tiny(), preset="gone", usual={})
        assert repr(config) == "<Config of gone: learner masac>"


class TestTrained:
    def test_the_line(self) -> None:
        run = untrained()
        many = TrainedPolicy(run.config, run.rt, 8, [4] * 9, torch.zeros(9, 1, 2), torch.zeros(9))
        assert repr(many) == f"<TrainedPolicy of leader_follower: 9 seed(s), updates {[4] * 9}, in memory>"


class TestTeam:
    def spec(self, **changes: Any) -> EnvSpec:
        sizes = {"agents": 3, "obs": 14, "action": 2, "horizon": 9, "dt": 1.0, "initial_noise": 1, "step_noise": 1}
        return EnvSpec(**{**sizes, "groups": (0, 0, 0), **changes})

    def team(self, spec: EnvSpec) -> TeamPolicy:
        return TeamPolicy(lambda obs, noise: obs, spec, torch.device("cpu"))

    def test_vectors(self) -> None:
        team = self.team(self.spec(parts=(Group("hunters", 2, obs=14, action=2), Group("prey", 1, obs=9, action=2))))
        assert repr(team) == "<TeamPolicy of 3 agent(s) on cpu: obs (B, 3, 14) -> (B, 3, 2) in [-1, 1]>"

    def test_moves(self) -> None:
        team = self.team(self.spec(choices=6, action=1))
        text = "features (B, 3, 14), legal (B, 3, 6) -> (B, 3) of moves 0 to 5"
        assert repr(team) == f"<TeamPolicy of 3 agent(s) on cpu: {text}>"


def test_every_object_has_a_card(pair: Run) -> None:
    shown = [pair, pair.config.toggles, ul.evaluate(pair, episodes=2)]
    assert all(each._repr_html_().startswith("<style>div.uavlab-card") for each in shown)
