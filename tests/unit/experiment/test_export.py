"""Export: the description beside a file, one agent of a team, what is refused, and that nothing is half written."""

import errno
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import uavlab
from tests.support.exported import error, inputs_of, own_outputs, trained_policy
from uavlab.core.errors import ConfigError, MissingPackageError, ResourceError
from uavlab.core.portable import Portable
from uavlab.experiment import export
from uavlab.experiment.export import PolicyModule, export_policy
from uavlab.experiment.policy import TrainedPolicy
from uavlab.learners.learner import Learner


def load(file: Path) -> Callable[..., tuple[Tensor, ...]]:
    return torch.export.load(file).module()


def with_entry(trained: TrainedPolicy, **changes: Any) -> TrainedPolicy:
    """Return a policy whose learner is registered otherwise."""
    task = trained.config.task
    members = {name: staticmethod(value) if callable(value) else value for name, value in changes.items()}
    other = type("Other", (task.algorithm,), members)
    return replace(trained, config=replace(trained.config, task=replace(task, algorithm=other)))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported team of ``shared``."""
    return export_policy(trained_policy("shared"), tmp_path_factory.mktemp("files") / "team.pt2")


def test_a_file_and_its_description(file: Path) -> None:
    trained = trained_policy("shared")
    assert sorted(path.name for path in file.parent.iterdir()) == ["team.pt2", "team.pt2.json"]
    record = json.loads(file.with_name("team.pt2.json").read_text())
    assert record["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert [each["name"] for each in record["inputs"]] == ["observations", "noise"]
    assert record["load"] == "mean, sampled = torch.export.load('team.pt2').module()(observations, noise)"
    observations, mean = record["inputs"][0], record["outputs"][0]
    assert (observations["axes"], observations["shape"]) == (["batch", "agent", "feature"], ["batch", 3, 7])
    assert (mean["name"], mean["limits"], mean["type"]) == ("mean", [-1.0, 1.0], "float32")
    assert record["team"]["groups"] == [0, 1, 1]
    origin = record["policy"]
    assert (origin["preset"], origin["learner"], origin["seed"]) == ("leader_follower", "masac", 0)
    assert origin["update"] == trained.updates[0] > 0
    assert origin["settings"] == json.loads(json.dumps(trained.config.values))
    assert record["versions"]["torch"] == torch.__version__
    # names and values of every layer: two networks of 7 inputs, 16 hidden features and 2 x 2 outputs
    state = torch.export.load(file).state_dict
    assert {name: list(value.shape) for name, value in state.items()} == record["parameters"]
    assert record["parameters"]["networks.1.layer_2.weight"] == [16, 16]
    w1 = trained.parameters[0, 1, : 7 * 16].view(7, 16)
    assert torch.equal(state["networks.1.layer_1.weight"], w1)
    assert torch.equal(state["networks.1.layer_1.bias"], trained.parameters[0, 1, 7 * 16 : 8 * 16])


def test_a_file_holds_no_path_of_this_machine(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, own = trained_policy("shared"), b"uavlab"
    assert own not in file.read_bytes()
    assert export_policy(trained, tmp_path / "again.pt2").read_bytes() == file.read_bytes()
    monkeypatch.setattr(export, "TRACES", ())
    assert own in export_policy(trained, tmp_path / "traces.pt2").read_bytes()


@pytest.mark.parametrize("name", ["not_shared", "groups"])
def test_an_agent_is_a_team_of_one(name: str, tmp_path: Path) -> None:
    trained = trained_policy(name)
    seed, agent, inputs = len(trained.parameters) - 1, 2, inputs_of(trained, 5)
    own = own_outputs(trained, inputs, seed)
    policy = load(export_policy(trained, tmp_path / "agent.pt2", seed, agent=agent))
    alone = policy(*(each[:, agent : agent + 1] for each in inputs.values()))
    for team, one in zip(own, alone, strict=True):
        assert error(team[:, agent : agent + 1], one) < 1e-5
        assert error(team[:, :1], one) > 1e-2  # another agent's network is caught
    assert json.loads((tmp_path / "agent.pt2.json").read_text())["agent"] == agent


def test_an_agent_of_a_narrower_group_keeps_its_padding(tmp_path: Path) -> None:
    trained, agent = trained_policy("uneven"), 1
    team = own_outputs(trained, inputs := inputs_of(trained, 5))
    file = export_policy(trained, tmp_path / "agent.pt2", agent=agent)
    alone = load(file)(*(each[:, agent : agent + 1] for each in inputs.values()))
    for all_actions, action in zip(team, alone, strict=True):
        assert error(all_actions[:, agent : agent + 1], action) < 1e-5
        assert (action[..., 2] == 0).all()
        assert (action[..., :2] != 0).all()
        assert (all_actions[:, 2] != 0).all()
    (part,) = json.loads((tmp_path / "agent.pt2.json").read_text())["team"]["parts"]
    assert (part["name"], part["agents"], part["action"]) == ("plane", 1, 2)


def test_each_layer_is_at_its_place() -> None:
    layers = {"layer_1": {"weight": (2, 3), "bias": (3,)}, "end": {"b": (1,), "a": (2,)}}
    rows = torch.arange(24.0).view(2, 12)
    module = PolicyModule(rows, layers, lambda theta: theta, lambda theta, x: (theta * x,))
    names = [f"networks.{n}.{part}" for n in (0, 1) for part in ("layer_1.weight", "layer_1.bias", "end.b", "end.a")]
    assert list(module.state_dict()) == names
    assert module.state_dict()["networks.1.end.b"].tolist() == [21.0]
    assert torch.equal(module(torch.ones(()))[0], rows[None])


def load_scaled(config: Any, before: Any, team: Any, theta: Tensor) -> Callable[..., Tensor]:
    """Return a policy of a user's own; checking ``theta`` at once, it cannot be traced as a function of it."""
    if not theta.isfinite().all():
        raise ValueError("not finite")

    def act(obs: Tensor, noise: Tensor | None) -> Tensor:
        mean = torch.tanh(theta[0, 0, 0] * obs[..., :2])
        return mean if noise is None else mean + noise

    return act


