"""Scores of trained policies, of plans and of publications, and how sure they are."""

from typing import Any

from tools.tables.records import (
    again,
    against,
    interval_of,
    measured,
    method,
    over_seeds,
    read,
    scored,
    table,
    trained_row,
)
from uavlab.core.statistics import student
from uavlab.experiment.config import configure
from uavlab.telemetry.predict import MOST

LATER = "one measurement more (the published figure's count)"
LONGER = 240  # steps, for the bound on strict formation
ARMS = ("telemetry_tenth", "telemetry_physics")


def chosen(preset: str) -> str:
    """Return how the policy of a run was chosen."""
    run = configure(preset).run
    assessed = f"{run.updates // run.evaluate_every} scores of its training, of {run.evaluate_episodes} episodes each"
    return f"the best by {assessed}; the episodes behind this table are others"


def followers() -> list[str]:
    """Return the scores of trained leader-follower teams."""
    shapes = {"completion": ".3f", "formation_strict": ".2f", "flight_time": ".0f", "path": ".0f", "energy": ".0f"}
    theirs = {name: read("literature")["leader_follower"][name] for name in ("weights", "paper")}
    published = [
        [row["title"], *("-" if row[key] is None else f"{row[key]:{shape}}" for key, shape in shapes.items())]
        for row in theirs.values()
    ]
    names = {"published_sampled": "sampled actions", "published_mean": "mean action"}
    ours = [trained_row(name, *shapes, label=label) for name, label in names.items()]
    low = ("flight_time", "path", "energy")
    updates = f"{read('quick')['trained'][0]['target']:_}"
    labels = {
        "quick": f"`leader_follower_quick`, {updates.replace('_', ' ')} updates",
        "quick_12_minutes": "`leader_follower_quick`, 12 minutes",
        "mappo": "`leader_follower_mappo`, 600 updates",
    }
    quick = [trained_row(name, "completion", "formation_strict", label=label) for name, label in labels.items()]
    plans = {name: read(f"{name}_steer")["rows"][0] for name in ("published", "quick")}
    steered = "a plan that sees all obstacles, without training"
    formation = read("formation_bound")
    apart, steps = formation["apart"], ours[0]["flight_time"]["mean"]
    most = f"no policy reaches more in as many steps | - | {1 - apart['rooted'] / steps:.2f} | {steps:.0f} | - | -"
    few = f"{interval_of('completion', '.3f')} | {interval_of('formation_strict', '.2f')}"
    return [
        table(
            "the published test: 1 + 4, 0.1 s steps | completion | strict formation | steps | path (px) | energy",
            "ours, {seeds}, {label}, {minutes} min of training | "
            + " | ".join(map(interval_of, shapes, shapes.values())),
            ours,
            last=[
                " | ".join([steered, *map(interval_of, shapes, shapes.values())]).format(**plans["published"]),
                most,
                *map(" | ".join, published),
            ],
        ),
        f"{method(*ours)} {scored(*names)}",
        "The published rows have two sources: the shipped weights, measured in their program over 500 episodes of "
        "sampled actions, and the data of the paper's figures, which give no completion. Ours with sampled actions "
        f"against the weights: {against(ours[0], theirs['weights'], low)}. Against the paper: "
        f"{against(ours[0], theirs['paper'], low)}. The published figures have no known uncertainty: better and worse "
        "mean outside our interval. The published program counts a flight from step 0, ours every step: one step "
        f"more, {100 / theirs['weights']['flight_time']:.1f} % of a flight, by which it also divides strict formation.",
        "Ours trained on less than they are tested on: one follower, 1 s steps, reward prices of their own and "
        "wider obstacles (`uavlab settings leader_follower_published`). But each policy was chosen by the published "
        f"test: {chosen('leader_follower_published')}. "
        "Records: `figures/records/published_*.json` and `literature.json`.",
        "The bound on strict formation: whatever a team does and sees, in the mean over {flights} starts at least "
        "{bound:.1f} [{low:.1f}, {high:.1f}] steps pass before all followers can be within 50 px of the leader. That "
        "the team then stays together is assumed, and the best lengths of flights for their mean; with a mean of "
        "{longer} steps the bound is {there:.2f}. Sampled controls gather the teams after {possible:.1f} steps, so the "
        "bound is near what speeds and turns allow; but leaders do not see their followers. {measured}.".format(
            **apart,
            flights=formation["flights"],
            longer=LONGER,
            there=1 - apart["rooted"] / LONGER,
            measured=measured(formation),
        ),
        table(
            "1 + 1, 1 s steps | training (min) | completion | strict formation",
            "{label}, {seeds} | {minutes} | " + few,
            quick,
            last=[f"{steered} | - | {few}".format(**plans["quick"])],
        ),
        f"{method(*quick)} {scored(*labels)} Each policy is the one of its training with the best score, which "
        "weighs completion, formation and time; the episodes behind this table are others. "
        f"Intervals of the plan are over flights. {scored('published_steer', 'quick_steer', value='--policy ')} "
        "Records: `figures/records/quick*.json`, `figures/records/mappo.json`.",
        sooner(read("quick_laptop")),
    ]


