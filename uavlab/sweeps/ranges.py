"""Ranges of a search: what each setting may be, and how many trials look for the best."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le, Len

from uavlab.core.text import quote
from uavlab.experiment.validation import fields_of, problems_of, strict_model

Number = int | float


@dataclass(frozen=True)
class Search:
    """A search for the settings with the best mean score over seeds.

    Attributes:
        ranges: What each setting may be, by name, see ``Range``.
        trials: Combinations of settings that are tried.
        batch: Combinations that are proposed at a time, without the scores of each other. It is no more than the
            trials that run at once make useful, and part of the search: another batch makes other proposals.
        seed: Seed of the proposals.
    """

    ranges: Annotated[dict[str, dict[str, Any]], Len(1, 100)]
    trials: Annotated[int, Ge(1), Le(10_000)] = 20
    batch: Annotated[int, Ge(1), Le(1000)] = 4
    seed: Annotated[int, Ge(0), Le(2**31)] = 0


@dataclass(frozen=True)
class Range:
    """The values of one setting: ``low`` to ``high``, or a list.

    Attributes:
        low: The least value; a whole number makes whole numbers if ``high`` is one, too.
        high: The largest value.
        log: Whether small values are tried as often as large ones, factor by factor.
        step: Distance of neighbouring values.
        values: In place of the others, all values.
    """

    low: Number | None = None
    high: Number | None = None
    log: bool = False
    step: Number | None = None
    values: Annotated[list[str | bool | int | float | None], Len(1, 1000)] | None = None


def search_problems(search: Mapping[str, Any] | None, at: Callable[[str], str]) -> Iterator[str]:
    """Yield what is wrong with the table ``search``; ``at`` says where a key stands."""
    if search is None:
        return
    problems = problems_of(strict_model(fields_of(Search)), search)
    yield from (f"search: {problem}{at('search')}" for problem in problems)
    for name, given in search["ranges"].items() if not problems else ():
        wrong = problems_of(strict_model(fields_of(Range)), given) or _misfits(Range(**given))
        yield from (f"search.ranges.{name}: {problem}{at(f'search.ranges.{name}')}" for problem in wrong)


def _misfits(given: Range) -> list[str]:
    """Return what is wrong with a range whose parts have the right types."""
    numbers = (given.low, given.high, given.step)
    if given.values is not None:
        return ["values are all; leave out low, high, step and log"] * (
            given.log or any(n is not None for n in numbers)
        )
    if given.low is None or given.high is None:
        got = ", ".join(name for name in ("low", "high") if getattr(given, name) is not None) or "neither"
        return [f"expected low and high, or values, got {got}"]
    return [
        text
        for wrong, text in (
            (given.low >= given.high, f"expected low < high, got {quote(given.low)} and {quote(given.high)}"),
            (given.log and given.low <= 0, f"expected low > 0 with log, got {quote(given.low)}"),
            (given.log and given.step is not None, "expected log or step, got both"),
            (given.step is not None and given.step <= 0, f"expected step > 0, got {quote(given.step)}"),
        )
        if wrong
    ]