def load_branching(config: Any, before: Any, team: Any, theta: Tensor) -> Callable[..., Tensor]:
    act = load_scaled(config, before, team, theta)
    return lambda obs, noise: act(obs, noise) if float(obs.sum()) != 7 else act(obs, None)


def load_wide(config: Any, before: Any, team: Any, theta: Tensor) -> Callable[..., Tensor]:
    act = load_scaled(config, before, team, theta)
    return lambda obs, noise: act(obs, noise).repeat_interleave(2, -1)


def test_a_learner_of_a_users_own(tmp_path: Path) -> None:
    trained = with_entry(trained_policy("shared"), load_policy=load_scaled, portable=Portable())
    obs, noise = inputs_of(trained, 4).values()
    expected = torch.tanh(trained.parameters[0, 0, 0] * obs[..., :2])
    program = torch.export.load(export_policy(trained, tmp_path / "own.pt2"))
    assert list(program.state_dict) == ["lifted_tensor_0"]
    for output, own in zip(program.module()(obs, noise), (expected, expected + noise), strict=True):
        assert torch.allclose(output, own)


def test_an_agent_that_cannot_act_alone(tmp_path: Path) -> None:
    trained = with_entry(
        trained_policy("shared"), load_policy=load_scaled, require_same=partial(Learner.require_same.__func__, Learner)
    )
    with pytest.raises(ConfigError, match=r"trained on agents=3, groups=\(0, 1, 1\), to be used with agents=1"):
        export_policy(trained, tmp_path / "agent.pt2", agent=1)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_torch_cannot_trace(tmp_path: Path) -> None:
    trained = with_entry(trained_policy("shared"), load_policy=load_branching, portable=Portable())
    with pytest.raises(ConfigError, match=r"torch cannot export the policy of masac .*must not depend on values"):
        export_policy(trained, tmp_path / "untraced.pt2")
    assert list(tmp_path.iterdir()) == []


