"""Exported policies run in a process without uavlab, and return there what the policy itself returns."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.contracts.test_learners import LEARNERS, small
from tests.support.exported import CONFIGS, error, inputs_of, observations, own_outputs, trained_policy
from uavlab.experiment.export import export_policy
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.run import Run
from uavlab.learners.coma import networks
from uavlab.learners.masac import masac
from uavlab.nets.mlp import StackedMLP
from uavlab.ops.action_sampling import masked_policy, open_moves_in_turn
from uavlab.telemetry.forecaster import Forecast

pytest.importorskip("onnxruntime")
RUN = Path(__file__).parents[1] / "support" / "run_exported.py"
TOLERANCE = 1e-5  # of the largest output
MARGIN = 1e-4  # of the two best probabilities
Break = Callable[[pytest.MonkeyPatch], None]
Results = Iterator[tuple[int, str, list[Tensor]]]


def run_elsewhere(folder: Path, batches: dict[int, dict[str, Tensor]], files: list[Path]) -> Results:
    """Run files in a process of their own; yield batch, suffix of the file, and outputs."""
    for name in ("given", "results"):
        (folder / name).mkdir()
    for batch, inputs in batches.items():
        arrays = {name: each.numpy() for name, each in inputs.items()}
        np.savez(folder / "given" / f"{batch}.npz", allow_pickle=False, **arrays)
    words = [sys.executable, "-I", str(RUN), str(folder), *map(str, files)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for batch in batches:
        outputs = np.load(folder / "results" / f"{batch}.npz", allow_pickle=False)
        for file in files:
            names = [name for name in outputs if name.startswith(file.suffix[1:])]
            yield batch, file.suffix, [torch.from_numpy(outputs[name]) for name in names]


def clear_moves(trained: TrainedPolicy, inputs: dict[str, Tensor], moves: list[Tensor]) -> list[Tensor]:
    """Mark the moves that rounding cannot change: those of agents up to the first doubtful choice of a team."""
    net, _ = networks(trained.config.learner, trained.config.env.spec)
    obs = observations(inputs)
    logits = net(trained.parameters[:1, 0], obs.maps.flatten(1, 2)).view(obs.legal.shape)
    clear = []
    for n, action in enumerate(moves):
        chance = masked_policy(logits, open_moves_in_turn(obs.legal, obs.target_cell, action[None]), 0.0)[0]
        if n == 0:
            best = chance.topk(2).values
            sure = best[..., 0] - best[..., 1] > MARGIN
        else:
            sure = ((chance.cumsum(-1) - inputs["noise"][..., None]).abs() > MARGIN).all(-1)
        clear.append(sure.cumprod(-1).bool())
    return clear


@pytest.mark.parametrize("name", CONFIGS)
def test_files_return_what_the_policy_does(name: str, tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    trained = trained_policy(name)
    files = [export_policy(trained, tmp_path / f"policy{suffix}") for suffix in (".pt2", ".onnx")]
    assert not [file for file in files if b"uavlab" in file.read_bytes()]
    worst, moves = 0.0, 0
    batches = {batch: inputs_of(trained, batch) for batch in (1, 1000)}
    for batch, suffix, outputs in run_elsewhere(tmp_path, batches, files):
        own = own_outputs(trained, batches[batch])
        if name == "moves":
            for mine, theirs, clear in zip(own, outputs, clear_moves(trained, batches[batch], own), strict=True):
                assert clear.double().mean() > 0.9 or batch == 1
                assert torch.equal(mine[clear], theirs[clear]), suffix
                moves += int(clear.sum())
        else:
            worst = max(worst, *(error(mine, theirs) for mine, theirs in zip(own, outputs, strict=True)))
            assert worst < TOLERANCE, suffix
    figure = f"{moves:,} moves equal" if moves else f"difference at most {worst:.1g} of the largest output"
    proof(f"an exported policy runs without uavlab ({name})", f"{figure}, batches of 1 and 1000, torch and onnxruntime")


def test_a_memory_is_an_input_and_an_output(tmp_path: Path) -> None:
    """The memory that a file returns is that of the next step; an agent alone has its own."""
    trained = trained_policy("memory")
    file = export_policy(trained, tmp_path / "team.pt2")
    record = json.loads(file.with_name("team.pt2.json").read_text())
    assert [each["name"] for each in record["inputs"]] == ["observations", "noise", "memory"]
    assert [each["name"] for each in record["outputs"]] == ["mean", "sampled", "next_memory"]
    assert record["inputs"][2]["shape"] == ["batch", 3, 6]
    assert record["parameters"]["networks.0.layer_4.weight"] == [6, 18]
    run, act = torch.export.load(file).module(), trained.policy()
    obs, noise, _ = inputs_of(trained, 4).values()
    memory, own = torch.zeros(4, 3, 6), act.start(4)
    for _ in range(3):
        mean, _, memory = run(obs, noise, memory)
        action, own = act.step(obs, own)
        assert error(action, mean) < 1e-5
        assert error(own, memory) < 1e-5
    assert error(act.step(obs, act.start(4))[0], mean) > 1e-2
    alone = torch.export.load(export_policy(trained, tmp_path / "agent.pt2", agent=1)).module()
    team, one = run(obs, noise, memory), alone(obs[:, 1:2], noise[:, 1:2], memory[:, 1:2])
    assert all(error(whole[:, 1:2], part) < 1e-5 for whole, part in zip(team, one, strict=True))


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_policy_leaves_as_a_file_for_any_batch(tmp_path: Path, learner: str) -> None:
    """``export_policy`` compares the file with the policy before it writes."""
    trained = Run(small(learner)).trained()
    policy = torch.export.load(export_policy(trained, tmp_path / "policy.pt2")).module()
    portable, spec = trained.config.task.algorithm.portable, trained.config.evaluation.spec
    for batch in (1, 5):
        inputs = [signal.sample(batch, torch.Generator()) for signal in portable.inputs(spec).values()]
        for output, signal in zip(policy(*inputs), portable.outputs(spec).values(), strict=True):
            assert (output.shape, output.dtype) == ((batch, *signal.shape), signal.dtype)


def no_tanh(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "tanh", torch.clone)


def no_layer_norm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.nn.functional, "layer_norm", lambda x, shape: x)


def no_relu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tensor, "relu", Tensor.clone)


def no_hidden_layer(patch: pytest.MonkeyPatch) -> None:
    inner = StackedMLP.unpack

    def unpack(net: StackedMLP, theta: Tensor) -> list[Tensor]:
        w1, b1, w2, *rest = inner(net, theta)
        return [w1, b1, torch.zeros_like(w2), *rest]

    patch.setattr(StackedMLP, "unpack", unpack)


def raw_windows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Forecast, "__call__", lambda forecast, windows: forecast.function(windows))


def no_padding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(masac, "padded_actions", lambda spec, device: None)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("shared", no_tanh),
        ("shared", no_layer_norm),
        ("not_shared", no_hidden_layer),
        ("moves", no_relu),
        ("forecaster", raw_windows),
        ("uneven", no_padding),
    ],
)
def test_a_broken_file_is_caught(name: str, damage: Break, tmp_path: Path) -> None:
    trained, inputs = trained_policy(name), inputs_of(trained_policy(name), 100)
    own = own_outputs(trained, inputs)
    with pytest.MonkeyPatch.context() as patch:
        damage(patch)
        file = export_policy(trained, tmp_path / "broken.pt2")
    outputs = torch.export.load(file).module()(*inputs.values())
    if name == "moves":
        clear = clear_moves(trained, inputs, own)
        assert any(not torch.equal(a[c], b[c]) for a, b, c in zip(own, outputs, clear, strict=True))
    else:
        assert error(own[0], outputs[0]) > 100 * TOLERANCE


def test_the_first_agent_chooses_the_same_moves_alone(tmp_path: Path) -> None:
    trained, inputs = trained_policy("moves"), inputs_of(trained_policy("moves"), 100)
    own = own_outputs(trained, inputs)
    policy = torch.export.load(export_policy(trained, tmp_path / "first.pt2", agent=0)).module()
    parts = [each if name == "team" else each[:, :1] for name, each in inputs.items()]
    alone = policy(*parts)
    strided = policy(*(each.movedim(0, -1).contiguous().movedim(-1, 0) for each in parts))
    assert all(torch.equal(one, other) for one, other in zip(alone, strided, strict=True))
    for mine, theirs, clear in zip(own, alone, clear_moves(trained, inputs, own), strict=True):
        first = clear[:, 0]
        assert torch.equal(mine[first, 0], theirs[first, 0])
