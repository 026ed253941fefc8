"""Toggles: a record of each optimization, with its values, seam, requirements, and equality of results.

With all toggles at their defaults a run is the plain reference. An unusable value falls back to that default (memory
that cannot be pinned: to pageable host memory), with one warning and an entry in the run's record.
A new toggle is one record in ``toggle_records.py``, or one call of ``register``, and the code at its seam.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import torch

from uavlab.core.cards import card, strong, table
from uavlab.core.errors import ConfigError
from uavlab.core.registry import Registry, Resume
from uavlab.core.text import one_line
from uavlab.storage.machine import cpu_flags


class Toggles:
    """An immutable value for each registered toggle, as an attribute; by default that of the plain reference.

    Raises:
        TypeError: No toggle has a given name.
    """

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

    Attributes:
        name: Name of the setting.
        kind: Type of its values: a ``Literal``, or an annotated number.
        about: One sentence on what it changes.
        seam: Where it acts: a seam of ``Runtime``, or ``build`` where another object is chosen.
        equality: Of results with the plain reference: ``exact`` (the same bits), ``rounding`` (up to rounding),
            ``single`` (up to rounding in float32), ``precision`` (up to rounding in the lower precision) or
            ``algorithm`` (another algorithm, to be compared by learning).
        claim: The gain that is commonly claimed for it.
        cost: Its disadvantages.
        default: Value of the plain reference; None stands for the first value of a ``Literal``.
        eager: Its value in the set ``eager``, the default of runs; None for ``default``.
        part: The part of an experiment without which it has no effect: ``team``, ``replay``, ``logs``,
            ``maps``, or none.
        resume: Whether a resumed run may change it.
        needs: (toggles, device) -> why its value cannot be used; None if it can.
        note: (toggles, device) -> what its value, which can be used, does other than its name says; None if nothing.
        wrap: At the seam ``kernel``: (function, value, name of the kernel) -> wrapped function. Called for values
            other than the default.
    """

    name: str
    kind: Any
    about: str
    seam: str
    equality: str
    claim: str = "none stated"
    cost: str = "none"
    default: Any = None
    eager: Any = None
    part: str = ""
    resume: Resume = Resume.NO
    needs: Needs = lambda toggles, device: None
    note: Needs = lambda toggles, device: None
    wrap: Wrap | None = None

    def __post_init__(self) -> None:
        """Use the first value of a ``Literal`` as the default if none is given."""
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
        """The values as text."""
        return ", ".join(self.choices) or "a number"


TOGGLES: Registry[Toggle] = Registry("toggle")


def register(toggle: Toggle) -> Toggle:
    """Make a toggle known to settings, commands, checks and records."""
    return TOGGLES.register(toggle.name, toggle)


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


FAST = {"bf16": {"avx512_bf16", "amx_bf16"}, "fp16": {"avx512_fp16"}}
"""Instruction sets of x86 that multiply numbers of lower precision."""


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
    """Return the toggles with some values replaced."""
    return Toggles(**{**as_dict(toggles), **values})


def as_dict(toggles: Toggles) -> dict[str, Any]:
    """Return the value of every toggle by name."""
    return {name: getattr(toggles, name) for name in TOGGLES}


def changes(toggles: Toggles) -> dict[str, Any]:
    """Return the values that differ from the plain reference."""
    return {name: value for name, value in as_dict(toggles).items() if value != TOGGLES[name].default}
