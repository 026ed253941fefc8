"""A search for settings by Optuna, the same under its seed whatever runs at once and wherever it was ended.

Proposals come in batches. Results are returned in the order of the proposals, so a search that begins again proposes
what it did before, and finds those trials complete.
"""

from collections.abc import Sequence
from typing import Any

from uavlab.core.extras import require
from uavlab.sweeps.ranges import Range
from uavlab.sweeps.spec import Sweep
from uavlab.sweeps.trials import Plan, Result, Trial


def search_trials(sweep: Sweep) -> Plan:
    """Yield batches of trials, and take their results; a proposal is trained with every preset and seed.

    Its value is the mean score. A proposal of which a trial has no score counts as failed.
    """
    require("sweep", "search", "optuna")
    import optuna

    search = sweep.ranges
    if search is None:
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=search.seed))
    kinds = {name: _distribution(optuna.distributions, Range(**each)) for name, each in search.ranges.items()}
    for begun in range(0, search.trials, search.batch):
        asked = [study.ask(kinds) for _ in range(min(search.batch, search.trials - begun))]
        batch = [_trials(sweep, _values(sweep, proposal.params)) for proposal in asked]
        results = iter((yield [trial for trials in batch for trial in trials]))
        for proposal, trials in zip(asked, batch, strict=True):
            value = _mean([next(results) for _ in trials])
            failed = optuna.trial.TrialState.FAIL
            study.tell(proposal, value, failed if value is None else None)


def _trials(sweep: Sweep, varied: dict[str, Any]) -> list[Trial]:
    settings = {**(sweep.settings or {}), **varied}
    return [Trial(preset, settings, seed, varied) for preset in sweep.presets for seed in sweep.all_seeds]


def _mean(results: Sequence[Result]) -> float | None:
    scores = [result.get("score") for result in results]
    return None if None in scores else sum(scores) / len(scores)  # type: ignore[arg-type]


def _distribution(kinds: Any, given: Range) -> Any:
    """Return the values of a setting as Optuna describes them; those of a list by their numbers."""
    if given.values is not None:
        return kinds.CategoricalDistribution(range(len(given.values)))
    numbers = [number for number in (given.low, given.high, given.step) if number is not None]
    if all(isinstance(number, int) for number in numbers):
        return kinds.IntDistribution(given.low, given.high, given.log, given.step or 1)
    return kinds.FloatDistribution(given.low, given.high, given.log, given.step)


def _values(sweep: Sweep, params: dict[str, Any]) -> dict[str, Any]:
    ranges = {name: Range(**each) for name, each in sweep.ranges.ranges.items()} if sweep.ranges else {}
    return {name: _value(ranges[name], value) for name, value in params.items()}


def _value(given: Range, proposed: Any) -> Any:
    """Return a value of a list by its number, and others in four digits, within their range."""
    if given.values is not None:
        return given.values[proposed]
    if isinstance(proposed, int) or given.low is None or given.high is None:
        return proposed
    return min(max(float(f"{proposed:.4g}"), given.low), given.high)
