"""Relations that must hold within a record: more work is not faster."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

TOLERANCE = 0.05  # by which more work may be faster by chance
TEAMS = (("setting", "threads"), ("ms",), ())
RELATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "env": (("agents", "worlds"), (), ("agent_steps_per_s", "compiled_agent_steps_per_s")),
    "guard": (("setting", "threads"), ("guarded_ms", "plain_ms"), ()),
    "ladder": TEAMS,
    "update": TEAMS,
}
"""By suite: what rows have in common of which a later one does more work, its times, and its rates."""


def contradictions(suite: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ``key``, and the numbers of the rows ``less`` and ``more``, wherever more work was faster."""
    same, times, rates = RELATIONS.get(suite, ((), (), ()))
    numbers = range(len(rows) if same else 0)
    pairs = [(i, j) for i, j in combinations(numbers, 2) if all(rows[i][key] == rows[j][key] for key in same)]
    gains = [(key, i, j, rows[i][key] / rows[j][key]) for i, j in pairs for key in times]
    gains += [(key, i, j, rows[j][key] / rows[i][key]) for i, j in pairs for key in rates]
    return [{"key": key, "less": i, "more": j} for key, i, j, gain in gains if gain > 1 + TOLERANCE]
