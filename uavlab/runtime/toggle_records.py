"""The records of the package's own toggles, in the order in which they are listed."""

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Le

from uavlab.core.registry import Resume
from uavlab.runtime.toggles import FAST, Toggle, Toggles, eager, register
from uavlab.storage.machine import cpu_flags


def _cuda(what: str, device: torch.device) -> str | None:
    return None if device.type == "cuda" else f"{what} needs a CUDA device, this run is on {device.type}"


def _precision(toggles: Toggles, device: torch.device) -> str | None:
    if toggles.precision == "tf32":
        return _cuda("tf32", device)
    return None


def _emulated(toggles: Toggles, device: torch.device) -> str | None:
    flags = cpu_flags()
    if device.type != "cpu" or toggles.precision not in FAST or "avx2" not in flags:  # not known of other processors
        return None
    slow = FAST[toggles.precision].isdisjoint(flags)
    return "this CPU has no instructions for it and emulates it; precision=fp32 is faster" if slow else None


def _scaler_note(toggles: Toggles, device: torch.device) -> str | None:
    return None if toggles.precision == "fp16" else "it has no effect but where precision=fp16"


def _mode(toggles: Toggles, device: torch.device) -> str | None:
    same = toggles.compile == "reduce-overhead"
    return "the same program as compile=default, because CUDA graphs are left to the toggle graph" if same else None


def _compile(toggles: Toggles, device: torch.device) -> str | None:
    if toggles.update != "batched":
        return f"update={toggles.update} is not written to be compiled as a whole; use update=batched"
    if toggles.precision == "fp16" or toggles.micro_batches > 1:
        return "a compiled update takes its batch whole and does not scale losses: use micro_batches=1, and not fp16"
    return None


def _graph(toggles: Toggles, device: torch.device) -> str | None:
    if reason := _cuda("a CUDA graph", device):
        return reason
    if toggles.update != "batched":
        return f"update={toggles.update} cannot be captured; use update=batched"
    if toggles.graph == "cycle" and (toggles.placement != "device" or toggles.prefetch != "off"):
        return "the cycle's graph holds replay on the device: use placement=device and prefetch=off"
    if toggles.graph == "cycle" and toggles.interval * toggles.ratio > 1:
        return "the cycle's graph is one step and one update: use interval=1 and ratio=1"
    return None


def _placement(toggles: Toggles, device: torch.device) -> str | None:
    if toggles.placement == "pinned" and device.type != "cuda":
        return "pinned memory speeds up copies to a CUDA device, this run is on cpu"
    return None