def sooner(record: dict[str, Any]) -> str:
    """Return when the quick preset first reaches a goal with each seed, in words."""
    times = [row["to_goal_s"] for row in record["rows"]]
    known, first = [each for each in times if each is not None], max(row["first_update_s"] for row in record["rows"])
    return (
        f"With the toggles of `laptop`, `leader_follower_quick` first completes {record['goal']:.0%} of its validation "
        f"flights after {min(known):.0f} to {max(known):.0f} s of training on one core, {len(known)} of {len(times)} "
        f"seeds; scores are part of that time, and so is the first update, of up to {first:.1f} s, which reads code "
        "that an earlier run compiled. Where there was none, compiling comes on top. "
        f"{measured(record)}."
    )


def maps() -> list[str]:
    """Return the map quality of missions."""
    plans = {"expected_entropy": "expected entropy", "information_gain": "information gain, as published"}
    plans |= {"sweep": "sweep", "random": "random"}
    learners = {"mapping_quick": "COMA", "mapping_mappo": "MAPPO"}
    ours = [trained_row(name, "entropy", "f1", label=f"`{name}` ({label})") for name, label in learners.items()]
    study = read("bench_plan")
    machines = {run["machine"]["cpu"] for name in learners for run in read(name)["trained"]}
    apart = " They trained on different machines, so their minutes do not compare." * (len(machines) > 1)
    later = next(row for row in study["rows"] if row["decision"] == LATER)
    published = [read("literature")["mapping"][row] for row in ("coma", "information_gain", "random")]
    return [
        table(
            "4 UAVs, 15 measurements each, 50 missions per policy | weighted entropy (bit) | F1",
            f"{{title}} | {interval_of('entropy', '.3f')} | {interval_of('f1', '.3f')}",
            [
                *({**row, "title": "{label}, {seeds}, {minutes} min of training".format(**row)} for row in ours),
                *({**read(f"mapping_{plan}")["rows"][0], "title": title} for plan, title in plans.items()),
            ],
            last=(
                "{title} ‡ | {entropy[0]:.3f} ± {entropy[1]:.3f} | {f1[0]:.3f} ± {f1[1]:.3f}".format(**row)
                for row in published
            ),
        ),
        f"{method(*ours)} {scored(*learners)} Each policy is {chosen('mapping_quick')}.{apart}",
        "Of the plans, intervals are bootstrapped over missions. "
        + scored(*(f"mapping_{plan}" for plan in plans), value="--policy "),
        "`mapping_quick` and `mapping_mappo` are not the published program: maps are centred on each UAV, gamma is "
        "0.5, convolutions have 32 channels instead of 256, and moves are sampled, where the published program takes "
        "the likeliest. "
        "The published information gain is scored after 16 measurements: ours then leaves "
        f"{later['entropy']:.3f} [{later['low']:.3f}, {later['high']:.3f}] bit; of means of {study['few']['missions']} "
        f"such missions, as many as the published figure has, 95 % lie from {study['few']['low']:.3f} to "
        f"{study['few']['high']:.3f}. It weighs outcomes by the belief; `expected_entropy` weighs them by the chance "
        "of a positive measurement and is the stronger plan. "
        f"{again(study)} measured what each decision of the plan is worth. "
        "Records: `figures/records/mapping_*.json`, `figures/records/bench_plan.json`.",
        "‡ mean and standard deviation over missions: the paper's table, as another publication quotes it, and its "
        "program run again for the plans (`figures/records/literature.json`).",
    ]


def physics() -> dict[str, Any]:
    """Return the change of R² by equations of flight in the loss, on a tenth of the flights."""
    without, with_it = (read(name)["rows"][0]["mean_r2"]["each"] for name in ARMS)
    change, low, high = student([b - a for a, b in zip(without, with_it, strict=True)])
    means = {"without": sum(without) / len(without), "with_it": sum(with_it) / len(with_it)}
    return {"seeds": len(without), **means, "change": change, "low": low, "high": high}


def flights() -> list[str]:
    """Return how well hidden states of flights are predicted."""
    linear = {**read("telemetry_ridge")["rows"][0], "title": "ridge regression †"}
    *targets, tracking = linear["r2"]
    ours, rows = trained_row("telemetry_full", "mean_r2"), read("telemetry_full")["rows"]
    r2 = {name: over_seeds([row["r2"][name] for row in rows]) for name in linear["r2"]}
    title = "`telemetry_full --toggles laptop`, {seeds}, {minutes} min of training".format(**ours)
    return [
        table(
            f"R² on 90 unseen simulated flights | mean | {' | '.join(targets).replace('_', ' ')} | error in 0.5 s",
            f"{{title}} | {interval_of('mean_r2', '.3f')} | "
            + " | ".join(f"{{r2[{target}][mean]:.2f}}" for target in (*targets, tracking)),
            [{**ours, "r2": r2, "title": title}, linear],
        ),
        f"{method(ours)} {scored('telemetry_full')} On that machine `laptop` compiles, with products in bfloat16.",
        f"† on the same windows, but fitted to at most {MOST:,} of them, evenly spread; its interval is bootstrapped "
        f"over flights. {scored('telemetry_ridge')}",
        "Equations of flight in the loss (`--set physics=0.1`), on a tenth of the training flights, {seeds} seeds, "
        "2 000 updates: mean R² {without:.3f} without, {with_it:.3f} with them; they change it by {change:+.4f} "
        "[{low:+.4f}, {high:+.4f}], Student's t over the seeds. {scored} "
        "Records: `figures/records/telemetry_*.json`.".format(**physics(), scored=scored(*ARMS, value="physics=")),
    ]
