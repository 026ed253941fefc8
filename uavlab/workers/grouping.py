"""Groups of equal agents: which share networks, by their names and the sizes of their spaces."""

import re
from collections.abc import Mapping
from typing import Literal

Grouping = Literal["names", "all", "each"]
NUMBER = re.compile(r"[\W_]*\d+(?:(?:st|nd|rd|th)(?![a-z]))?", re.I)
PARTS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")
ALONE = "agent"  # name of the agent of a Gymnasium environment, and of agents whose names tell them apart alone


def stem_of(name: str) -> str:
    """Return a name without what counts: its numbers, or where it has none, single letters; empty if nothing is left.

    A name that does not count, such as ``alice``, only tells an agent from others: nothing is left of it either.

    >>> [stem_of(name) for name in ("uav_3", "uav1_blue", "1st_uav", "uav_b", "uavB", "7", "alice", "red_a_1")]
    ['uav', 'uav_blue', 'uav', 'uav', 'uav', '', '', 'red_a']
    """
    if (stem := NUMBER.sub("", name)) == name:
        parts = PARTS.split(name)
        rest = [part for part in parts if len(part) > 1]
        stem = "_".join(rest) if len(rest) < len(parts) else ""
    return re.sub(r"^[\W_]+|[\W_]+$", "", stem)


def groups_by_name(sizes: Mapping[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """Return agents by group: those whose names have one stem, and whose spaces have equal sizes."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, size in sizes.items():
        groups.setdefault((stem_of(name), size), []).append(name)
    labels = {members[0]: stem or (members[0] if len(members) == 1 else ALONE) for (stem, _), members in groups.items()}
    unique = len({*labels.values()}) == len(labels)  # or else the first agent of each group names it
    return {labels[members[0]] if unique else members[0]: members for members in groups.values()}
