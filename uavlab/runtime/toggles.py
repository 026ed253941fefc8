"""Toggles: a record of each optimization, with its values, seam, requirements, and equality of results.

With all toggles at their defaults a run is the plain reference. An unusable value falls back to that default (memory
that cannot be pinned: to pageable host memory), with one warning and an entry in the run's record.
A new toggle is one record in ``RECORDS``, or one call of ``register``, and the code at its seam.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_origin

import torch
from annotated_types import Ge, Gt, Le

from uavlab.core.cards import card, strong, table
from uavlab.core.errors import ConfigError
from uavlab.core.registry import Registry, Resume
from uavlab.core.text import one_line
from uavlab.storage.machine import cpu_flags


class Toggles:
    """An immutable value for each registered toggle, as an attribute; by default that of the plain reference."""

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - TOGGLES.keys():
            raise TypeError(f"Toggles: no toggle {min(unknown)!r}; expected some of {', '.join(TOGGLES)}.")
        vars(self).update({name: values.get(name, toggle.default) for name, toggle in TOGGLES.items()})

    def __getattr__(self, name: str) -> Any:
        """Return the default of a toggle that was registered after this object was built."""
        if name in TOGGLES:
            return TOGGLES[name].default
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Toggles are immutable; use with_toggles(toggles, {{{name!r}: {value!r}}}).")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Toggles) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).items()))

    def __repr__(self) -> str:
        return one_line(f"Toggles({', '.join(f'{k}={v!r}' for k, v in changes(self).items())})")

    def _repr_html_(self) -> str:
        changed, rows = changes(self), []
        for name, value in as_dict(self).items():
            mark, toggle = strong if name in changed else str, TOGGLES[name]
            rows.append((mark(name), mark(value), toggle.default, toggle.equality, toggle.claim))
        facts = {"toggles": len(rows), "unlike the plain reference": f"{len(changed)}, in bold"}
        return card("Toggles", facts, table(("toggle", "value", "default", "equality", "claim"), rows))


Needs = Callable[[Toggles, torch.device], str | None]
Wrap = Callable[[Callable[..., Any], Any, str], Callable[..., Any]]


@dataclass(frozen=True)
class Toggle:
    """One optimization.

    Results are equal to those of the plain reference to the bit (``exact``), up to ``rounding``, up to rounding in
    float32 (``single``) or in the lower ``precision``, or they are of another ``algorithm``, compared by learning.
    """

    name: str
    kind: Any  # type of its values: a ``Literal``, or an annotated number
    about: str
    seam: str  # where it acts: a seam of ``Runtime``, or ``build`` where another object is chosen
    equality: str
    claim: str = "none stated"  # the gain that is commonly claimed for it
    cost: str = "none"
    default: Any = None  # value of the plain reference; None stands for the first value of a ``Literal``
    eager: Any = None  # its value in the set ``eager``, the default of runs; None for ``default``
    part: str = ""  # of an experiment, without which it has no effect: team, replay, logs, maps, or none
    resume: Resume = Resume.NO
    needs: Needs = lambda toggles, device: None  # (toggles, device) -> why its value cannot be used; None if it can
    note: Needs = lambda toggles, device: None  # the same -> what a usable value does other than its name says
    wrap: Wrap | None = None  # at the seam ``kernel``, for values other than the default

    def __post_init__(self) -> None:
        if self.default is None:
            if get_origin(self.kind) is not Literal:
                raise ConfigError(f"toggle {self.name!r}: a number without a default; add default=.")
            object.__setattr__(self, "default", get_args(self.kind)[0])

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a toggle that is not a number; empty for a number."""
        return get_args(self.kind) if isinstance(self.default, str) else ()

    @property
    def values(self) -> str:
        return ", ".join(self.choices) or "a number"


TOGGLES: Registry[Toggle] = Registry("toggle")


def register(toggle: Toggle) -> Toggle:
    """Make a toggle known to settings, commands, checks and records."""
    return TOGGLES.register(toggle.name, toggle)


def resolve(toggles: Toggles, device: torch.device) -> tuple[Toggles, dict[str, str]]:
    """Replace values that cannot be used on ``device`` by their defaults; also return the reasons by name."""
    reasons = {name: TOGGLES[name].needs(toggles, device) for name in changes(toggles)}
    unusable = {name: reason for name, reason in reasons.items() if reason}
    return with_toggles(toggles, {name: TOGGLES[name].default for name in unusable}), unusable


