"""A run with discrete actions, from its settings to its scores: stopped, resumed, exported, evaluated."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes, train_run
from uavlab import api
from uavlab.collectors import world_source
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.envs.mapping.env import Mapping
from uavlab.experiment import policy, scores
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.runtime.oom_retry import OOM_MESSAGES

UPDATES, POINTS = 8, (1, 3, 4, 7)


def mission(**changes: Any) -> Config:
    return configure("mapping", sizes("mapping"), changes)


def train_mission(folder: Path | None = None, **changes: Any) -> Run:
    return train_run(mission(**changes), folder)


@pytest.mark.parametrize("more", [{}, {"runs": 2, "maps": "host"}], ids=["plain", "two runs on host maps"])
def test_a_run_stopped_again_and_again_ends_in_the_same_bits(tmp_path: Path, more: dict[str, Any]) -> None:
    whole, folder = train_mission(updates=UPDATES, **more), tmp_path / "run"
    Run(mission(updates=UPDATES, **more), folder)
    for point in (*POINTS, UPDATES):
        run = Run.resume(folder)
        for progress in run.train():
            if progress.number == point:
                run.stop()
    assert (run.digest, run.parts.not_exact_reasons) == (whole.digest, [])
    assert whole.digest != train_mission(updates=UPDATES, **{**more, "seed": 1}).digest


def test_what_is_not_restored_is_noticed(tmp_path: Path) -> None:
    """The mutant: exploration that starts anew, because the count of updates was lost."""
    whole, folder = train_mission(updates=UPDATES), tmp_path / "run"
    train_mission(folder, updates=4)
    run = Run.resume(folder, {"updates": UPDATES})
    run.learner.count.zero_()
    for _ in run.train():
        pass
    assert run.digest != whole.digest


def test_maps_written_over_those_before_end_in_the_same_bits() -> None:
    assert train_mission(updates=6, maps="overwritten").digest == train_mission(updates=6, maps="device").digest


def test_a_look_back_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a reward that reads maps of the state before, which were overwritten."""

    def reward(self: Any, state: Any, action: Any, after: Any) -> Any:
        return (after.logits - state.logits).abs().float().mean((1, 2, 3))[:, None].expand(-1, self.uavs)

    monkeypatch.setattr(Mapping, "reward", reward)
    assert train_mission(updates=6, maps="overwritten").digest != train_mission(updates=6, maps="device").digest


def test_the_saved_policy_is_the_best_and_flies_other_teams(tmp_path: Path) -> None:
    run = train_mission(tmp_path / "run", updates=6)
    loaded = policy.load(tmp_path / "run")
    assert torch.equal(loaded.parameters, run.best)
    first = scores.evaluate(loaded, 4, 0, mean_action=False)
    assert first == scores.evaluate(loaded, 4, 0, mean_action=False)
    assert set(first) >= {"entropy", "f1", "return"}
    assert first != scores.evaluate(loaded, 4, 1, mean_action=False)
    bigger = configure("mapping", sizes("mapping"), {"uavs": 5}).env
    assert 0 <= scores.evaluate(loaded, 2, 0, mean_action=True, env=bigger)["f1"]["mean"] <= 1
    exported = policy.load(api.export(tmp_path / "run", tmp_path / "copy"))
    assert torch.equal(exported.parameters, loaded.parameters)
    states = list(policy.fly(loaded, 0))
    assert len(states) == run.config.env.spec.horizon + 1


def test_an_evaluation_on_other_maps_is_refused() -> None:
    with pytest.raises(ConfigError, match="7 channels of side 5, 0 features, 6 moves"):
        mission(eval_lattice=6)
    with pytest.raises(ConfigError, match="centred"):
        mission(eval_centred=True)


def test_a_plan_counts_in_honest_units() -> None:
    plan = mission(updates=10).task.plan(mission(updates=10))
    assert (plan["missions_per_run"], plan["world_steps_per_run"], plan["agent_steps_per_run"]) == (30, 120, 360)
    assert plan["gradient_steps_per_run"] == 10 * 2 * 2
    run = train_mission(updates=10)
    assert run.source.steps * 3 == plan["world_steps_per_run"]
    assert plan["world_bytes"] == 3 * world_source.world_bytes(run.config.env)


def test_memory_that_is_refused_is_told_and_the_batch_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = train_mission(updates=2)
    run = Run(mission(updates=2))
    assert run.learner.critic.microbatcher.pieces == 1
    real, calls = run.learner.critic_net.__class__.__call__, []

    def once(self: Any, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and theta.requires_grad and not calls:
            calls.append(1)
            raise RuntimeError(f"CUDA {OOM_MESSAGES[0]}")
        return real(self, theta, x)

    monkeypatch.setattr(run.learner.critic_net.__class__, "__call__", once)
    with pytest.warns(match="forward"):
        for _ in run.train():
            pass
    assert run.rt.retries
    assert run.learner.critic.microbatcher.pieces == 2
    torch.testing.assert_close(run.learner.critic.parameter, undisturbed.learner.critic.parameter, rtol=1e-4, atol=1e-6)


def test_signals_end_after_the_update(tmp_path: Path) -> None:
    run = Run(mission(updates=UPDATES), tmp_path / "run")
    for progress in run.train():
        if progress.number == 2:
            run.stop()
    assert os.listdir(tmp_path / "run" / "checkpoints") != []
    assert run.status == "interrupted"


def test_worlds_that_do_not_fit_are_told_before_they_are_made() -> None:
    with pytest.raises(ResourceError, match=r"worlds: .* bytes, .* are free on cpu; lower worlds or runs"):
        Run(configure("mapping", {"worlds": 1_000_000, "minibatches": 1000, "device": "cpu", "width": 1}))
