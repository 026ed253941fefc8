"""The lock holds every package that a supported platform needs, and is made anew only where a pin changed."""

import re
from pathlib import Path
from typing import Any

import pytest

from tools import lock

LINUX, *_, MAC = lock.platforms()
REQUIRES = {
    "a": ['b[fast]>=1; python_version < "3.13"', 'mac_only; sys_platform == "darwin"', 'extra-one; extra == "more"'],
    "b": ['c; extra == "fast"', 'd; extra == "slow"', "A"],
    "c": ["nvidia-cublas", "torch"],
}
PINS = lock.pins((lock.ROOT / "constraints.txt").read_text())
HELD = list(lock.locked(lock.LOCK.read_text()))
INSTALLED = lock.installed(PINS)


@pytest.mark.parametrize("python", lock.PYTHONS)
@pytest.mark.parametrize("platform", lock.platforms(), ids=lambda each: each.tags[0])
def test_the_lock_holds_what_every_platform_needs(platform: lock.Platform, python: str) -> None:
    """By the requirements of the packages that are installed here."""
    environment = platform.environment(python)
    assert lock.lacking(HELD, lock.roots(), INSTALLED, environment) == []
    fewer = [each for each in HELD if not each.startswith(("numpy==", "sympy=="))]
    assert lock.lacking(fewer, lock.roots(), INSTALLED, environment) == ["numpy", "sympy"]


def test_every_pin_but_torch_is_locked_by_digests() -> None:
    assert [each for each in PINS if each not in HELD] == [pin for pin in PINS if pin.startswith("torch==")]
    assert sorted(HELD, key=str.lower) == HELD
    digests = lock.locked(lock.LOCK.read_text()).values()
    assert all(each and all(re.fullmatch("[0-9a-f]{64}", own) for own in each) for each in digests)


@pytest.mark.parametrize(
    ("platform", "python", "names"),
    [
        (LINUX, "3.12.0", {"a", "b", "c", "nvidia-cublas", "torch"}),
        (LINUX, "3.13.0", {"a"}),
        (MAC, "3.13.0", {"a", "mac-only"}),
    ],
)
def test_markers_and_extras_decide(platform: lock.Platform, python: str, names: set[str]) -> None:
    environment = platform.environment(python)
    assert lock.needed(["A>=0"], REQUIRES, environment) == names
    assert lock.needed(["a[more]"], REQUIRES, environment) == names | {"extra-one"}
    assert lock.lacking([], ["a"], REQUIRES, environment) == sorted(names - {"nvidia-cublas", "torch"})
    pinned = ["A==1", "b==1", 'c==1; python_version == "3.12"', 'mac_only==2; platform_system == "Darwin"']
    assert lock.lacking(pinned, ["a"], REQUIRES, environment) == []
    assert lock.lacking(pinned[:-1], ["a"], REQUIRES, environment) == sorted(names & {"mac-only"})


def test_a_lock_is_read_as_it_is_written() -> None:
    digests = {"a==1": {"2", "1"}, 'b==2; python_version == "3.12"': {"3"}}
    text = lock.lock(digests)
    assert text.endswith(
        'a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\nb==2; python_version == "3.12" \\\n    --hash=sha256:3\n'
    )
    assert lock.locked(text) == digests
    assert lock.locked("b==1\n") == {"b==1": set()}  # a pin without a digest
    assert lock.locked("") == {}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A checkout whose index has one wheel for each platform and Python; what is asked of it."""
    questions = []

    def report(python: str, tags: list[str], requirements: list[str], folder: Path) -> list[dict[str, Any]]:
        questions.append((python, tags[0], *requirements))
        return [
            {
                "metadata": {"name": each.partition("==")[0].upper()},
                "download_info": {"archive_info": {"hashes": {"sha256": f"{python} {tags[0]}"}}},
            }
            for each in requirements
        ]

    monkeypatch.setattr(lock, "ROOT", tmp_path)
    monkeypatch.setattr(lock, "LOCK", tmp_path / "requirements.lock")
    monkeypatch.setattr(lock, "report", report)
    monkeypatch.setattr(lock, "TOOLS", ())
    monkeypatch.setattr(lock, "roots", lambda: ["a"])
    monkeypatch.setattr(lock, "installed", lambda requirements: {"a": ['c; python_version == "3.12"']})
    return questions


def test_only_what_is_new_is_asked_for_where_it_is_needed(tmp_path: Path, asked: list[tuple[str, ...]]) -> None:
    pin = 'c==2; python_version == "3.12"'
    (tmp_path / "constraints.txt").write_text(f"# why\na==1\n{pin}\ntorch==2\n")
    lock.LOCK.write_text(lock.lock({"a==1": {"kept"}, "c==1": {"gone"}}))
    lock.main()
    assert asked == [("3.12.0", each.tags[0], pin) for each in lock.platforms()]
    after = lock.locked(lock.LOCK.read_text())
    assert after == {"a==1": {"kept"}, pin: {f"3.12.0 {each.tags[0]}" for each in lock.platforms()}}
    lock.main()
    assert len(asked) == len(lock.platforms())


def test_a_package_without_a_pin_ends_it(tmp_path: Path, asked: list[tuple[str, ...]]) -> None:
    (tmp_path / "constraints.txt").write_text("a==1\n")
    lock.LOCK.write_text(before := lock.lock({"a==1": {"kept"}}))
    with pytest.raises(SystemExit, match=r"^lock: constraints\.txt lacks c, which Python 3\.12\.0 needs there\.$"):
        lock.main()
    assert lock.LOCK.read_text() == before
