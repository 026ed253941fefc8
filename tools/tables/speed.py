"""How fast updates, environments and loaders are, and the verdicts on claims about speed."""

from collections.abc import Mapping
from typing import Any

from tools.tables.records import machine, measured, newest_claims, read, short, speed_up, table
from uavlab_lab.claims import report
from uavlab_lab.claims.ledger import ledger

CLAIMS = (  # a selection of the claims: each verdict, and the best known ones
    *(
        "baseline-utilisation",
        "cached-forwards",
        "stage-1",
        "duplicate-waste-4",
        "amp-speed",
        "prefetch",
        "compile",
        "total",
    ),
    *("cpu-not-applicable", "full-hours", "budget-10-missions", "budget-8", "map-constants", "throughput-drop"),
    *("prenormalised", "slow-env", "interval-10", "equal-updates", "eight-devices"),
)


def missions() -> list[str]:
    """Return the times of steps and of training in the mapping task."""
    steps, training, source = read("bench_maps"), read("bench_missions"), read("literature")["mapping"]["training"]
    return [
        table(
            "maps | setting | missions | team step (ms per mission) | over one process | over 2 processes",
            "{path} | {setting} | {missions} | {team_step_ms:.1f} | {over_host} | {over_pool:.1f}x",
            [{**row, "over_host": speed_up(row, "over_host", ".1f")} for row in steps["rows"]],
        ),
        "493 x 493 cells, 4 UAVs, without the policy; "
        f"{steps['rows'][-1]['bytes_per_mission'] / 2**20:.1f} MiB of state per mission. Times are medians of rounds; "
        "ratios are medians of the ratios within a round, so they differ a little from ratios of the times. "
        f"{measured(steps)}.",
        table(
            "published network, {moves} moves, {passes} passes | training step (s) | per 300 moves (s) | "
            "over plain".format(**training["rows"][0]),
            "{setting} | {s:.1f} | {s_per_300:.1f} | {over_plain}",
            [{**row, "over_plain": speed_up(row, "over_plain")} for row in training["rows"]],
        ),
        f"Medians of {training['rounds']} rounds, ratios as above. {measured(training)}. The published program took "
        f"{source['s_per_300']:.1f} s per 300 moves, on another machine ({source['source']}): read it as a scale, "
        "not as a ratio.",
    ]


def loaders() -> list[str]:
    """Return how fast windows of flights are loaded."""
    loading = read("bench_telemetry")
    return [
        table(
            "windows per second | loader alone | over per_item | model alone | both | both of the model's | "
            "memory over the raw series",
            "`loader={path}` | {loader:,} | {over_per_item:.0f}x | {model:,} | {both:,} | "
            "{of_model:.0%} [{low:.0%}, {high:.0%}] | {memory:.2f}",
            [{**row, "memory": row["bytes"] / row["raw_bytes"]} for row in loading["rows"]],
        ),
        f"{loading['batch']} windows of 200 rows, float32, eager; `per_item` in one process. {measured(loading)}.",
    ]


def updates() -> list[str]:
    """Return how fast updates are: against both references, and rung by rung."""
    record, ladder = read("bench_update"), read("bench_ladder")
    source = read("literature")["leader_follower"]["update"]["source"]
    teams: dict[int, dict[str, Any]] = {}
    for row in record["rows"]:
        teams.setdefault(row["agents"], {})[row["setting"]] = row
    rungs = ladder_rows()
    return [
        table(
            "agents | original program † (ms) | loop (ms) | batched (ms) | over loop | over cached | operators",
            "{loop[agents]} | {loop[original_ms]:.1f} | {loop[ms]:.1f} | {batched[ms]:.1f} | "
            "{over_loop} | {batched[over_cached]:.2f}x | {loop[ops]:,} / {batched[ops]:,}",
            [{**team, "over_loop": speed_up(team["batched"], "over_loop")} for team in teams.values()],
        ),
        "The loop evaluates the actor of every agent again for each agent, in both phases of an update: with N agents "
        "2 N² times, where 2 N are enough. `cached` is the loop without that waste. "
        f"Batch 128, hidden 256, float32, toggles `eager`; medians of interleaved rounds. {measured(record)}. "
        f"† {source}: read it as a scale, not as a ratio.",
        table(
            "agents | loop (ms) | best in fp32 (ms) | best (ms) | batched over loop, over cached | "
            "best over loop, over cached | which is | fp32: share of its ceiling | warm-up repaid after",
            "{loop[agents]} | {loop[ms]:.1f} | {exact[ms]:.1f} | {best[ms]:.1f} | "
            "{batched}, {plain[over_cached]:.2f}x | {over_loop}, **{best[over_cached]:.2f}x** | {best[setting]} | "
            "{exact[share]:.0%} | {repaid}",
            rungs,
        ),
        f"{measured(ladder)}. Times and ratios differ from those above, of the same sizes: it is another run, and "
        "above all three have the toggles of `eager`, fused Adam among them, where a rung has only those of its name. "
        "The ceiling is the time of an update's matrix products "
        "alone, at the rate measured for their own shapes; compiling takes its time once, and "
        "is repaid against the fastest rung without it. bfloat16 over float32, eager "
        "and compiled: "
        + "; ".join(f"{' and '.join(row['bf16'])} with {row['loop']['agents']} agents" for row in rungs)
        + ". A CPU without instructions for bfloat16 emulates it, slowly: `uavlab doctor` measures both, and `laptop` "
        "uses it only where the CPU has `avx512_bf16` or `amx_bf16`.",
    ]


