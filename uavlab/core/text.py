"""User input as text: suggestions for misspelled names, YAML 1.2 values, and quotations in messages."""

import difflib
import html
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from uavlab.core.errors import ConfigError

MAX_DEPTH, MAX_CHARS = 32, 1000  # of nested lists; of an unquoted value, in characters
OCTAL = re.compile(r"[-+]?0[0-9_]+")
THREADS = re.compile(r"0*[1-9][0-9]{0,3}(,0*[1-9][0-9]{0,3})*")  # OpenMP takes one number for each level of nesting


def suggest(name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """Return `` (did you mean ...?)`` for a close name, of ``known`` or of other programs (``elsewhere``)."""
    names = {**{own: own for own in known}, **(elsewhere or {})}
    close = difflib.get_close_matches(name, names, 1)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


def require_known(kind: str, name: Any, known: Iterable[str], where: str = "") -> None:
    names = list(known)
    if name not in names:
        hint = suggest(name if isinstance(name, str) else quote(name), names)
        raise ConfigError(f"{where}unknown {kind} {quote(name)}{hint}. Known {kind}s: {', '.join(names)}.")


def quote(value: Any) -> str:
    """Quote a value for a message in at most 80 characters."""
    try:
        return reprlib.repr(value)[:80]
    except ValueError:  # Python prints no integer of more than 4300 digits
        return f"an enormous {type(value).__name__}"


def one_line(text: str) -> str:
    """Escape all characters that are not printable, line ends too."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable(text: Any) -> str:
    """Return text whose characters other than line ends are escaped if a terminal could take them for commands."""
    return "\n".join(map(one_line, str(text).split("\n")))


def markup(text: Any) -> str:
    """Return HTML that shows text as it is: no tag, no attribute, no mark that turns the direction of writing."""
    return html.escape(printable(text))


def check_threads(variables: Mapping[str, str]) -> None:
    """Check ``OMP_NUM_THREADS`` before torch reads it, because OpenMP ignores invalid values."""
    count = variables.get("OMP_NUM_THREADS", "1").strip()
    if not THREADS.fullmatch(count):
        raise ConfigError(f"OMP_NUM_THREADS={quote(count)}: expected a whole number from 1 to 9999; set or unset it.")


def yaml_value(text: str, where: str, lines: bool = False) -> Any:
    """Parse ``text`` as YAML 1.2 with plain values only: no tags, no aliases, no deep nesting."""
    from ruamel.yaml import YAML  # late: notebooks import this module, and most read no YAML
    from ruamel.yaml.error import MarkedYAMLError

    line: int | None = None
    try:
        forbidden = next(_forbidden_constructs(YAML(typ="safe", pure=True).parse(text)), None)
        if forbidden is None:
            return YAML(typ="safe", pure=True).load(text)
        line, problem = forbidden
    except MarkedYAMLError as error:
        mark, why = error.problem_mark or error.context_mark, filter(None, (error.context, error.problem))
        line, problem = mark.line if mark else None, f"not readable as YAML: {' '.join(why)}"
    except Exception as error:  # such as a control character or an invalid date
        problem = f"not readable as YAML: {type(error).__name__}: {' '.join(str(error).split())}"
    place = f"{where}:{line + 1}" if lines and line is not None else where
    raise ConfigError(f"{place}: {one_line(problem[:300])}.")


def yaml_lines(text: str, nested: bool = False) -> dict[str, int]:
    """Return the line of each key of a mapping that ``yaml_value`` accepts, with ``nested`` also of ``outer.inner``."""
    from ruamel.yaml import YAML

    def lines(node: Any, above: str = "") -> dict[str, int]:
        own = {f"{above}{key.value}": key.start_mark.line + 1 for key, _ in node.value}
        inner = [lines(value, f"{above}{key.value}.") for key, value in node.value if nested and value.id == "mapping"]
        return own | {name: line for each in inner for name, line in each.items()}

    return lines(YAML(typ="safe", pure=True).compose(text))


def _forbidden_constructs(events: Iterable[Any]) -> Iterator[tuple[int, str]]:
    """Yield line and description of each construct that settings do not need, before any value is built."""
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    depth = 0
    for event in events:
        line, tag = event.start_mark.line, getattr(event, "tag", None)
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            yield line, f"nested deeper than {MAX_DEPTH}; expected plain values"
        if isinstance(event, AliasEvent):
            yield line, f"alias *{event.anchor}; write its value out"
        if tag is not None:
            name = str(tag).replace("tag:yaml.org,2002:", "!!")[:60]
            yield line, f"tag {name!r}; expected plain values without tags"
        if isinstance(event, ScalarEvent) and event.style is None:
            if len(event.value) > MAX_CHARS:
                yield line, f"a value of {len(event.value):,} characters; expected at most {MAX_CHARS:,} without quotes"
            if OCTAL.fullmatch(event.value):
                yield line, f"{quote(event.value)} may be decimal or octal; leave out the leading 0, or write 0o"
