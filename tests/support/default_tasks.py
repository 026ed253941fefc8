"""The tasks of ``tools.defaults``, registered for one test, so that tests of our own entries see those alone."""

from contextlib import AbstractContextManager

from tests.support.registries import entries, registered, replace_entries

BEFORE = entries()
from tools.defaults import __main__ as study  # noqa: E402 - between the two copies
from tools.defaults import brigade, collect, landmarks, tag, tow  # noqa: E402

WITH_TASKS = entries()
replace_entries(BEFORE)


def registered_tasks() -> AbstractContextManager[None]:
    """Register the tasks, and forget them afterwards with all that was added."""
    return registered(WITH_TASKS)


__all__ = ["brigade", "collect", "landmarks", "registered_tasks", "study", "tag", "tow"]