def ladder_rows() -> list[dict[str, Any]]:
    """Return the loop, the best setting in float32 and the best of all with one thread, for each team."""
    rows, records = [], [row for row in read("bench_ladder")["rows"] if row["threads"] == 1]
    for loop in (row for row in records if row["setting"] == "loop"):
        same = {row["setting"]: row for row in records if row["agents"] == loop["agents"]}
        (best,) = (row for row in same.values() if row["best"])
        exact = min((row for name, row in same.items() if "bf16" not in name), key=lambda row: row["ms"])
        paid, plain = best["paid_back"], same["batched"]
        repaid = "never" if paid is None else f"{paid:,} updates" if paid else "at once"
        low = [f"{same[name]['over_below']:.2f}x" for name in same if name.endswith("bf16")]
        over = {"batched": speed_up(plain, "over_loop").replace("*", ""), "over_loop": speed_up(best, "over_loop")}
        rows.append({"loop": loop, "exact": exact, "best": best, "plain": plain, "repaid": repaid, "bf16": low, **over})
    return rows


def claims() -> list[str]:
    """Return the claims about speed with what was measured here, and a count of all verdicts."""
    record = newest_claims()
    each = [record | {"others": []}, *record["others"]]
    columns = [[report.texts(row) for row in report.rows(ledger(), one) if row["claim"] in CLAIMS] for one in each]
    heads = [f"on {'the CPU' if one is each[0] else one['machine']['device']} | verdict" for one in each]
    return [
        table(
            " | ".join(["claim | claimed | device", *heads]),
            "",
            [],
            last=[
                " | ".join(lines[0][:3] + sum((line[3:] for line in lines), ())) for lines in zip(*columns, strict=True)
            ],
        ),
        f"{report.count_verdicts(report.rows(ledger(), record))}. A claim about a GPU has no verdict from a CPU, and "
        "the utilisation of another program's GPU has one of this program. A verdict may rest on arithmetic; then its "
        f"note says so. Measured by `uavlab claims --measure all`; the CPU is {machine(record['machine'])}. "
        "[On a GPU](gpu.md) has all that a GPU decides.",
        "`uavlab claims --all` shows all of them, with the command that measures each again where there is one, and "
        "the notebook `claims` draws them.",
    ]


def worlds() -> list[str]:
    """Return how fast worlds are stepped."""
    record = read("bench_env")
    return [
        table(
            "`advance`, whole | agents | worlds | agent-steps per second | compiled | gain",
            "{setting} | {agents} | {worlds} | {plain:.1f} million | {compiled:.1f} million | "
            "{compiled_over_plain:.2f}x [{low:.2f}, {high:.2f}]",
            [
                {**row, "plain": row["agent_steps_per_s"] / 1e6, "compiled": row["compiled_agent_steps_per_s"] / 1e6}
                for row in record["rows"]
            ],
        ),
        f"{measured(record)}, torch {record['machine']['torch']}. "
        "The command of every record is in [tools/records.sh](../tools/records.sh).",
    ]


def guard() -> str:
    """Return what the guard against numbers that are not finite costs."""
    record = read("bench_guard")
    costs = " and ".join(map(guard_cost, record["rows"]))
    command, where = short(record["command"]), machine(record["machine"])
    return f"The guard costs {costs}, of an update of `leader_follower_quick` on one thread: `{command}`, {where}."


def monitor() -> str:
    """Return what the readings of ``--monitor`` cost."""
    record = read("bench_monitor")
    costs = " and ".join(
        "{:.1f} % [{:.1f}, {:.1f}] of `{}`".format(
            *(100 * (row[key] - 1) for key in ("on_over_off", "low", "high")), row["preset"]
        )
        for row in record["rows"]
    )
    return f"`--monitor` costs {costs}, of the time of training: {measured(record)}."


def guard_cost(row: Mapping[str, Any]) -> str:
    """Return what the guard costs of an update, with its interval."""
    cost, low, high = (100 * (row[key] - 1) for key in ("guarded_over_plain", "low", "high"))
    return f"{cost:.1f} % [{low:.1f}, {high:.1f}] with {row['agents']} agents"