def notes_on(toggles: Toggles, device: torch.device) -> dict[str, str]:
    """Return what values other than their defaults do other than their names say, by name of the toggle."""
    texts = {name: TOGGLES[name].note(toggles, device) for name in changes(toggles)}
    return {name: text for name, text in texts.items() if text}


def with_toggles(toggles: Toggles, values: Mapping[str, Any]) -> Toggles:
    return Toggles(**{**as_dict(toggles), **values})


def as_dict(toggles: Toggles) -> dict[str, Any]:
    return {name: getattr(toggles, name) for name in TOGGLES}


def changes(toggles: Toggles) -> dict[str, Any]:
    """Return the values that differ from the plain reference."""
    return {name: value for name, value in as_dict(toggles).items() if value != TOGGLES[name].default}


FAST = {"bf16": {"avx512_bf16", "amx_bf16"}, "fp16": {"avx512_fp16"}}
"""Instruction sets of x86 that multiply numbers of lower precision."""


def _cuda(what: str, device: torch.device) -> str | None:
    return None if device.type == "cuda" else f"{what} needs a CUDA device, this run is on {device.type}"


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
    useless = toggles.placement == "pinned" and device.type != "cuda"
    return "pinned memory speeds up copies to a CUDA device, this run is on cpu" if useless else None


_toggle = partial(Toggle, resume=Resume.YES)  # those that a resumed run may change
RECORDS = (
    _toggle(
        name="update",
        resume=Resume.RESHAPED,
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
    ),
    _toggle(
        name="optimizers",
        kind=Literal["many", "one"],
        about="One Adam per agent and network, or one over all of a kind.",
        seam="grad",
        equality="exact",
        claim="fewer optimizer calls",
        eager="one",
    ),
    _toggle(
        name="adam",
        kind=Literal["single", "foreach", "fused"],
        about="Adam's implementation: torch's default (tensor by tensor on a CPU), in horizontal batches, or as one "
        "fused operator.",
        seam="grad",
        equality="rounding",
        eager="fused",
    ),
    _toggle(
        name="acting",
        kind=Literal["loop", "batched"],
        about="Actions agent by agent, or of all agents at once.",
        seam="build",
        equality="rounding",
        claim="+5-15 %",
        eager="batched",
        part="team",
    ),
    _toggle(
        name="maps",
        kind=Literal["host", "device", "overwritten"],
        about="Belief maps world by world in numpy and OpenCV, or of all worlds at once where training runs, each "
        "step in fresh memory or (`overwritten`) in that of the step before.",
        seam="build",
        equality="single",
        claim="image operations on the GPU, by bilinear resizing",
        eager="overwritten",
        part="maps",
    ),
    _toggle(
        name="loader",
        resume=Resume.RESHAPED,
        kind=Literal["per_item", "stream", "device"],
        about="Windows of logs normalised and collated one by one, read from files each time, or gathered from "
        "memory where training runs.",
        seam="build",
        equality="single",
        claim="x 4 to 8 for normalised and cached windows",
        cost="the flights' size in memory",
        eager="device",
        part="logs",
    ),
    _toggle(
        name="precision",
        kind=Literal["fp32", "tf32", "bf16", "fp16"],
        about="Numbers in matrix products of networks; all else stays in float32.",
        seam="kernel",
        equality="precision",
        claim="+40-100 %, half the memory",
        cost="digits; fp16 also range",
        needs=lambda toggles, device: _cuda("tf32", device) if toggles.precision == "tf32" else None,
        note=_emulated,
    ),
    _toggle(
        name="scaler",
        kind=Literal["conservative", "aggressive"],
        about="How the loss is scaled where precision is fp16.",
        seam="grad",
        equality="precision",
        cost="skipped steps where the scale was too large",
        note=_scaler_note,
    ),
    _toggle(
        name="compile",
        kind=Literal["off", "default", "reduce-overhead", "max-autotune"],
        about="torch.compile of every kernel, and its mode; CUDA graphs are left to `graph`, so `reduce-overhead` is "
        "`default`.",
        seam="kernel",
        equality="rounding",
        claim="+5-15 %",
        cost="seconds to minutes of warm-up",
        needs=_compile,
        note=_mode,
    ),
    _toggle(
        name="graph",
        kind=Literal["off", "update", "cycle"],
        about="CUDA graph of each update, or of the whole cycle around it.",
        seam="update, cycle",
        equality="rounding",
        cost="fixed shapes; a warm-up",
        needs=_graph,
    ),
    _toggle(
        name="placement",
        kind=Literal["device", "pinned", "host"],
        about="Where replay lives: on the training device, or in host memory, with pinned buffers on the way or not.",
        seam="build",
        equality="exact",
        cost="copies, where replay does not fit the device",
        part="replay",
        needs=_placement,
    ),
    _toggle(
        name="prefetch",
        resume=Resume.RESHAPED,
        kind=Literal["off", "on", "overlap"],
        about="Draw the next batch while the present one is learned; `overlap` steps the worlds meanwhile instead.",
        seam="build",
        equality="algorithm",
        claim="+10-30 %",
        cost="a batch misses the newest rows; a second batch in memory",
        part="replay",
    ),
    _toggle(
        name="priorities",
        resume=Resume.RESHAPED,
        kind=Literal["off", "mean", "max"],
        about="Draw rows by their agents' mean or largest error instead of uniformly.",
        seam="build",
        equality="algorithm",
        claim="fewer samples",
        cost="0.5 ms per update on one core; two more settings",
        part="replay",
    ),
    _toggle(
        name="interval",
        resume=Resume.RESHAPED,
        kind=Annotated[int, Ge(1), Le(10_000)],
        default=1,
        about="Cycles of steps gathered in a row, followed by as many rounds of updates.",
        seam="build",
        equality="algorithm",
        claim="utilisation 24 -> 79 % at 10",
        cost="older policies gather the rows",
        part="replay",
    ),
    _toggle(
        name="ratio",
        resume=Resume.RESHAPED,
        kind=Annotated[int, Ge(1), Le(1_000)],
        default=1,
        about="Updates per cycle of steps.",
        seam="build",
        equality="algorithm",
        cost="more updates per row",
        part="replay",
    ),
    _toggle(
        name="micro_batches",
        kind=Annotated[int, Ge(1), Le(10_000)],
        default=1,
        about="Pieces that a batch is cut into, whose gradients add up.",
        seam="grad",
        equality="rounding",
        claim="fits larger batches",
        cost="time",
    ),
    _toggle(
        name="recompute",
        kind=Literal["off", "on", "layers"],
        about="Compute activations a second time in the backward pass instead of storing them: those of a whole loss, "
        "or (`layers`) of one layer of attention after the other, where these are large.",
        seam="kernel, build",
        equality="rounding",
        claim="saves memory",
        cost="one more forward pass",
    ),
    _toggle(
        name="memory_fraction",
        kind=Annotated[float, Gt(0), Le(1)],
        default=1.0,
        about="Largest share of the device's memory that this process may take.",
        seam="scope",
        equality="exact",
        resume=Resume.SAME,
        needs=lambda toggles, device: _cuda("it", device),
    ),
    _toggle(
        name="threads",
        kind=Annotated[int, Ge(1), Le(256)],
        default=1,
        about="CPU threads per operation; more than one loses on small networks unless the cores are idle.",
        seam="scope",
        equality="rounding",
        cost="16 times slower beside other work, measured once",
        resume=Resume.SAME,
    ),
    _toggle(
        name="deterministic",
        kind=Literal["off", "on"],
        about="Refuse operators whose result may differ from one call to the next.",
        seam="scope",
        equality="exact",
        cost="slower operators on a GPU",
    ),
)
for record in RECORDS:
    register(record)


