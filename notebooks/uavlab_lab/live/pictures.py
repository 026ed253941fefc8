"""What a panel shows of a run, as HTML without scripts: speed, scores, stages, memory, and what changes did."""

from collections.abc import Mapping, Sequence
from typing import Any

from uavlab.core.text import markup, quote
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change
from uavlab.runtime.toggles import TOGGLES
from uavlab_lab.live.trainer import History, Trainer, rates
from uavlab_lab.live_run import draw
from uavlab_lab.plots.style import COLORS
from uavlab_lab.plots.svg import line_chart, thin
from uavlab_lab.plots.tables import Table

RECENT = 12  # samples whose stages are drawn
SMALL = 0.01  # shares that are drawn as one
USERS = ("python", "panel", "script", "resume")  # who changes settings; the rest are slices of comparisons
HEADS = ("", "update", "change", "speed, times as before", "how", "updates per second", "results")
OTHER = "other updates"
EQUAL = {
    "exact": "the same bits",
    "rounding": "equal up to rounding",
    "single": "equal up to rounding in float32",
    "precision": "equal up to the lower precision",
    "algorithm": "another algorithm",
}


def changes_of(run: Run) -> list[Change]:
    """Return the changes of a run by people and scripts, without the slices of comparisons."""
    return [each for each in run.changes if each.by in USERS]


def change_table(run: Run) -> Table:
    """Tabulate what each change did to the speed, with its interval, and what it means for results."""
    return Table(list(HEADS), [_row(number, each) for number, each in enumerate(changes_of(run), 1)])


def _row(number: int, change: Change) -> list[str]:
    what = ", ".join(f"{name} {_value(old)} → {_value(new)}" for name, (old, new) in change.settings.items())
    speed, how, rate = _measured(change.measured)
    if reason := change.undone or change.measured.get("stopped"):
        how = f"undone: {reason}" if change.undone else f"not measured: {reason}"
    classes = [EQUAL[TOGGLES[name].equality] if name in TOGGLES else OTHER for name in change.settings]
    return [str(number), f"{change.update:,}", what, speed, how, rate, "; ".join(dict.fromkeys(classes))]


def _measured(got: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return speed, how it was measured, and rates; dashes where nothing was, or a damaged file says something else."""
    try:
        how = f"{got['how']}, {got['slices']} slices" + (f"; warm-up {got['warm_up_s']:.1f} s" * (got["warm_up_s"] > 1))
        how += "".join(f"; {unit} per update x {each:g}" for unit, each in got["per_update"].items())
        speed = f"{got['ratio']:.2f} ({got['low']:.2f} to {got['high']:.2f})"
        return speed, how, f"{got['before']:.3g} → {got['after']:.3g}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return "-", "-", "-"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else quote(value)


def speed_chart(run: Run, history: History) -> str:
    """Draw updates per second over the seconds of training, with a numbered mark at every change."""
    samples = list(history.samples)
    points = rates(samples)
    marks = [
        (_seconds(samples, each.update), str(number))
        for number, each in enumerate(changes_of(run), 1)
        if each.update >= samples[0].update
    ]
    high = 1.1 * max((rate for _, rate in points), default=0.0) or 1.0
    return line_chart(
        {"": thin(points)}, "seconds of training", "updates per second", 1, (0.0, high), marks=marks, dots=False
    )


def _seconds(samples: Sequence[Any], update: int) -> float:
    """Return the seconds of training at an update, as nearly as samples say."""
    return next((each.seconds for each in samples if each.update >= update), samples[-1].seconds)


def score_chart(run: Run) -> str:
    """Draw the scores of a run, with a numbered mark at every change."""
    return draw(run, [(each.update, str(number)) for number, each in enumerate(changes_of(run), 1)], run.number or 1)


def stage_bar(history: History) -> str:
    """Draw the shares of the time by stage as one bar with a legend, and say the memory."""
    samples = list(history.samples)[-RECENT:]
    recent = [each.figures for each in samples if any(name.startswith("time/") for name in each.figures)]
    if not recent:
        return "<p>Stages and memory are read while the run trains.</p>"
    names = dict.fromkeys(name for figures in recent for name in figures if name.startswith("time/"))
    shares = {name[5:]: sum(figures.get(name, 0.0) for figures in recent) / len(recent) for name in names}
    parts = {name: share for name, share in sorted(shares.items(), key=lambda each: -each[1]) if share >= SMALL}
    rest = 1 - sum(parts.values())
    parts |= {"other": rest} if rest >= SMALL else {}
    memory = ", ".join(f"{name[7:]} {size:,.0f} MiB" for name, size in recent[-1].items() if name.startswith("memory/"))
    return f"{_bar(parts)}<p>Memory: {markup(memory)}.</p>"


def _bar(parts: Mapping[str, float]) -> str:
    pieces, legend, left = [], [], 0.0
    for number, (name, share) in enumerate(parts.items()):
        color = COLORS[number % len(COLORS)]
        pieces.append(f"<rect x='{900 * left:.1f}' width='{900 * share:.1f}' height='22' fill='{color}'/>")
        legend.append(
            f"<span style='white-space: nowrap; margin-right: 1.2em'><span aria-hidden='true' style='color: {color}'>"
            f"&#9632;</span> {markup(name)} {share:.0%}</span>"
        )
        left += share
    label = markup("time by stage: " + ", ".join(f"{name} {share:.0%}" for name, share in parts.items()))
    svg = f"<svg role='img' aria-label='{label}' viewBox='0 0 900 22' style='width: 100%' preserveAspectRatio='none'>"
    return f"{svg}{''.join(pieces)}</svg><div>{' '.join(legend)}</div>"


def status_line(trainer: Trainer) -> str:
    """Return a line on what the run is doing."""
    run, target = trainer.run, trainer.run.config.run.updates
    rate = rates(list(trainer.history.samples)[-3:])
    parts = [f"{trainer.state}, update {run.number:,}" + (f" of {target:,}" if target else "")]
    if trainer.alive and rate:
        parts.append(f"{rate[-1][1]:.3g} updates per second")
    fresh, comparison = trainer.fresh, trainer.comparison  # the thread may end them meanwhile
    if trainer.alive and fresh:
        compiles = any("compile" in run.changes[place].settings for place in fresh)
        compiles &= run.config.toggles.compile != "off"
        parts.append("compiling, which takes half a minute or more" if compiles else "changing")
    elif comparison is not None:
        slice_ = min(len(comparison.after) + 1, comparison.pairs)
        parts.append(f"measuring the last change, slice {slice_} of {comparison.pairs}")
    return "; ".join(parts)


def whole(trainer: Trainer) -> str:
    """Return all that a panel shows of a run, for a page without a kernel; JupyterLab takes no dollar for a formula."""
    run = trainer.run
    table = change_table(run)
    changes = (
        f"<div style='overflow-x: auto'>{table._repr_html_()}</div>" if table.rows else "<p>No setting changed.</p>"
    )
    name = markup(f"{run.config.preset}, {run.folder or 'in memory'}: {status_line(trainer)}")
    charts = speed_chart(run, trainer.history) + stage_bar(trainer.history) + score_chart(run)
    return f"<div class='uavlab-last mathjax_ignore'><p>{name}</p>{charts}{changes}</div>"
