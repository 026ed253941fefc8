"""The measure of networks that are compiled alone, as the claims have it; the toggle compiles whole updates."""

from dataclasses import replace
from unittest.mock import patch

from uavlab.learners.masac import loop
from uavlab.profiling.timing import time_call
from uavlab.runtime.wrappers import compile_function
from uavlab_lab.claims.measures import LOOP, Bench, Estimate, NotTestable, measure, once, speedup, speedup_text
from uavlab_lab.measure.compare import build_call

BATCHED = {"update": "batched"}


@measure
@once
def compiled_networks(bench: Bench, mode: str) -> Estimate:
    """Measure the speed-up of the loop's updates by compiling its networks, each evaluation as one function."""
    one, reasons = build_call(bench.config(LOOP), "update"), list[str]()
    compiled = compile_function(loop.evaluate, "network", mode, reasons.append)

    def call() -> None:
        with patch.object(loop, "evaluate", compiled):
            one.call()

    with one.rt.scope():
        first_s = time_call(call, bench.device)
        if reasons:
            raise NotTestable(f"compile cannot be used: {reasons[0]}")
        result = speedup(one.call, call, bench.rounds, bench.device)
    whole = speedup_text(bench, "update", (BATCHED, {**BATCHED, "compile": "default"}))
    note = f"{result.note}; the first call takes {first_s:.0f} s; whole batched updates as one function: {whole}"
    return replace(result, note=note)
