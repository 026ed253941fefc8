"""Groups of equal agents: which share networks, by their names and the sizes of their spaces."""

import re
from collections.abc import Mapping
from typing import Literal

Grouping = Literal["names", "all", "each"]
NUMBER = re.compile(r"[\W_]*\d+(?:(?:st|nd|rd|th)(?![a-z]))?", re.I)
PARTS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")
WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve "
    "first second third fourth fifth sixth seventh eighth ninth tenth ii iii iv vi vii viii ix "
    "alpha beta gamma delta epsilon zeta eta theta alfa bravo charlie echo foxtrot golf hotel india juliett kilo lima "
    "mike november oscar papa quebec romeo sierra tango uniform victor whiskey xray yankee zulu"
)  # by which names count
ALONE = "agent"  # name of the agent of a Gymnasium environment, and of agents whose names count alone


def stem_of(name: str) -> str:
    """Return a name without what counts: its numbers, or where it has none, single letters and words that count.

    >>> [stem_of(name) for name in ("uav_3", "uav1_blue", "1st_uav", "uav_b", "uavB", "7", "alpha", "red_a_1")]
    ['uav', 'uav_blue', 'uav', 'uav', 'uav', 'agent', 'agent', 'red_a']
    """
    if (stem := NUMBER.sub("", name)) == name:
        parts = PARTS.split(name)
        rest = [part for part in parts if len(part) > 1 and part.lower() not in WORDS.split()]
        stem = name if len(rest) == len(parts) else "_".join(rest)
    return re.sub(r"^[\W_]+|[\W_]+$", "", stem) or ALONE


def groups_by_name(sizes: Mapping[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """Return agents by group: those whose names have one stem, and whose spaces have equal sizes."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, size in sizes.items():
        groups.setdefault((stem_of(name), size), []).append(name)
    stems = [stem for stem, _ in groups]
    return {members[0] if stems.count(key[0]) > 1 else key[0]: members for key, members in groups.items()}
