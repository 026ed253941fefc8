"""Names are nouns and verbs, and docstrings begin with what a function does or returns."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = ("uavlab", "notebooks/uavlab_notebooks", "tools", "tests")
DOCUMENTED = ("uavlab", "notebooks/uavlab_notebooks", "tools")
PARTICIPLES = {"told", "said", "found", "made", "kept", "flown"}
VERBS = {"tell", "say", "lay", "let", "name", "give"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node of a syntax tree introduces or uses."""
    if isinstance(node, Function) and not node.name.startswith("test_"):
        yield node.name
    if isinstance(node, ast.ClassDef):
        yield node.name
    if isinstance(node, ast.Name):
        yield node.id
    if isinstance(node, ast.Attribute):
        yield node.attr
    if isinstance(node, ast.arg | ast.keyword) and node.arg:
        yield node.arg
    if isinstance(node, ast.alias):
        yield from (node.asname or node.name).split(".")
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    if isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names


def participles(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name wherever a name holds a participle as a whole word."""
    for node in ast.walk(ast.parse(source)):
        for name in names(node):
            if PARTICIPLES & set(name.lower().split("_")):
                yield getattr(node, "lineno", 0), name


def verbs(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and first word wherever a docstring begins with one of the verbs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            first, second = (*text.split(), "", "")[:2]
            if first.lower().strip("`.,:;") in VERBS and (first, second) != ("Name", "of"):
                yield getattr(node, "lineno", 1), f"docstring begins with {first}"


def offences(check, folders: tuple[str, ...]) -> list[str]:
    """List every offence in the folders as ``path:line what``."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [
        f"{path.relative_to(ROOT)}:{line} {what}"
        for path in paths
        for line, what in sorted(set(check(path.read_text(encoding="utf-8"))))
    ]


def test_no_name_is_a_participle():
    offenders = offences(participles, NAMED)
    assert not offenders, "\n".join(offenders)


def test_no_docstring_begins_with_a_weak_verb():
    offenders = offences(verbs, DOCUMENTED)
    assert not offenders, "\n".join(offenders)


def test_each_kind_of_name_is_caught():
    sources = (
        "def as_told(): ...",
        "class Kept: ...",
        "found = 1",
        "x.made",
        "def f(said, *flown): ...",
        "f(found_in=1)",
        "from x import made as y_made",
        "import told",
        "def f():\n    nonlocal said",
        "try: ...\nexcept E as found: ...",
        "FOUND_AT = lambda: 0",
    )
    assert [source for source in sources if not list(participles(source))] == []
    assert list(participles("def test_told(): founder = unmade = 'found'  # made")) == []


def test_each_verb_is_caught_at_the_beginning_of_a_docstring():
    sources = ("'''Tell it.'''", "class A:\n    '''Say: x.'''", "def f():\n    '''Give\n    x.'''")
    assert [source for source in sources if not list(verbs(source))] == []
    assert list(verbs("'''Names are given.'''\ndef f():\n    'Name of what others give.'")) == []
