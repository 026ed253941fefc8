"""From measured numbers to words: what a loop is bound by, and what a faster part would bring to the whole."""

from collections.abc import Iterable, Mapping

from uavlab.core.errors import ConfigError
from uavlab.profiling.roofline import Ceilings


def verdict(
    shares: Mapping[str, float], update_seconds: float, operators: int, flops: int, bytes: int, ceilings: Ceilings
) -> tuple[str, str]:
    """Say what a training loop is bound by.

    That is the ``environment``, ``copy``, ``load``, ``launch``, ``arithmetic`` or ``memory``. First the stages: where
    the environment, copying between host and device, or bringing windows of logs takes more of the time than all else
    together, that is what binds. Otherwise an update is weighed against three floors, below which this machine cannot
    take it: its matrix products at the ceiling of arithmetic (flops / rate), what its other operators read and write at
    the ceiling of memory (bytes / bandwidth), and starting its operators one by one (operators x launch). What the
    first two leave unexplained of the measured time goes to starting too: Python, the dispatcher, waiting between
    kernels. The largest of the three binds. Floors may exceed a measured time, as caches beat memory: then their
    proportions decide.

    Args:
        shares: Of the loop's time, by stage, as ``Monitor.read`` gives them.
        update_seconds: One update (s): the quickest of several, as ceilings are measured too.
        operators: Launches from the host per update; 1 where a graph is replayed.
        flops: Of its matrix products.
        bytes: Read and written by its other operators.
        ceilings: Measured at the update's own precision and sizes.

    Returns:
        The kind, and a sentence with its share.

    Raises:
        ConfigError: The update took no time.
    """
    if not update_seconds > 0:
        raise ConfigError(f"update_seconds: expected a time above 0 s, got {update_seconds}; measure an update first.")
    environment, copy, load = (shares.get(stage, 0.0) for stage in ("environment", "copy", "load"))
    if environment > 0.5:
        return "environment", f"environment-bound: stepping the worlds takes {environment:.0%} of the time."
    if copy > 0.5:
        return "copy", f"copy-bound: copies between host and device take {copy:.0%} of the time."
    if load > 0.5:
        return "load", f"load-bound: bringing windows of logs takes {load:.0%} of the time."
    floors = {"arithmetic": flops / ceilings.rate, "memory": bytes / ceilings.bandwidth}
    floors["launch"] = max(operators * ceilings.launch, update_seconds - sum(floors.values()))
    whole = max(update_seconds, sum(floors.values()))
    kind = max(floors, key=lambda name: floors[name])
    words = {
        "arithmetic": "matrix products",
        "memory": "reading and writing memory",
        "launch": f"starting {operators:,} operators",
    }
    told = {name: f"{words[name]} {seconds / whole:.0%}" for name, seconds in floors.items()}
    first = told.pop(kind)
    return kind, (
        f"{kind}-bound: of an update's {1e3 * update_seconds:.3g} ms, {first}, {' and '.join(told.values())}; "
        f"of the loop, {'loading' if load else 'the environment'} takes {load or environment:.0%} and copies "
        f"{copy:.0%}."
    )


def predicted(whole: float, parts: Iterable[tuple[float, float]]) -> float:
    """Predict the speed-up of a call from parts of it that were timed by themselves: Amdahl's law for several parts.

    Source:
        Amdahl 1967, "Validity of the single processor approach to achieving large scale computing capabilities".

    Args:
        whole: The call (s).
        parts: Of each, how long it takes and how long it would take (s). Together they may take longer than the whole,
            as clocks are noisy: then nothing else is left of it.

    Raises:
        ConfigError: A time is negative, or no time is left to divide by.
    """
    pairs = list(parts)
    before, after = (sum(each) for each in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    whole = max(whole, before)
    if min([whole, *(second for pair in pairs for second in pair)]) < 0 or not whole - before + after > 0:
        raise ConfigError(f"predicted: expected times above 0 s, got {whole} for the whole and parts {pairs}.")
    return whole / (whole - before + after)
