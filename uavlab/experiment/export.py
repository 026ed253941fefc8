"""A trained policy as one file that runs without uavlab: a program of torch (``.pt2``) or a model of ONNX (``.onnx``).

Beside it, ``FILE.json`` describes inputs, outputs, parameters, the team and the origin of the policy; ``load`` is a
line of Python that runs the file. A ``.pt2`` holds each parameter by its name; the exporter to ONNX merges small
ones, in the order of the description.
"""

import hashlib
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.fx.passes.dialect.common.cse_pass import CSEPass

from uavlab.core.errors import ConfigError
from uavlab.core.extras import require
from uavlab.core.installation import VERSION
from uavlab.core.portable import Layers, Signals, with_memory
from uavlab.core.types import EnvSpec
from uavlab.experiment import policy
from uavlab.experiment.policy import TrainedPolicy
from uavlab.storage.files import atomic_write, read_json
from uavlab.storage.machine import code_digest

SUFFIXES = (".pt2", ".onnx")
ONNX = ("onnx", "onnxscript", "onnxruntime")
TRACED, CHECKED = 3, (1, 7)  # batches with which a policy is traced, and compared with its program
TOLERANCE = 1e-4  # of the largest output
TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node")  # they hold paths of this machine

Outputs = Callable[..., tuple[Tensor, ...]]
"""A function of the inputs of a policy, in order, that returns its outputs."""


class PolicyModule(nn.Module):
    """A policy as a module of its inputs, with parameters by network and layer, such as ``networks.0.layer_1.weight``.

    Weights are stored as inputs x outputs, those of a convolution as rows x columns x channels in x channels out.
    Without a layout of layers, the tensors that the policy holds become constants.
    """

    def __init__(
        self,
        parameters: Float[Tensor, "K P"],
        layers: Layers,
        load: Callable[[Float[Tensor, "1 K P"]], Any],
        call: Outputs,
    ) -> None:
        """Split parameters by layers; ``load`` returns a policy of parameters, ``call`` its outputs."""
        super().__init__()
        self.networks = nn.ModuleList(_split(row, layers) for row in parameters if layers)
        self.fixed, self.load, self.call = None if layers else load(parameters[None]), load, call

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.fixed is not None:
            return self.call(self.fixed, *inputs)
        rows = [torch.cat([part.flatten() for part in network.parameters()]) for network in self.networks]
        return self.call(self.load(torch.stack(rows)[None]), *inputs)


def _split(row: Float[Tensor, " P"], layers: Layers) -> nn.Module:
    """Return the layers of a row; no ``ParameterDict``, because it sorts its names."""
    network, start = nn.Module(), 0
    for name, parts in layers.items():
        layer = nn.Module()
        for part, shape in parts.items():
            count = math.prod(shape)
            layer.register_parameter(part, nn.Parameter(row[start : start + count].reshape(shape).clone()))
            start += count
        network.add_module(name, layer)
    return network


def export(trained: TrainedPolicy, out: Path, seed_index: int = 0, agent: int | None = None) -> Path:
    """Write a file that runs without uavlab, or a folder for ``load`` if the name has no suffix; return it."""
    if out.suffix:
        return export_policy(trained, out, seed_index, agent)
    if seed_index or agent is not None:
        raise ConfigError(f"{out}: a folder holds all seeds and agents; leave them out, or name a {SUFFIXES[0]} file.")
    return policy.export(trained, out)


