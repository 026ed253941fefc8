"""Measure of the claim about larger teams: a policy that was trained in small ones is scored there."""

from uavlab.experiment.policy import choose
from uavlab.experiment.run import Run
from uavlab.experiment.transfer import places_by_stage, transfer
from uavlab_lab.claims.measures import Bench, Estimate, measure


@measure
def transfer_ratio(bench: Bench, preset: str, stages: str, to: int, updates: int, episodes: int = 200) -> Estimate:
    """Measure the score of a policy at stage ``to`` (from 1) over that on its own task, with its interval."""
    run = Run(bench.config({"updates": updates}, preset=preset))
    for _ in run.train():
        pass
    trained = choose(run, "best")
    place = places_by_stage(trained.config.evaluation, stages)[to - 1]
    table = transfer(trained, [place], "stage", episodes, 0, mean_action=True)
    over, home = table.rows[0]["ratio"], table.home["mean"]
    note = f"after {updates} updates, {table.metric} {table.rows[0]['score']['mean']:.2f} over {home:.2f}"
    return Estimate(over["mean"], over["low"], over["high"], note=note)
