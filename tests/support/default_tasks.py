"""The tasks of ``tools.defaults``, registered for one test, so that tests of our own entries see those alone."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.registries import entries, replace_entries

BEFORE = entries()
from tools.defaults import __main__ as study  # noqa: E402 - between the two copies
from tools.defaults import collect, landmarks, tag, tow  # noqa: E402

WITH_TASKS = entries()
replace_entries(BEFORE)


@contextmanager
def registered_tasks() -> Iterator[None]:
    """Register the tasks, and forget them afterwards with all that was added."""
    before = entries()
    replace_entries(WITH_TASKS)
    try:
        yield
    finally:
        replace_entries(before)


__all__ = ["collect", "landmarks", "registered_tasks", "study", "tag", "tow"]
