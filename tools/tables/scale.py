"""What update intervals, worker processes and ranks are worth, and what several devices would do, from records."""

from collections.abc import Callable, Mapping
from typing import Any

from tools.tables.records import again, exists, listed_machines, measured, read, speed_up, table
from uavlab.core.statistics import student
from uavlab_lab.suites.scale import CLUSTERS


def parts() -> list[str]:
    """Return the tables whose records have been made, with their sentences."""
    sections: Mapping[str, Callable[[], list[str]]]
    sections = {
        "bench_external": workers,
        "bench_interval": intervals,
        "bench_interval_learning": learning,
        "bench_ranks": ranks,
        "bench_scale": devices,
    }
    return [part for name, section in sections.items() if exists(name) for part in section()]


def workers() -> list[str]:
    """Return what overlap is worth beside an external environment, and how far more workers go."""
    record = read("bench_external")
    rows = [{**row, "over": speed_up(row, "over_first")} for row in record["rows"]]
    return [
        table("external environment | step and update (ms) | over in turn", "{setting} | {ms:.1f} | {over}", rows),
        f"{record['worlds']} worlds in {record['workers']} worker processes, whose environment waits "
        f"{1000 * record['wait_s']:g} ms in each step; updates on {record['batch']} rows. In turn, steps take "
        f"{record['environment_share']:.0%} of the time, so overlap can gain {1 / max_share(record):.2f} times at "
        f"most. Update intervals of 8, but for the last row. {measured(record)}.",
        table(
            "workers | worlds | steps per second | of workers / wait",
            "{workers} | {worlds} | {steps_per_s:,.0f} | {of_ideal:.0%}",
            record["scaling"],
        ),
    ]


def max_share(record: Mapping[str, Any]) -> float:
    """Return the larger of the shares of the time that steps and updates take in turn."""
    return max(record["environment_share"], 1 - record["environment_share"])


def intervals() -> list[str]:
    """Return speed-ups over interval 1 in one process, and of devices that wait."""
    record = read("bench_interval")
    rows: dict[tuple[int, bool], dict[str, Any]] = {}
    for row in record["rows"]:
        key = f"k{row['interval']}"
        rows.setdefault((row["worlds"], row["overlap"]), {})[key] = speed_up(row, "over_first")
        rows[row["worlds"], row["overlap"]][f"rate{row['interval']}"] = row["rows_per_s"]
    shown = [
        {"worlds": worlds, "way": "beside updates" if overlap else "between updates", **row}
        for (worlds, overlap), row in rows.items()
    ]
    waiting: dict[int, dict[str, Any]] = {}
    for row in record["waiting"]:
        waiting.setdefault(row["devices"], {"devices": row["devices"]})[f"k{row['interval']}"] = f"{row['gain']:.2f}x"
    ranks: dict[int, list[dict[str, Any]]] = {}
    for row in record["ranks"]:
        own = {"k": row["interval"], "ms": row["update_ms"], "over": speed_up(row, "over_first"), "gain": row["gain"]}
        ranks.setdefault(row["ranks"], []).append(own)
    measured_ranks = [
        table(
            f"interval, {count} ranks here | update (ms) | over interval 1 | by the model",
            "{k} | {ms:.1f} | {over} | {gain:.2f}x",
            own,
        )
        for count, own in ranks.items()
    ]
    if ranks:
        measured_ranks.append(
            "Presets `interval_1` to `interval_20` by gloo, in blocks in turn: a step takes 2 ms and a random time of "
            "3 ms in the mean. The model is given the update's time at interval 1, and knows nothing of other load."
        )
    return [
        table(
            "worlds | steps | interval 1 | 5 | 10 | 20 | rows per second at 10",
            "{worlds} | {way} | {k1} | {k5} | {k10} | {k20} | {rate10:,.0f}",
            shown,
        ),
        f"Updates per second over interval 1 with steps between updates, in one process; a step waits for "
        f"{record['rows'][0]['step_ms']:.1f} ms, {record['pace']:g} times what an update on 512 rows takes. "
        f"{measured(record)}.",
        table(
            "devices that wait for the slowest | interval 1 | 5 | 10 | 20",
            "{devices} | {k1} | {k5} | {k10} | {k20}",
            waiting.values(),
        ),
        "By a model, not measured: updates per second over interval 1 where a step takes a random, exponentially "
        "distributed time whose mean is that of an update, and sums of gradients take none.",
        *measured_ranks,
    ]


