"""A report in one line of a run that trains: what moved, the highest score and where, the rate, alarms and symptoms."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uavlab.experiment.run import Run

Row = Mapping[str, Any]
STALE = 10  # scores without a better one, from which on advice is due


def progress_report(run: "Run", since: int) -> str:
    """Return the report of a run on what came after update ``since``, compared with as many updates before."""
    rows, length, config = run.recorder.rows, run.number - since, run.config
    before = [row for row in rows if since - length < row["update"] <= since]
    after = [row for row in rows if row["update"] > since]
    amount, unit = config.task.collector.pace(config)
    target = f" of {config.run.updates}" if config.run.updates else ""
    rate = f", {amount * run.number / run.seconds:,.0f} {unit}/s" if run.seconds else ""
    return "; ".join(
        [
            f"update {run.number}{target}, {run.seconds / 60:.1f} min{rate}",
            *changes(before, after, _names(run)),
            _best(run),
            *_advice(run),
            *(
                f"alarm at update {each['update']}: {each['text']}"
                for each in run.schedules.alarms
                if each["update"] > since
            ),
            *(f"symptom since update {each.update}: {each.symptom}" for each in run.symptoms),
        ]
    )


def changes(before: Sequence[Row], after: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return how the median of each metric moved from some rows to others; metrics without a value are left out.

    >>> changes([{"loss": 4.0}], [{"loss": 1.0}, {"loss": 3.0}, {"loss": 2.0}], ["loss", "kl"])
    ['loss 4 -> 2']
    """
    texts = []
    for name in names:
        old, new = ([row[name] for row in rows if name in row] for rows in (before, after))
        if new:
            texts.append(f"{name} " + (f"{median(old):.4g} -> " if old else "") + f"{median(new):.4g}")
    return texts


def _names(run: "Run") -> list[str]:
    """Return the metrics of the score, and those that the learner watches."""
    watch = run.config.task.entry.symptoms
    own = [watch.returns, watch.loss, watch.entropy.metric if watch.entropy else ""]
    return [*(f"eval/{name}" for name in run.config.evaluation.score), *filter(None, own)]


def _best(run: "Run") -> str:
    scored = [
        f"{score:.4g} at update {update}"
        for score, update in zip(run.best_score.tolist(), run.best_team.updates[:, 0].tolist(), strict=True)
        if score > float("-inf")
    ]
    stale = f", scored {run.evals_since_best} times since" if run.evals_since_best else ""
    count = sum(any(name.startswith("eval/") for name in row) for row in run.recorder.rows)
    return f"highest of {count} scores in training {', '.join(scored)}{stale}" if scored else "no score yet"


def _advice(run: "Run") -> list[str]:
    """Return what may help a run that has had no better score for long; it may as well have learned all it can."""
    if run.evals_since_best < STALE:
        return []
    settings, hyper = run.config.run, run.config.learner
    tries = [f"entropy={10 * hyper.entropy:g} to explore more"] if getattr(hyper, "entropy", 0) else []
    tries += ["plateau={} to refine by smaller steps"] if settings.plateau is None else []
    tries += ["a curriculum to begin with easier worlds"] if settings.curriculum is None else []
    return [f"if it has not converged, try {', or '.join(tries)}"] if tries else []
