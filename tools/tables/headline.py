"""The figures that the README shows first, each with its record and its commands."""

from tools.tables.records import against, read, short, table, trained_row
from tools.tables.speed import ladder_rows

SCORES = {"completion": (".3f", "flights in which the leader reaches the goal")}
SCORES["formation_strict"] = (".2f", "steps with the whole team in formation")
COSTS = ("flight_time", "path", "energy")


def parts() -> list[str]:
    """Return a table of what a team reaches and how fast an update is, and the commands."""
    ours, theirs = trained_row("published_sampled", *SCORES, *COSTS), read("literature")["leader_follower"]["weights"]
    update, record = ladder_rows()[-1], read("published_sampled")
    plan = [f"{read('published_steer')['rows'][0][key]['mean']:{shape}}" for key, (shape, _) in SCORES.items()]
    rows = [
        {
            "what": f"share of {label}",
            "ours": "{mean:{shape}} [{low:{shape}}, {high:{shape}}]".format(**ours[key], shape=shape),
            "theirs": f"{theirs[key]:{shape}}, the published weights",
            "record": "published_sampled",
        }
        for key, (shape, label) in SCORES.items()
    ]
    best = update["best"]
    rows.append(
        {
            "what": f"an update of {update['loop']['agents']} agents on one core",
            "ours": f"{best['ms']:.1f} ms: {update['over_loop']} as fast",
            "theirs": f"{update['loop']['ms']:.1f} ms, the usual loop over agents",
            "record": "bench_ladder",
        }
    )
    commands = [record["trained"][0]["command"], record["command"]]
    commands += [read(name)["command"] for name in ("published_steer", "bench_ladder")]
    return [
        table(
            "measured | uavlab | compared with | record",
            "{what} | {ours} | {theirs} | [{record}](figures/records/{record}.json)",
            rows,
        ),
        f"The team: {ours['seeds']}, {ours['minutes']} minutes of training each; brackets are 95 % intervals. "
        f"Against those weights: {against(ours, theirs, COSTS)}. "
        f"A hand-written plan that sees all obstacles reaches {plan[0]} and {plan[1]} without training. "
        f"The update: {best['setting']}; "
        f"{best['over_cached']:.2f}x as fast as a loop without repeated work. "
        f"Made by {', '.join(f'`{short(command)}`' for command in commands)}.",
    ]