def learning() -> list[str]:
    """Return how far teams are after the same updates, and when they complete their flights."""
    record = read("bench_interval_learning")
    rows = [
        {
            **row,
            "reached": goal_reached(record["goal"], row, "update", 1, ",.0f"),
            "after": goal_reached(record["goal"], row, "seconds", 60, ".1f"),
        }
        for row in record["rows"]
        if not row["failed"]
    ]
    seeds, trained = len(rows[0]["completion"]["each"]), [row["trained"]["machine"] for row in record["rows"]]
    return [
        table(
            "setting | updates | minutes | completion at the end | updates to {goal:g} | minutes to {goal:g}".format(
                **record
            ),
            "{setting} | {updates:,} | {minutes:.1f} | {completion[mean]:.3f} [{completion[low]:.3f}, "
            "{completion[high]:.3f}] | {reached} | {after}",
            rows,
        ),
        f"{seeds} seeds of each, in one process, trained in turn from score to score; means over seeds of when each "
        f"first reached the goal, with Student's intervals; - where one never did. "
        f"{again(record)}. {listed_machines(trained)}.",
    ]


def goal_reached(goal: float, row: Mapping[str, Any], axis: str, unit: float, shape: str) -> str:
    """Return the mean and the interval over seeds of where each first reached the goal; - where one never did."""
    curve = row["curve"]
    seeds = len(curve[0]["each"]["completion"]) if curve else 0
    places = [
        next((point[axis] for point in curve if point["each"]["completion"][seed] >= goal), None)
        for seed in range(seeds)
    ]
    if None in places:
        return "-"
    return "{:{shape}} [{:{shape}}, {:{shape}}]".format(*student([place / unit for place in places]), shape=shape)


def ranks() -> list[str]:
    """Return the throughput of ranks on one machine."""
    record = read("bench_ranks")
    rows = [{**row, "exchanged": row["gradient_bytes"] / 1000 if row["ranks"] > 1 else 0.0} for row in record["rows"]]
    return [
        table(
            "preset | ranks | updates per second | agent-steps per second | efficiency | gradients (kB) | a sum (us)",
            "{preset} | {ranks} | {cycles_per_s:.1f} | {agent_steps_per_s:,} | {efficiency[mean]:.2f} "
            "[{efficiency[low]:.2f}, {efficiency[high]:.2f}] | {exchanged:.0f} | {all_reduce_us:,.0f}",
            rows,
        ),
        f"Ranks by gloo on {record['machine']['cores']} cores, each with one thread, and worlds and batches of its "
        "own. An efficiency of 1 would be so many times the agent-steps of one; no GPU was tried. "
        f"{measured(record)}.",
    ]


def devices() -> list[str]:
    """Return what several devices would do, by system."""
    record = read("bench_scale")
    rows: dict[str, dict[str, Any]] = {}
    for row in record["rows"]:
        own = rows.setdefault(row["preset"], {**row, "gains": {}})
        own["gains"][row["cluster"]] = f"{row['gain']:,.1f}x"
    names = [name for name in CLUSTERS if any(name in row["gains"] for row in rows.values())]
    return [
        table(
            f"preset | update (ms) | of it steps | gradients (MB) | sums | {' | '.join(names)}",
            "{preset} | {update_ms:.1f} | {steps_ms:.1f} | {gradient_mb:.2f} | {reductions} | {cells}",
            [{**row, "cells": " | ".join(row["gains"].get(name, "-") for name in names)} for row in rows.values()],
        ),
        "By a model, not measured: times as many rows per second as one device, each with worlds and batches of its "
        "own. An update of one device is measured; sums go around a ring of devices, 2 (n - 1) messages of 1/n of the "
        "gradients each, with a start-up of 10 us at 300 GB/s, 50 us at 100 Gbit/s and 100 us at 1 Gbit/s. Devices do "
        f"not multiply updates, and what more rows for an update are worth was not measured. {measured(record)}.",
    ]
