"""Text that the book adds to its pages: the list of pages, and the API by group."""

import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import UnionType

import uavlab

PARTS = {
    "Notebooks": ["notebooks/*.ipynb"],
    "Guides": ["docs/*.md"],
    "Project": ["*.md", "figures/*.md"],
    "Decisions": ["docs/decisions/*.md"],
}
"""The parts of the book, with patterns of their files."""

MORE = {
    "Pictures": tuple(f"uavlab_lab.plots.{name}" for name in ("flight.add_frames", "views.views", "beside.beside")),
    "Types in signatures": (
        *("uavlab.experiment.run_state.Progress", "uavlab.experiment.names.Preset", "uavlab.benchmarks.Option"),
        *("uavlab.runtime.toggles.Toggles", "uavlab.runtime.grad_step.GradientStep"),
        *("uavlab.core.protocols.RecurrentPolicy", "uavlab.core.portable.Portable", "uavlab.core.symptoms.Symptoms"),
        *("uavlab.testing.EnvReport", "uavlab.testing.LearnerReport"),
    ),
}
"""Names of inner modules that users meet, too."""

GROUP = re.compile(r"^([A-Z][\w ]+?)  +(\S.*(?:\n  .*)*)", re.MULTILINE)
TOCTREE = "```{{toctree}}\n:hidden:\n:caption: {}\n\n{}\n```"
DIRECTIVE = "```{{eval-rst}}\n.. {}:: {}\n{}```"


def contents(root: Path) -> str:
    """Return the tables of contents, one for each part."""
    parts = {title: "\n".join(pages(root, patterns)) for title, patterns in PARTS.items()}
    return "\n\n".join(TOCTREE.format(title, lines) for title, lines in parts.items() if lines)


def pages(root: Path, patterns: Iterable[str]) -> list[str]:
    """Return pages in the order of their names, an index first, without the book's first page."""
    paths = [path for each in patterns for path in root.glob(each) if path != root / "README.md"]
    paths.sort(key=lambda path: (path.stem != "index", path.relative_to(root)))
    return [str(path.relative_to(root).with_suffix("")) for path in paths]


def groups() -> dict[str, list[str]]:
    """Return the public names by the groups in which the docstring of the package lists them."""
    public = set(uavlab.__all__)
    rows = GROUP.findall(uavlab.__doc__ or "")
    return {title: [name for name in re.findall(r"\w+", names) if name in public] for title, names in rows}


def api() -> str:
    """Return the descriptions of all public names, group by group."""
    known = {title: tuple(f"uavlab.{name}" for name in names) for title, names in groups().items()} | MORE
    return "\n\n".join(part for title, names in known.items() for part in (f"## {title}", *map(entry, names)))


def entry(name: str) -> str:
    """Return the directive that describes a name."""
    module, _, own = name.rpartition(".")
    value = getattr(import_module(module), own)
    is_class, is_type = isinstance(value, type), isinstance(value, UnionType)
    kind = "autoclass" if is_class else "autodata" if is_type else "autofunction"
    return DIRECTIVE.format(kind, name, "   :members:\n" * is_class)