def export_policy(trained: TrainedPolicy, file: Path, seed_index: int = 0, agent: int | None = None) -> Path:
    """Write the policy of one seed, for a team or for one ``agent``, to a new file, ``.pt2`` or ``.onnx``; return it.

    Its inputs are observations and noise, its outputs the mean and the sampled action, or the likeliest and the sampled
    move; of a forecaster, a window, means and standard deviations. The batch may have any size. Where agents choose
    moves in turn, the caller of one agent closes the moves to cells that others chose.
    """
    beside = file.with_name(f"{file.name}.json")
    _require_possible(trained, file, beside, seed_index)
    config, parameters = trained.config, trained.parameters[seed_index].detach().cpu()
    algorithm, before, team = config.task.algorithm, config.env.spec, config.evaluation.spec
    if agent is not None:
        before, team = _team_of_one(before, team, len(parameters), agent)
        algorithm.require_same(config.learner, before, team)
    portable = algorithm.portable
    units = portable.memory(config.learner)
    inputs, outputs = with_memory(team, units, portable.inputs(team), portable.outputs(team))

    def load(rows: Float[Tensor, "1 K P"]) -> Any:
        return algorithm.load_policy(config.learner, before, team, rows)

    def call(policy: Any, *given: Tensor) -> tuple[Tensor, ...]:
        return portable.call(policy, **dict(zip(inputs, given, strict=True)))

    policy = partial(call, load(parameters[None]))
    module = PolicyModule(parameters, portable.layers(config.learner, before), load, call)
    versions = {"uavlab": VERSION, "torch": torch.__version__}
    try:
        with _quiet(), torch.no_grad():
            program = _trace(module.requires_grad_(False), inputs)
            if file.suffix == ".onnx":
                content, run = _to_onnx(program, inputs, outputs)
                versions |= {name: import_module(name).__version__ for name in ONNX}
            else:
                buffer = io.BytesIO()
                torch.export.save(program, buffer)
                content, run = buffer.getvalue(), program.module()
            _compare(run, policy, inputs, outputs)
    except Exception as error:  # the exporters raise errors of many classes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{file}: torch cannot export the policy of {config.task.learner} ({reason}); its actions must be those of "
            "the team, its shapes and branches must not depend on values, and it must not draw noise of its own."
        ) from error
    record = {
        "file": file.name,
        "load": _loading(file, inputs, outputs),
        "sha256": hashlib.sha256(content).hexdigest(),
        "inputs": _describe(inputs),
        "outputs": _describe(outputs),
        "parameters": {name: list(part.shape) for name, part in program.state_dict.items()},
        "team": asdict(team) if isinstance(team, EnvSpec) else list(team),
        "agent": agent,
        "policy": _origin(trained, seed_index, parameters),
        "versions": versions,
    }
    with atomic_write(beside) as description, atomic_write(file) as temporary:
        description.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        temporary.write_bytes(content)
    return file


def _require_possible(trained: TrainedPolicy, file: Path, beside: Path, seed_index: int) -> None:
    """Refuse what cannot be written before anything is computed."""
    if file.suffix not in SUFFIXES:
        raise ConfigError(f"{file}: expected a name that ends in {' or '.join(SUFFIXES)}.")
    for path in (file, beside):
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path}: exists; choose a new name, or remove it first.")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}; make it first.")
    seeds = len(trained.parameters)
    if not 0 <= seed_index < seeds:
        raise ConfigError(f"export: run {seed_index} of {seeds}; expected 0 to {seeds - 1}.")
    if file.suffix == ".onnx":
        require("onnx", str(file), *ONNX)


def _team_of_one(before: Any, team: Any, networks: int, agent: int) -> tuple[EnvSpec, EnvSpec]:
    """Return the ``spec`` trained on and that of one agent, such that the agent keeps its network."""
    if not isinstance(team, EnvSpec):
        raise ConfigError(f"export: agent {agent} of a policy without a team; leave out the agent.")
    if not 0 <= agent < team.agents:
        raise ConfigError(f"export: agent {agent} of {team.agents}; expected 0 to {team.agents - 1}.")
    label = team.groups[agent]
    if networks == team.agents == before.agents != len(set(before.groups)):  # each agent has its own network
        before, label = replace(before, groups=tuple(range(networks))), agent
    parts = [replace(part, agents=1) for part in team.parts for _ in range(part.agents)]
    return before, replace(team, agents=1, groups=(label,), parts=tuple(parts[agent : agent + 1]))


