"""Every optimization as a record: what it may be set to, where it acts, what it needs, and how equal its results are.

With each toggle at its default a run is the plain reference. An unusable value falls back to that default (memory
that cannot be pinned: to ordinary memory of the host), with one visible line and an entry in the run's record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
from annotated_types import Ge, Gt, Le


@dataclass(frozen=True)
class Toggles:
    """Which optimizations are on; the defaults are the plain reference.

    Attributes:
        update: How the agents' updates are computed: one after the other, with actions computed once (``cached``), with
            one backward pass too (``merged``), as stacked networks by torch.func (``vmap``) or as rows of one matrix.
        optimizers: One Adam per agent and network, or one over all of a kind.
        adam: Adam's implementation: tensor by tensor, in horizontal batches, or as one fused operator.
        acting: Actions agent by agent, or of all agents at once.
        maps: Belief maps world by world in numpy and OpenCV, or of all worlds at once where training runs, each step
            in fresh memory or (``overwritten``) in that of the step before.
        loader: Windows of logs normalised and collated one by one, read from files each time, or gathered from memory
            where training runs.
        precision: Numbers in matrix products of networks; all else stays in float32.
        scaler: How the loss is scaled where precision is fp16.
        compile: torch.compile of every kernel, and its mode.
        graph: CUDA graph of each update, or of the whole cycle around it.
        placement: Where replay lives: on the training device, or in host memory, with pinned buffers on the way or not.
        prefetch: Draw the next batch while the present one is learned; ``overlap`` steps the worlds meanwhile instead.
        priorities: Draw rows by their agents' mean or largest error instead of uniformly.
        interval: Cycles of steps gathered in a row, followed by as many rounds of updates.
        ratio: Updates per cycle of steps.
        micro_batches: Pieces that a batch is cut into, whose gradients add up.
        recompute: Compute activations a second time in the backward pass instead of keeping them.
        memory_fraction: Largest share of the device's memory that this process may take.
        threads: CPU threads per operation; more than one loses on small networks unless the cores are idle.
        deterministic: Refuse operators whose result may differ from one call to the next.
    """

    update: Literal["loop", "cached", "merged", "vmap", "batched"] = "loop"
    optimizers: Literal["many", "one"] = "many"
    adam: Literal["single", "foreach", "fused"] = "single"
    acting: Literal["loop", "batched"] = "loop"
    maps: Literal["host", "device", "overwritten"] = "host"
    loader: Literal["per_item", "stream", "device"] = "per_item"
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    scaler: Literal["conservative", "aggressive"] = "conservative"
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = "off"
    graph: Literal["off", "update", "cycle"] = "off"
    placement: Literal["device", "pinned", "host"] = "device"
    prefetch: Literal["off", "on", "overlap"] = "off"
    priorities: Literal["off", "mean", "max"] = "off"
    interval: Annotated[int, Ge(1), Le(10_000)] = 1
    ratio: Annotated[int, Ge(1), Le(1_000)] = 1
    micro_batches: Annotated[int, Ge(1), Le(10_000)] = 1
    recompute: Literal["off", "on"] = "off"
    memory_fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    threads: Annotated[int, Ge(1), Le(256)] = 1
    deterministic: Literal["off", "on"] = "off"


Needs = Callable[[Toggles, torch.device], str | None]


@dataclass(frozen=True)
class Toggle:
    """One optimization.

    Attributes:
        name: Its field in ``Toggles`` and its setting.
        seam: Where it acts: a seam of ``Runtime``, or ``build`` where another object is chosen.
        equality: ``exact`` (the same bits), ``rounding`` (the same numbers up to their last digits), ``single`` (up to
            those of float32), ``precision`` (up to the digits that the precision has) or ``algorithm`` (another
            algorithm, to be judged by learning).
        claim: What it is usually said to bring.
        cost: What it takes.
        needs: Why a value cannot be used here; None if it can.
    """

    name: str
    seam: str
    equality: str
    claim: str
    cost: str
    needs: Needs = lambda toggles, device: None

    @property
    def choices(self) -> tuple[str, ...]:
        """What it may be set to; empty where it is a number."""
        return get_args(get_type_hints(Toggles)[self.name])

    @property
    def values(self) -> str:
        """The same in words."""
        return ", ".join(self.choices) or "a number"


def _cuda(what: str, device: torch.device) -> str | None:
    return None if device.type == "cuda" else f"{what} needs a CUDA device, this run is on {device.type}"


def _precision(toggles: Toggles, device: torch.device) -> str | None:
    if toggles.precision == "tf32":
        return _cuda("tf32", device)
    return None


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
    if toggles.compile in ("reduce-overhead", "max-autotune"):
        return f"compile={toggles.compile} captures graphs of its own; use compile=default"
    return None


def _placement(toggles: Toggles, device: torch.device) -> str | None:
    if toggles.placement == "pinned" and device.type != "cuda":
        return "pinned memory speeds up copies to a CUDA device, this run is on cpu"
    return None


TOGGLES = (
    Toggle("update", "build", "rounding", "+50-80 % for caching and merging", "none: the same numbers from less work"),
    Toggle("optimizers", "grad", "exact", "fewer optimizer calls", "none"),
    Toggle("adam", "grad", "rounding", "none stated", "none"),
    Toggle("acting", "build", "rounding", "+5-15 %", "none"),
    Toggle("maps", "build", "single", "image operations on the GPU, by bilinear resizing", "none"),
    Toggle("loader", "build", "single", "x 4 to 8 for normalised and cached windows", "the flights' size in memory"),
    Toggle("precision", "kernel", "precision", "+40-100 %, half the memory", "digits; fp16 also range", _precision),
    Toggle("scaler", "grad", "precision", "none stated", "skipped steps where the scale was too large"),
    Toggle("compile", "kernel", "rounding", "+5-15 %", "seconds to minutes of warm-up", _compile),
    Toggle("graph", "update, cycle", "rounding", "none stated", "fixed shapes; a warm-up", _graph),
    Toggle("placement", "build", "exact", "none stated", "copies, where replay does not fit the device", _placement),
    Toggle("prefetch", "build", "algorithm", "+10-30 %", "a batch misses the newest rows; a second batch in memory"),
    Toggle("priorities", "build", "algorithm", "fewer samples", "0.5 ms per update on one core; two more settings"),
    Toggle("interval", "build", "algorithm", "utilisation 24 -> 79 % at 10", "older policies gather the rows"),
    Toggle("ratio", "build", "algorithm", "none stated", "more updates per row"),
    Toggle("micro_batches", "grad", "rounding", "fits larger batches", "time"),
    Toggle("recompute", "kernel", "rounding", "saves memory", "one more forward pass"),
    Toggle("memory_fraction", "scope", "exact", "none stated", "none", lambda toggles, device: _cuda("it", device)),
    Toggle("threads", "scope", "rounding", "none stated", "16 times slower beside other work, measured once"),
    Toggle("deterministic", "scope", "exact", "none stated", "slower operators on a GPU"),
)

EAGER = {
    "update": "batched",
    "optimizers": "one",
    "adam": "fused",
    "acting": "batched",
    "maps": "overwritten",
    "loader": "device",
}


def toggle_presets(device: torch.device) -> dict[str, dict[str, Any]]:
    """Give the named sets of values for a device: ``plain``, ``eager`` (what runs start from), and the fast ones."""
    cuda = device.type == "cuda"
    compiled = {**EAGER, "compile": "default"}
    low = {"precision": "bf16"} if not cuda and fast_bf16() else {}
    return {
        "plain": {},
        "eager": EAGER,
        "laptop": {**compiled, **low},
        "gpu": {**EAGER, "graph": "update"},
        "max": {**compiled, **low, **({"graph": "cycle", "precision": "bf16"} if cuda else {})},
    }


def fast_bf16() -> bool:
    """Tell whether this CPU has matrix units for bfloat16; without them it is slower than float32."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text()


def resolve(asked: Toggles, device: torch.device) -> tuple[Toggles, dict[str, str]]:
    """Replace what cannot be used on ``device`` by its default, and say why, by name."""
    plain, reasons = Toggles(), {}
    for toggle in TOGGLES:
        if getattr(asked, toggle.name) != getattr(plain, toggle.name) and (reason := toggle.needs(asked, device)):
            reasons[toggle.name] = reason
    return replace(asked, **{name: getattr(plain, name) for name in reasons}), reasons


def turned(toggles: Toggles, values: Mapping[str, Any]) -> Toggles:
    """Set some toggles."""
    return replace(toggles, **values)


def changed(toggles: Toggles) -> Mapping[str, Any]:
    """Give what differs from the plain reference."""
    return {f.name: v for f in fields(Toggles) if (v := getattr(toggles, f.name)) != f.default}
