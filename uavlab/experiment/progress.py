"""What a run yields after each update."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """State of a run after an update."""

    number: int  # updates so far
    target: int | None  # updates at which the run ends, if it has such a target
    seconds: float  # of training so far
    metrics: dict[str, float] | None = None  # means over seeds, at updates that are logged
    score: dict[str, float] | None = None  # means over seeds, at updates that are evaluated
    each: dict[str, list[float]] | None = None  # figures of each seed, at updates that are evaluated
