"""Rows of the catalogue for files of sweeps."""

from collections.abc import Mapping

from tests.support.bad_inputs import Make, P, Row

KEYS = " Keys of a sweep: `uavlab sweep --help`."


def sweep(id: str, content: str, *problems: str, more: str = KEYS) -> Row:
    """Return a row with a file of a sweep that is refused."""
    return Row(f"sweep {id}", "sweep s.yaml", f"s.yaml: {'; '.join(problems)}.{more}", files={"s.yaml": content})


FILES: Mapping[str, str | bytes | Make] = {"s.yaml": f"presets: [{P}]\n"}

ROWS = (
    Row("sweep file", "sweep absent.yaml", "absent.yaml: not readable: No such file or directory."),
    Row("sweep no file", "sweep", "Missing argument 'FILE'. See `uavlab sweep --help`."),
    sweep("list", "- 1\n", "expected lines `name: value`, got a list", more=""),
    Row(
        "sweep tag",
        "sweep s.yaml",
        "s.yaml:1: tag '!!python/name:os.system'; expected plain values without tags.",
        files={"s.yaml": "presets: !!python/name:os.system\n"},
    ),
    sweep("empty", "seeds: 3\n", "presets: field required"),
    sweep(
        "keys",
        f"preset: {P}\npresets: [{P}]\nseeed: 3\nworkers: 0\n",
        "unknown setting 'preset' from s.yaml:1 (did you mean 'presets'?)",
        "unknown setting 'seeed' from s.yaml:3 (did you mean 'seeds'?)",
        "workers: input should be greater than or equal to 1, got 0 from s.yaml:4",
    ),
    sweep(
        "settings",
        f"presets: [{P}]\nsettings:\n  learing_rate: 1e-3\n  hidden: many\ngrid:\n  batch: [8, 0]\n  lr: [.nan]\n",
        f"{P}: unknown setting 'learing_rate' from s.yaml:3 (did you mean 'lr'?)",
        "hidden: input should be a valid integer, got 'many' from s.yaml:4",
        f"lr: input should be a finite number, got nan from s.yaml:7. All settings: … (with batch=8, lr=nan); {P}: …",
        "batch: input should be greater than or equal to 1, got 0 from s.yaml:6",
        "… (with batch=0, lr=nan)",
    ),
    sweep(
        "presets",
        "presets: [leader_folower, pursuit, pursuit]\n",
        "presets: 'pursuit' is given twice from s.yaml:1",
        "unknown preset 'leader_folower' (did you mean 'leader_follower'?). Known presets: … from s.yaml:1",
    ),
    sweep(
        "other preset", "presets: [spread]\nsettings: {obstacles: 3}\n", "spread: unknown setting 'obstacles' from …"
    ),
    sweep(
        "twice",
        f"presets: [{P}]\nseeds: [1, 1]\nsettings:\n  lr: 0.1\ngrid:\n  lr: [0.2]\n  batch: [8, 8]\n  seed: [1]\n",
        "seeds: 1 is given twice from s.yaml:2",
        "grid.batch: 8 is given twice from s.yaml:7",
        "lr is given in settings and in grid from s.yaml:6; leave out one",
        "seed: is given by `seeds` from s.yaml:8",
    ),
    sweep(
        "grid", f"presets: [{P}]\ngrid: {{lr: []}}\n", "grid: list should have at least 1 item…, got … from s.yaml:2"
    ),
    sweep(
        "trials",
        f"presets: [{P}]\nseeds: 1000\ngrid: {{lr: [0.1, 0.2, 0.3], hidden: [8, 9, 10, 11]}}\n",
        "12,000 trials; expected at most 10,000 from s.yaml:3",
    ),
    sweep(
        "toggles",
        f"presets: [{P}]\ngrid: {{toggles: [plain, fast]}}\n",
        "unknown toggles 'fast'. Known sets: plain, eager, laptop, gpu, max (with toggles=fast)",
    ),
    sweep(
        "learner",
        f"presets: [{P}]\nsettings:\n  learner: mapo\n",
        "unknown learner 'mapo' (did you mean 'mappo'?). Known learners: …",
    ),
    sweep(
        "search",
        f"presets: [{P}]\nsearch:\n  ranges:\n    lr: {{low: 0.1, high: 0.01, log: true}}\n    hidden: {{low: 8}}\n"
        "    batch: {valus: [8]}\n",
        "search.ranges.lr: `low <= high` must hold, but got (low=0.1, high=0.01) from s.yaml:4",
        "search.ranges.hidden: expected numbers low and high, with …, got {'low': 8} from s.yaml:5",
        "search.ranges.batch: expected …, got {'valus': [8]} from s.yaml:6",
    ),
    sweep(
        "search end",
        f"presets: [{P}]\nsearch:\n  ranges:\n    lr: {{low: 1e-4, high: 0.01}}\n    gamma: {{low: 0.9, high: 1.5}}\n",
        f"{P}: gamma: input should be less than or equal to 1, got 1.5 from s.yaml:5 (with lr=0.0001, gamma=1.5)",
    ),
    sweep(
        "search and grid",
        f"presets: [{P}]\ngrid: {{lr: [0.1]}}\nsearch: {{ranges: {{hidden: {{values: [8, 16]}}}}, trails: 3}}\n",
        "grid and search are both given from s.yaml:3; leave out one",
        "search: unknown setting 'trails' (did you mean 'trials'?) from s.yaml:3",
    ),
    sweep(
        "scale",
        f"presets: [{P}]\nscale: {{pursuit: [0, 1]}}\naddress: 127.0.0.1:1\n",
        "address: is of a Ray cluster from s.yaml:3; set engine: ray",
        "scale.pursuit: expected [lowest, highest] score of one of the presets, got [0, 1] of 'pursuit' from s.yaml:2",
    ),
    sweep(
        "scale ends",
        f"presets: [{P}]\nscale:\n  {P}: [1, 0.5]\n",
        f"scale.{P}: expected [lowest, highest] score of one of the presets, got [1, 0.5] from s.yaml:3",
    ),
    sweep(
        "environment",
        "presets: ['absent.py:make', 'pettingzoo:absent']\n",
        "…absent.py… from s.yaml:1",
        "…absent… from s.yaml:1",
    ),
    Row("sweep out", "sweep s.yaml --out .", ".: not empty; choose a new folder.", files=FILES),
    Row("sweep out file", "sweep s.yaml --out s.yaml", "s.yaml: a file; choose a new folder.", files=FILES),
    Row(
        "trial",
        "sweep-trial x {}",
        "sweep-trial: got '{}', expected JSON that `uavlab sweep` writes; use that.",
    ),
)