def test_actions_that_are_not_those_of_the_team(tmp_path: Path) -> None:
    trained = with_entry(trained_policy("shared"), load_policy=load_wide, portable=Portable())
    with pytest.raises(ConfigError, match=r"mean is torch.float32 of shape \(1, 3, 4\), expected .* \(1, 3, 2\)"):
        export_policy(trained, tmp_path / "wide.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_would_differ_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = trained_policy("shared")

    def dice(config: Any, before: Any, team: Any, theta: Tensor) -> Callable[..., Tensor]:
        return lambda obs, noise: torch.rand_like(obs[..., :2])

    def off(parameters: Tensor, *rest: Any) -> PolicyModule:
        return PolicyModule(parameters.flip(0), *rest)

    with pytest.raises(ConfigError, match="would differ from the policy by"):
        export_policy(with_entry(trained, load_policy=dice, portable=Portable()), tmp_path / "other.pt2")
    monkeypatch.setattr(export, "PolicyModule", off)
    with pytest.raises(ConfigError, match="would differ from the policy by"):
        export_policy(trained, tmp_path / "other.pt2")
    assert list(tmp_path.iterdir()) == []


class TestRefusals:
    def test_names_and_numbers(self, tmp_path: Path) -> None:
        trained, forecaster = trained_policy("shared"), trained_policy("forecaster")
        (tmp_path / "old.pt2").touch()
        (tmp_path / "new.pt2.json").touch()
        cases: list[tuple[TrainedPolicy, str, dict[str, int], str]] = [
            (trained, "team.pth", {}, r"team\.pth: expected a name that ends in \.pt2 or \.onnx"),
            (trained, "old.pt2", {}, r"old\.pt2: exists"),
            (trained, "new.pt2", {}, r"new\.pt2\.json: exists"),
            (trained, "deep/team.pt2", {}, "there is no folder"),
            (trained, "team.pt2", {"seed_index": 1}, "run 1 of 1; expected 0 to 0"),
            (trained, "team.pt2", {"agent": 3}, "agent 3 of 3; expected 0 to 2"),
            (forecaster, "team.pt2", {"agent": 0}, "a policy without a team"),
        ]
        before = sorted(tmp_path.iterdir())
        for policy, name, given, message in cases:
            with pytest.raises(ConfigError, match=message):
                export_policy(policy, tmp_path / name, **given)
        assert sorted(tmp_path.iterdir()) == before

    def test_onnx_without_its_packages(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        known = importlib.util.find_spec
        monkeypatch.setattr(
            "uavlab.core.extras.find_spec", lambda name: None if name.startswith("onnx") else known(name)
        )
        with pytest.raises(MissingPackageError, match=r"needs onnx, onnxscript, onnxruntime.*uavlab\[onnx\]"):
            export_policy(trained_policy("shared"), tmp_path / "team.onnx")
        assert list(tmp_path.iterdir()) == []

    def test_onnx_under_another_name_of_its_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(name: str) -> str:  # as where onnxruntime-gpu is installed
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", unknown)
        file = export_policy(trained_policy("shared"), tmp_path / "team.pt2")
        assert json.loads(file.with_name("team.pt2.json").read_text())["versions"] == {
            "uavlab": uavlab.__version__, "torch": torch.__version__
        }  # fmt: skip

    def test_a_full_disk_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write = Path.write_bytes

        def full(path: Path, data: bytes) -> int:
            write(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(ResourceError, match="No space left"):
            export_policy(trained_policy("shared"), tmp_path / "team.pt2")
        assert list(tmp_path.iterdir()) == []