def _trace(module: nn.Module, inputs: Signals) -> torch.export.ExportedProgram:
    """Export a module for batches of any size; what both outputs need is computed once."""
    example = _sample(inputs, TRACED)
    batch, dynamic = torch.export.Dim("batch"), torch.export.ShapesCollection()
    for tensor in example:
        dynamic[tensor] = {0: batch}
    first = torch.export.export(module, example, dynamic_shapes=dynamic.dynamic_shapes(module, example))
    shared = CSEPass().call(first.run_decompositions({}).module(check_guards=False)).graph_module
    shared.graph.eliminate_dead_code()
    for node in shared.graph.nodes:
        if node.target is torch.ops.aten.view.default:  # possible for the strides of the example alone
            node.target = torch.ops.aten.reshape.default
    shared.recompile()
    program = torch.export.export(shared, example, dynamic_shapes=dynamic.dynamic_shapes(shared, example))
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            node.meta = {key: value for key, value in node.meta.items() if key not in TRACES}
    return program


def _compare(run: Outputs, policy: Outputs, inputs: Signals, outputs: Signals) -> None:
    """Compare the content of a file with the policy itself, and with the description of its outputs."""
    for batch in CHECKED:
        given = _sample(inputs, batch)
        for (name, signal), own, other in zip(outputs.items(), policy(*given), run(*given), strict=True):
            if (other.shape, other.dtype) != ((batch, *signal.shape), signal.dtype):
                expected = f"{signal.dtype} of shape {(batch, *signal.shape)}"
                raise ValueError(f"{name} is {other.dtype} of shape {tuple(other.shape)}, expected {expected}")
            far = (own.double() - other.double()).abs().max() / own.double().abs().max().clamp_min(1e-6)
            if not far <= TOLERANCE:
                raise ValueError(f"the file would differ from the policy by {float(far):.1g} of its output")


def _sample(inputs: Signals, batch: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(batch)
    return tuple(signal.sample(batch, generator) for signal in inputs.values())


def _to_onnx(program: torch.export.ExportedProgram, inputs: Signals, outputs: Signals) -> tuple[bytes, Outputs]:
    from onnxruntime import InferenceSession  # late: optional

    model = torch.onnx.export(program, dynamo=True, input_names=[*inputs], output_names=[*outputs], verbose=False)
    if model is None:
        raise ValueError("the exporter returned nothing")
    content = model.model_proto.SerializeToString()
    reader = InferenceSession(content)

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        feed = {name: tensor.numpy() for name, tensor in zip(inputs, given, strict=True)}
        return tuple(torch.from_numpy(each) for each in reader.run([*outputs], feed))

    return content, run


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters, which warn about packages and functions that a policy does not use."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _describe(signals: Signals) -> list[dict[str, Any]]:
    rows = []
    for name, signal in signals.items():
        given = {key: value for key, value in vars(signal).items() if key not in ("axes", "dtype")}
        row = {"name": name, "axes": ["batch", *signal.axes], "shape": ["batch", *signal.shape]}
        rows.append({**row, "type": str(signal.dtype).removeprefix("torch."), **given})
    return rows


def _loading(file: Path, inputs: Signals, outputs: Signals) -> str:
    """Return a line that runs the file: on tensors, or with ONNX on arrays, which bear the names of the inputs."""
    run = f"torch.export.load({file.name!r}).module()({', '.join(inputs)})"
    if file.suffix == ".onnx":
        given = ", ".join(f'"{name}": {name}' for name in inputs)
        run = f"onnxruntime.InferenceSession({file.name!r}).run(None, {{{given}}})"
    return f"{', '.join(outputs)} = {run}"


def _origin(trained: TrainedPolicy, seed_index: int, parameters: Float[Tensor, "K P"]) -> dict[str, Any]:
    """Return what identifies a policy: its run, seed and update, and the digest of its parameters."""
    config, score, update = trained.config, float(trained.score[seed_index]), trained.updates[seed_index]
    path = trained.folder and trained.folder / "run.json"
    run = read_json(path) if path and path.exists() else {}
    return {
        "preset": config.preset,
        "learner": config.task.learner,
        "seed": config.run.seed + seed_index,
        "update": None if update < 0 else update,  # unknown in older runs
        "score": score if math.isfinite(score) else None,
        "parameters_sha256": hashlib.sha256(parameters.contiguous().numpy().tobytes()).hexdigest(),
        "run": {key: run[key] for key in ("digest", "status") if key in run},
        "code": code_digest(),
        "settings": config.values,
    }
