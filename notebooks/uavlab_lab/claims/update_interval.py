"""Measures of update intervals: k steps in a row, and then k updates, of which a run has the same number."""

from uavlab.profiling.timing import ratio
from uavlab_lab.claims.measures import Bench, Estimate, NotTestable, measure
from uavlab_lab.measure.compare import Settings
from uavlab_lab.suites.interval import BLOCK, paced_blocks

PACE = 80 / 22.5  # time of a game step over that of an update: 80 ms, and 20 to 25 ms in the claims


@measure
def interval_gain(bench: Bench) -> Estimate:
    """Measure the time of a block of updates at interval 1 over that at interval 10, in turn with ``overlap``.

    Steps of the worlds take ``PACE`` times as long as updates.
    """
    settings: Settings
    settings = {"1": {"interval": 1}, "10": {"interval": 10}, "overlap": {"interval": 10, "prefetch": "overlap"}}
    blocks = {name: paced_blocks(bench, setting) for name, setting in settings.items()}
    update_ms = 1.0
    for _ in range(2):  # an update takes longer after a wait than after another update
        trial = blocks["1"](PACE * update_ms)
        update_ms = 1e3 * trial.learner * trial.seconds / BLOCK
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(max(1, bench.rounds // 3)):
        for name, block in blocks.items():
            seconds[name].append(block(PACE * update_ms).seconds)
    overlap = ratio(seconds["1"], seconds["overlap"])["median"]
    note = f"on one device; with the worlds stepped beside the updates (prefetch=overlap): {overlap:.2f}x"
    return Estimate(**ratio(seconds["1"], seconds["10"], "value"), note=note, rounds=len(seconds["1"]))


@measure
def devices_gain(bench: Bench, devices: int, interval: int = 1) -> Estimate:
    """Refuse what needs several GPUs."""
    plans = "`uavlab bench scale` plans for them by a model, `uavlab bench ranks` times ranks that share a machine"
    raise NotTestable(f"needs {devices} GPUs with a rank on each; {plans}")
