"""Each part declares its settings once: types, limits, meanings, and what a resumed run may change."""

from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt

from uavlab.core.registry import Resume
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.settings import format_kind, settings_of
from uavlab.runtime.toggles import TOGGLES, Toggles


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (bool, "bool"),
        (NoneType, "null"),
        (Annotated[int, Ge(0), Le(2**31)], "int >= 0, <= 2,147,483,648"),
        (Annotated[float, Gt(0), Lt(1)] | None, "float > 0, < 1 or null"),
        (Annotated[float, "a note"], "float"),
        (Literal["auto", "cpu"], "auto, cpu"),
        (int | str, "int or str"),
        (tuple[Annotated[int, Ge(1)], ...], "list of (int >= 1)"),
    ],
)
def test_kinds(hint: Any, text: str) -> None:
    assert format_kind(hint) == text


def test_meanings_are_those_of_the_class_and_its_bases() -> None:
    @dataclass(frozen=True)
    class Windy(LeaderFollower):
        """A task with wind.

        Attributes:
            wind: Speed of the wind
                in ``px/s``: from the left.
            dt: Another step.
        """

        wind: float = 0.0

    meanings = {each.name: each.about for each in settings_of(Windy)}
    assert meanings["wind"] == "Speed of the wind in px/s: from the left."
    assert meanings["dt"] == "Another step."
    assert meanings["goal_reward"].endswith(".")


def test_toggles_declare_themselves() -> None:
    assert [each.name for each in settings_of(Toggles)] == list(TOGGLES)
    assert all(each.about.endswith(".") for each in settings_of(Toggles))


def test_a_mark_says_what_a_resumed_run_may_change() -> None:
    @dataclass(frozen=True)
    class Part:
        width: int = 8
        lr: Annotated[float, Gt(0), Resume.YES] = 0.1
        minutes: Annotated[Annotated[float, Gt(0)] | None, Resume.SAME] = None

    marks = [each.resume for each in settings_of(Part)]
    assert marks == [Resume.NO, Resume.YES, Resume.SAME]
    assert format_kind(settings_of(Part)[2].kind) == "float > 0 or null"
