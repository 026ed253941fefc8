"""Processes that a test started."""

import time

import psutil

from uavlab.workers.pool import close_all

PATIENCE = 60  # s, for a loaded machine; a quiet one needs a fraction of a second


def left_behind() -> list[psutil.Process]:
    """Wait for the children of this process to end; return those that did not.

    Workers of external environments, which serve this process to its end, are ended first.
    """
    close_all()
    until = time.monotonic() + PATIENCE
    while alive := [child for child in psutil.Process().children(recursive=True) if _counts(child)]:
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    return alive


def _counts(child: psutil.Process) -> bool:
    """Return whether a process lives, and is not the tracker of a pool, which ends with this one."""
    try:
        return child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline())
    except psutil.NoSuchProcess:
        return False
