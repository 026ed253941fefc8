"""Names of external environments say where they come from, and what a run's folder must not start."""

from pathlib import Path

import pytest

from tests.support import strangers
from uavlab.core.errors import ConfigError
from uavlab.experiment.names import Origin, compose, is_external, parse_external, require_trusted


def test_the_three_forms() -> None:
    assert parse_external("gymnasium:CartPole-v1") == Origin("gymnasium:CartPole-v1", "gymnasium", "CartPole-v1")
    spread = parse_external(
        "pettingzoo:mpe2.simple_spread_v3,N=5,ratio=0.5,continuous_actions=true,mode=null,color=red"
    )
    assert (spread.kind, spread.target, spread.factory) == ("pettingzoo", "mpe2.simple_spread_v3", "parallel_env")
    assert spread.arguments == {"N": 5, "ratio": 0.5, "continuous_actions": True, "mode": None, "color": "red"}
    own = parse_external("folder/mine.py:make.one,n=2")
    assert (own.kind, own.target, own.factory, own.arguments) == ("factory", "folder/mine.py", "make.one", {"n": 2})
    assert parse_external("a.b:C").target == "a.b"
    assert is_external("a:b")
    assert not is_external("leader_follower")
    assert not is_external(3)


@pytest.mark.parametrize("name", ["gymnasium:", ":make", "mine.py:", "pettingzoo:,N=3"])
def test_other_forms_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected gymnasium:ID, pettingzoo:MODULE"):
        parse_external(name)


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ("N", "expected ARGUMENT=VALUE"),
        ("2N=1", "expected ARGUMENT=VALUE"),
        ("N=[1]", "expected a number"),
        ("N=!!x", "tag"),
    ],
)
def test_arguments_are_plain_values(pair: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_external(f"gymnasium:CartPole-v1,{pair}")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uavlab.core.extras.find_spec", lambda name: None if name == "pettingzoo" else object())
    with pytest.raises(
        ConfigError.__mro__[1], match=r'needs pettingzoo, not installed; pip install "uavlab\[external\]"'
    ):
        parse_external("pettingzoo:mpe2.simple_spread_v3")
    assert parse_external("gymnasium:CartPole-v1").kind == "gymnasium"


def test_names_are_composed_from_arguments_and_functions() -> None:
    name = compose("gymnasium:Some-v1", {"deep": True, "size": 3, "mode": None})
    assert name == "gymnasium:Some-v1,deep=true,size=3,mode=null"
    assert parse_external(name).arguments == {"deep": True, "size": 3, "mode": None}
    assert compose(strangers.Hill, {}) == "tests.support.strangers:Hill"
    for target, arguments in [(lambda: None, {}), ("leader_follower", {}), ("a:b", {"x": "1,2"})]:
        with pytest.raises(ConfigError, match=r"^external: "):
            compose(target, arguments)  # type: ignore[arg-type]


def test_a_folder_starts_no_code_but_that_of_installed_environments() -> None:
    for name in ("gymnasium:CartPole-v1", "pettingzoo:mpe2.simple_spread_v3"):
        require_trusted(Path("run"), name)
    for name in ("os:system,command=ls", "mine.py:make", "pettingzoo:tests.support.strangers", "gymnasium:os:X-v1"):
        with pytest.raises(ConfigError, match="must not start by itself; if you trust it"):
            require_trusted(Path("run"), name)