def eager() -> dict[str, Any]:
    """Return the values of the set ``eager``: no warm-up, and the results of the plain reference up to rounding."""
    return {name: toggle.eager for name, toggle in TOGGLES.items() if toggle.eager is not None}


def toggle_presets(device: torch.device) -> dict[str, dict[str, Any]]:
    """Return the named sets of values for a device: ``plain``, ``eager`` (the default of runs), and faster ones."""
    cuda = device.type == "cuda"
    compiled = {**eager(), "compile": "default"}
    low = {"precision": "bf16"} if not cuda and fast_bf16() else {}
    return {
        "plain": {},
        "eager": eager(),
        "laptop": {**compiled, **low},
        "gpu": {**eager(), "graph": "update"},
        "max": {**compiled, **low, **({"graph": "cycle", "precision": "bf16"} if cuda else {})},
    }


def fast_bf16() -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware; emulated, it is slower than float32.

    On a Zen 4, which has ``avx512_bf16`` alone, updates of 2, 4 and 8 agents are 1.22, 1.29 and 1.32 times as fast with
    it, and 1.46, 1.51 and 1.50 times where both are compiled (``figures/records/bench_ladder.json``).
    """
    return not FAST["bf16"].isdisjoint(cpu_flags())


EAGER = eager()
"""The set ``eager`` before other packages register toggles."""
