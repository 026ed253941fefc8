"""The part of the catalogue of bad input on curricula, sizes, alarms, the log of a search, and the assignment task."""

from tests.support.bad_inputs import P, Row

Q = "assignment_curriculum"
NO_SIZE = "expected a number of bytes above 0, such as 512MB or 2GiB."
NO_TEAM = "counts the entities of a team, and there is none; set a number."
TABLE = "curriculum:\n  metric: normalized_score\n"
EARLY = "{uavs: [4, 6], targets: [3, 4], obstacles: [1, 3], slots: [20, 15, 10]"


def stages(id: str, *rows: str, message: str, more: str = "") -> Row:
    """Return a row with a table of stages that is refused."""
    text = TABLE + more + "  stages:\n" + "".join(f"    - {row}\n" for row in rows)
    return Row(id, f"train {Q} --config mine.yaml", f"{Q}: curriculum: {message}.", files={"mine.yaml": text})


ROWS = (
    Row(
        "size empty",
        f"train {Q} --set uavs=[0,0]",
        f"{Q}: uavs (0, 0): expected fewest and most, from 1 on (uavs from --set).",
    ),
    Row(
        "size too many",
        f"train {Q} --set targets=[60,80]",
        f"{Q}: uavs (15, 20), targets (60, 80) and obstacles (5, 10) with slots (0, 0, 0): more than there are "
        "cells in side 1000.0 / (2 x spacing 50.0), squared; lower them, or spacing (targets from --set).",
    ),
    Row(
        "assignment supply",
        f"train {Q} --set supply=[0.2,0.8]",
        f"{Q}: supply (0.2, 0.8): less than all demand in every world, so that no team can satisfy all targets; "
        "expected a most of at least 1 (supply from --set).",
    ),
    Row(
        "assignment reach",
        f"train {Q} --set reach=[0.01,0.04]",
        f"{Q}: reach (0.01, 0.04) x side 1000.0: not beyond spacing 50.0, so that no UAV reaches a target in any "
        "world; raise reach (reach from --set).",
    ),
    Row(
        "assignment order",
        f"train {Q} --set reach=[1.2,0.8]",
        f"{Q}: reach (1.2, 0.8): expected shortest and longest, in order (reach from --set).",
    ),
    Row(
        "size followers",
        "train leader_follower --set present=[0,2]",
        "leader_follower: present (0, 2): expected fewest and most of the 1 followers….",
    ),
    stages(
        "curriculum order",
        f"{EARLY}, mark: 0.7}}",
        "{uavs: [2, 3], slots: [20, 15, 10], mark: 0.7}",
        message="stage 2: uavs (2, 3) after (4, 6): expected stages in order, from small to large",
    ),
    stages(
        "curriculum supply",
        f"{EARLY}, supply: [0.2, 0.8]}}",
        message="stage 1: supply (0.2, 0.8): less than all demand …",
    ),
    stages(
        "curriculum mix",
        f"{EARLY}}}",
        "{mix: [0.7, 0.2]}",
        message="stage 2: mix [0.7, 0.2]: expected two shares that sum to 1, of this stage and of those before",
    ),
    stages(
        "curriculum mark",
        f"{EARLY}, mark: 1.2}}",
        message="stage 1: mark 1.2: expected a value of normalized_score, from 0 to 1",
    ),
    stages(
        "curriculum fallback",
        f"{EARLY}, mark: 0.9}}",
        "{mark: 0.8}",
        more="  margin: 0.95\n",
        message="stage 2: mark 0.8: below 0.855, at which a seed falls back after the mark 0.9 of the stage before; "
        "raise the mark, or lower margin 0.95",
    ),
    stages(
        "curriculum shapes",
        "{uavs: [2, 3], targets: [1, 2]}",
        message="stage 1: spec of the task, then of the stage: obs …; expected equal ones: let stages have as many "
        "slots as the largest one",
    ),
    stages(
        "curriculum word", f"{EARLY}, marks: 0.5}}", message="stage 1: unknown setting 'marks' (did you mean 'mark'?)"
    ),
    Row(
        "curriculum study",
        "bench curriculum --presets spread_quick",
        "bench curriculum: preset 'spread_quick' has no curriculum; expected one of assignment_curriculum, "
        "assignment_curriculum_quick, leader_follower_curriculum, or a preset of yours with this setting.",
    ),
    Row(
        "curriculum of what",
        "train leader_follower --config mine.yaml",
        "leader_follower: curriculum: stage 1: crash_radius: expected settings that initial alone reads: "
        "obstacle_speed, present, present_obstacles (initial_settings of LeaderFollower).",
        files={"mine.yaml": "curriculum:\n  metric: completion\n  stages:\n    - {crash_radius: 30.0}\n"},
    ),
    Row(
        "plateau factor",
        ["train", "leader_follower", "--set", "plateau={factor: 2.0}"],
        "leader_follower: plateau: factor: input should be less than 1, got 2.0.",
    ),
    Row(
        "alarm without a limit",
        ["train", "leader_follower", "--set", "alarms=[{figure: q}]"],
        "leader_follower: alarm 1: got no limit; expected one of above, below, rise, fall.",
    ),
    Row(
        "alarm date",
        ["train", "leader_follower", "--set", "alarms=[{figure: q, above: 2024-01-01}]"],
        "alarms: Object of type date is not JSON serializable; expected texts, …",
    ),
    Row(
        "alarm rise",
        f"train {P} --config mine.yaml",
        f"{P}: alarm 1: window: input should be greater than or equal to 10, got 5.",
        files={"mine.yaml": "alarms: [{figure: critic_loss, rise: 5, window: 5}]\n"},
    ),
    Row("size auto", "train telemetry --set batch=auto", f"telemetry: batch=auto {NO_TEAM}"),
    Row(
        "size worlds",
        "train telemetry --set worlds=auto",
        "telemetry: unknown setting 'worlds' (did you mean 'workers'?). All settings: uavlab settings telemetry.",
    ),
    Row("fit memory", f"fit {P} --memory lots", f"memory 'lots': {NO_SIZE}"),
    Row("fit memory none", f"fit {P} --memory 0MB", f"memory '0MB': {NO_SIZE}"),
    Row(
        "fit memory little",
        f"fit {P} --memory 1kB",
        "worlds: one does not fit into 1,000 bytes; lower batch, capacity, hidden or runs, or allow more.",
        code=5,
    ),
    Row("fit most", f"fit {P} --most 0", "Invalid value for '--most': 0 is not in the range 1<=x<=1000000."),
    Row("fit preset", "fit leader_folower", "unknown preset 'leader_folower' (did you mean 'leader_follower'?). …"),
    Row(
        "fit setting",
        f"fit {P} --set worlds=few",
        f"{P}: worlds: input should be a valid integer, got 'few' from --set.",
    ),
    Row(
        "transfer sizes",
        "transfer run --sizes few",
        "--sizes 'few': expected whole numbers with commas, such as 2,4,8.",
        run=lambda run: None,
    ),
    Row(
        "transfer preset",
        "transfer spread --sizes 2",
        "'spread' is a preset, expected a run; train it first: uavlab train spread.",
    ),
)