RECORDS = (
    Toggle(
        name="update",
        kind=Literal["loop", "cached", "merged", "vmap", "batched"],
        about="The update of all agents: one network and loss after the other as in the textbook (`loop`), with "
        "actions computed once (`cached`), with one backward pass too (`merged`), as stacked networks by "
        "torch.func (`vmap`) or as rows of one matrix.",
        seam="build",
        equality="rounding",
        claim="+50-80 % for caching and merging",
        cost="none: the same numbers from less work",
        eager="batched",
        part="team",
        resume=Resume.RESHAPED,
    ),
    Toggle(
        name="optimizers",
        kind=Literal["many", "one"],
        about="One Adam per agent and network, or one over all of a kind.",
        seam="grad",
        equality="exact",
        claim="fewer optimizer calls",
        eager="one",
        resume=Resume.YES,
    ),
    Toggle(
        name="adam",
        kind=Literal["single", "foreach", "fused"],
        about="Adam's implementation: torch's default (tensor by tensor on a CPU), in horizontal batches, or as one "
        "fused operator.",
        seam="grad",
        equality="rounding",
        eager="fused",
        resume=Resume.YES,
    ),
    Toggle(
        name="acting",
        kind=Literal["loop", "batched"],
        about="Actions agent by agent, or of all agents at once.",
        seam="build",
        equality="rounding",
        claim="+5-15 %",
        eager="batched",
        part="team",
        resume=Resume.YES,
    ),
    Toggle(
        name="maps",
        kind=Literal["host", "device", "overwritten"],
        about="Belief maps world by world in numpy and OpenCV, or of all worlds at once where training runs, each "
        "step in fresh memory or (`overwritten`) in that of the step before.",
        seam="build",
        equality="single",
        claim="image operations on the GPU, by bilinear resizing",
        eager="overwritten",
        part="maps",
        resume=Resume.YES,
    ),
    Toggle(
        name="loader",
        kind=Literal["per_item", "stream", "device"],
        about="Windows of logs normalised and collated one by one, read from files each time, or gathered from "
        "memory where training runs.",
        seam="build",
        equality="single",
        claim="x 4 to 8 for normalised and cached windows",
        cost="the flights' size in memory",
        eager="device",
        part="logs",
        resume=Resume.RESHAPED,
    ),
    Toggle(
        name="precision",
        kind=Literal["fp32", "tf32", "bf16", "fp16"],
        about="Numbers in matrix products of networks; all else stays in float32.",
        seam="kernel",
        equality="precision",
        claim="+40-100 %, half the memory",
        cost="digits; fp16 also range",
        resume=Resume.YES,
        needs=_precision,
        note=_emulated,
    ),
    Toggle(
        name="scaler",
        kind=Literal["conservative", "aggressive"],
        about="How the loss is scaled where precision is fp16.",
        seam="grad",
        equality="precision",
        cost="skipped steps where the scale was too large",
        resume=Resume.YES,
        note=_scaler_note,
    ),
    Toggle(
        name="compile",
        kind=Literal["off", "default", "reduce-overhead", "max-autotune"],
        about="torch.compile of every kernel, and its mode; CUDA graphs are left to `graph`, so `reduce-overhead` is "
        "`default`.",
        seam="kernel",
        equality="rounding",
        claim="+5-15 %",
        cost="seconds to minutes of warm-up",
        resume=Resume.YES,
        needs=_compile,
        note=_mode,
    ),
    Toggle(
        name="graph",
        kind=Literal["off", "update", "cycle"],
        about="CUDA graph of each update, or of the whole cycle around it.",
        seam="update, cycle",
        equality="rounding",
        cost="fixed shapes; a warm-up",
        resume=Resume.YES,
        needs=_graph,
    ),
    Toggle(
        name="placement",
        kind=Literal["device", "pinned", "host"],
        about="Where replay lives: on the training device, or in host memory, with pinned buffers on the way or not.",
        seam="build",
        equality="exact",
        cost="copies, where replay does not fit the device",
        part="replay",
        resume=Resume.YES,
        needs=_placement,
    ),
    Toggle(
        name="prefetch",
        kind=Literal["off", "on", "overlap"],
        about="Draw the next batch while the present one is learned; `overlap` steps the worlds meanwhile instead.",
        seam="build",
        equality="algorithm",
        claim="+10-30 %",
        cost="a batch misses the newest rows; a second batch in memory",
        part="replay",
        resume=Resume.RESHAPED,
    ),
    Toggle(
        name="priorities",
        kind=Literal["off", "mean", "max"],
        about="Draw rows by their agents' mean or largest error instead of uniformly.",
        seam="build",
        equality="algorithm",
        claim="fewer samples",
        cost="0.5 ms per update on one core; two more settings",
        part="replay",
        resume=Resume.RESHAPED,
    ),
    Toggle(
        name="interval",
        kind=Annotated[int, Ge(1), Le(10_000)],
        default=1,
        about="Cycles of steps gathered in a row, followed by as many rounds of updates.",
        seam="build",
        equality="algorithm",
        claim="utilisation 24 -> 79 % at 10",
        cost="older policies gather the rows",
        part="replay",
        resume=Resume.RESHAPED,
    ),
    Toggle(
        name="ratio",
        kind=Annotated[int, Ge(1), Le(1_000)],
        default=1,
        about="Updates per cycle of steps.",
        seam="build",
        equality="algorithm",
        cost="more updates per row",
        part="replay",
        resume=Resume.RESHAPED,
    ),
    Toggle(
        name="micro_batches",
        kind=Annotated[int, Ge(1), Le(10_000)],
        default=1,
        about="Pieces that a batch is cut into, whose gradients add up.",
        seam="grad",
        equality="rounding",
        claim="fits larger batches",
        cost="time",
        resume=Resume.YES,
    ),
    Toggle(
        name="recompute",
        kind=Literal["off", "on", "layers"],
        about="Compute activations a second time in the backward pass instead of storing them: those of a whole loss, "
        "or (`layers`) of one layer of attention after the other, where these are large.",
        seam="kernel, build",
        equality="rounding",
        claim="saves memory",
        cost="one more forward pass",
        resume=Resume.YES,
    ),
    Toggle(
        name="memory_fraction",
        kind=Annotated[float, Gt(0), Le(1)],
        default=1.0,
        about="Largest share of the device's memory that this process may take.",
        seam="scope",
        equality="exact",
        resume=Resume.SAME,
        needs=lambda toggles, device: _cuda("it", device),
    ),
    Toggle(
        name="threads",
        kind=Annotated[int, Ge(1), Le(256)],
        default=1,
        about="CPU threads per operation; more than one loses on small networks unless the cores are idle.",
        seam="scope",
        equality="rounding",
        cost="16 times slower beside other work, measured once",
        resume=Resume.SAME,
    ),
    Toggle(
        name="deterministic",
        kind=Literal["off", "on"],
        about="Refuse operators whose result may differ from one call to the next.",
        seam="scope",
        equality="exact",
        cost="slower operators on a GPU",
        resume=Resume.YES,
    ),
)
for record in RECORDS:
    register(record)

EAGER = eager()
"""The set ``eager`` before other packages register toggles."""
