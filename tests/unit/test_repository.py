"""Requirements, pins and commands agree wherever they are listed."""

import re
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORBIDDEN = re.compile(  # a class of one letter keeps a pattern from matching itself
    r"pypi\.or[g]|pythonhoste[d]|anaconda\.or[g]|/wor[k]/|\bTOD[O]\b|\bFIXM[E]\b|(?<![.\"])\bsessio[n]\b"
)


def pins(text: str) -> dict[str, str]:
    """Return name and version of ``name==version`` lines, which may end in a marker; anything else raises."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(re.fullmatch(r"([\w-]+)==([\w.]+)(?: ; .+)?", line).groups() for line in lines)


def locked(text: str) -> tuple[str, int]:
    """Return the pins of a lock as lines, and the fewest digests of one of them."""
    entries = [entry.split(" \\\n    --hash=sha256:") for entry in re.split(r"\n(?=\w)", text)]
    digests = [own for _, *own in entries[1:]]
    assert all(re.fullmatch("[0-9a-f]{64}\n?", each) for own in digests for each in own)
    return "\n".join(entry[0] for entry in entries[1:]), min(map(len, digests))


def requirements(texts: list[str]) -> dict[str, str]:
    return {Requirement(text).name: str(Requirement(text).specifier) for text in texts}


def extras() -> dict[str, list[str]]:
    """Return the requirements of each extra, with those of the extras that it names."""
    known = PROJECT["optional-dependencies"]
    return {name: [each for text in texts for each in unfold(text, known)] for name, texts in known.items()}


def unfold(text: str, known: dict[str, list[str]]) -> list[str]:
    requirement = Requirement(text)
    if requirement.name != PROJECT["name"]:
        return [text]
    return [each for extra in sorted(requirement.extras) for each in known[extra]]


def test_conda_installs_what_make_setup_does() -> None:
    python, pip, by_pip = YAML(typ="safe").load(ROOT / "environment.yml")["dependencies"]
    assert requirements([python]) == {"python": PROJECT["requires-python"]}
    assert pip == "pip"
    assert by_pip["pip"] == ["-c constraints.txt", "-e .[all,dev]"]
    assert '"-e", ".[all,dev]"' in (ROOT / "tools" / "setup.py").read_text()


def test_all_extras_but_dev_and_video_are_in_all() -> None:
    """Who wants films as MP4 asks for them, because the wheel of PyAV carries codecs under the GPL."""
    known = extras()
    users = [text for name, texts in known.items() if name not in ("all", "dev", "video") for text in texts]
    assert sorted(known["all"]) == sorted(users)


def test_torch_has_an_upper_bound() -> None:
    """Private modules of torch are used, which a new version may change."""
    (torch,) = (Requirement(text) for text in PROJECT["dependencies"] if Requirement(text).name == "torch")
    assert torch.specifier.contains("2.11.0")
    assert not any(torch.specifier.contains(version) for version in ("2.10.0", "2.99.0"))


def test_every_requirement_is_pinned_within_its_range() -> None:
    pinned = pins((ROOT / "constraints.txt").read_text())
    for text in [*PROJECT["dependencies"], *extras()["all"], *extras()["dev"]]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(Version(pinned[canonicalize_name(requirement.name)])), text


def test_every_pin_but_torch_has_digests() -> None:
    """A package that pip installs without a digest comes from an index that may have changed it."""
    lines, fewest = locked((ROOT / "requirements.lock").read_text())
    pinned = pins((ROOT / "constraints.txt").read_text())
    assert {**pins(lines), "torch": pinned["torch"]} == pinned
    assert fewest > 0
    assert not [name for name in pinned if name.startswith(("cuda-", "triton")) or re.match("nvidia-(?!ml-py)", name)]


@pytest.mark.parametrize("line", ["torch", "torch>=2", "torch==2.13.0+cpu", "torch @ file:///x"])
def test_a_loose_pin_is_caught(line: str) -> None:
    with pytest.raises(AttributeError):
        pins(line)


def own_files() -> list[Path]:
    """List the files that git tracks, or would track."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [path for name in done.stdout.split("\0")[:-1] if (path := ROOT / name).is_file()]


def prose(path: Path) -> str:
    """Return what people wrote in a file: the cells of a notebook, nothing of a picture."""
    if path.suffix == ".ipynb":
        return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    if path.suffix in {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".cfg", ""}:
        return path.read_text()
    return ""


def forbidden(text: str) -> list[str]:
    return FORBIDDEN.findall(text)


def test_no_file_names_what_has_no_place_here() -> None:
    files = own_files()
    assert len(files) > 40
    matches = {str(path.relative_to(ROOT)): forbidden(prose(path)) for path in files}
    assert {path: texts for path, texts in matches.items() if texts} == {}


@pytest.mark.parametrize("text", ["# TO-DO: later", "open('/wo-rk/x')", "https://py-pi.org/simple", "this ses-sion"])
def test_each_forbidden_word_is_caught(text: str) -> None:
    assert forbidden(text.replace("-", "")) != []
    assert forbidden(text) == []


def test_every_command_is_in_the_readme() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.M)
    assert {"setup", "test", "proofs", "soak"} <= set(targets)
    readme = (ROOT / "README.md").read_text()
    assert [target for target in targets if f"make {target}" not in readme] == []
