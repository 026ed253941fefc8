"""What people type: names that are nearly right, values written as YAML 1.2, and how to quote them in a message."""

import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from uavlab.core.errors import ConfigError

DEEPEST, LONGEST = 32, 1000  # lists within lists, characters of a plain value
OCTAL = re.compile(r"[-+]?0[0-9_]+")
THREADS = re.compile(r"0*[1-9][0-9]{0,3}(,0*[1-9][0-9]{0,3})*")  # OpenMP takes one number for each level of nesting


def suggest(name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """Suggest the known name that looks most like ``name``, as the tail of a message; empty if none does.

    Args:
        name: What was written.
        known: Names that can be meant.
        elsewhere: What other programs call some of them.
    """
    names = {**{own: own for own in known}, **(elsewhere or {})}
    close = difflib.get_close_matches(name, names, 1)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


def quote(value: Any) -> str:
    """Quote a value in a message, briefly whatever a file held."""
    try:
        return reprlib.repr(value)[:80]
    except ValueError:  # Python prints no integer of more than 4300 digits
        return f"an enormous {type(value).__name__}"


def one_line(text: str) -> str:
    """Write out what would move a terminal's cursor or colour it, line ends among it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def check_threads(variables: Mapping[str, str]) -> None:
    """Refuse a count of threads that OpenMP would pass over, before torch reads it.

    Raises:
        ConfigError: ``OMP_NUM_THREADS`` is not a whole number from 1 up, or several of them.
    """
    given = variables.get("OMP_NUM_THREADS", "1").strip()
    if not THREADS.fullmatch(given):
        raise ConfigError(f"OMP_NUM_THREADS={quote(given)}: expected a whole number from 1 to 9999; set or unset it.")


def yaml_value(text: str, where: str, lines: bool = False) -> Any:
    """Read ``text`` as YAML 1.2 does, building plain values alone, never deep or repeated ones.

    Raises:
        ConfigError: It is not YAML, or asks for more; the message names ``where`` it was found, and with ``lines`` the
            line.
    """
    from ruamel.yaml import YAML  # late: notebooks import this module, and most read no YAML
    from ruamel.yaml.error import MarkedYAMLError

    line: int | None = None
    try:
        excess = next(_excesses(YAML(typ="safe", pure=True).parse(text)), None)
        if excess is None:
            return YAML(typ="safe", pure=True).load(text)
        line, problem = excess
    except MarkedYAMLError as error:
        mark, why = error.problem_mark or error.context_mark, filter(None, (error.context, error.problem))
        line, problem = mark.line if mark else None, f"not readable as YAML: {' '.join(why)}"
    except Exception as error:  # a control character, a 32nd of May, whatever makes ruamel stumble
        problem = f"not readable as YAML: {type(error).__name__}: {' '.join(str(error).split())}"
    place = f"{where}:{line + 1}" if lines and line is not None else where
    raise ConfigError(f"{place}: {one_line(problem[:300])}.")


def yaml_lines(text: str) -> dict[str, int]:
    """Tell on which line each name of a mapping stands, in text that ``yaml_value`` accepts."""
    from ruamel.yaml import YAML

    return {key.value: key.start_mark.line + 1 for key, _ in YAML(typ="safe", pure=True).compose(text).value}


def _excesses(events: Iterable[Any]) -> Iterator[tuple[int, str]]:
    """Find what settings have no use for and attackers have, before anything is built."""
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    depth = 0
    for event in events:
        line, tag = event.start_mark.line, getattr(event, "tag", None)
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEEPEST:
            yield line, f"nested deeper than {DEEPEST}; expected plain values"
        if isinstance(event, AliasEvent):
            yield line, f"alias *{event.anchor}; write its value out"
        if tag is not None:
            name = str(tag).replace("tag:yaml.org,2002:", "!!")[:60]
            yield line, f"tag {name!r}; expected plain values without tags"
        if isinstance(event, ScalarEvent) and event.style is None:
            if len(event.value) > LONGEST:
                yield line, f"a value of {len(event.value):,} characters; expected at most {LONGEST:,} without quotes"
            if OCTAL.fullmatch(event.value):
                yield line, f"{quote(event.value)} may be decimal or octal; leave out the leading 0, or write 0o"
