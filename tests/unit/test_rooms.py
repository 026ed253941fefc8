"""Each room has a budget of lines, and the package a limit of lines and files, so that nothing only grows."""

from tools import surface

BUDGETS = {  # lines of Python; a line above one needs a line less elsewhere in the room, or another number and a reason
    "docs": 60,
    "notebooks": 60,
    "notebooks/uavlab_lab": 10_150,
    "setup.py": 60,
    "tools": 3_840,
    "uavlab": 1_430,
    "uavlab/cli": 1_070,
    "uavlab/collectors": 920,
    "uavlab/core": 1_840,
    "uavlab/envs": 3_050,
    "uavlab/experiment": 5_510,
    "uavlab/interop": 690,
    "uavlab/lean": 1_040,
    "uavlab/learners": 2_720,
    "uavlab/nets": 730,
    "uavlab/ops": 580,
    "uavlab/profiling": 500,
    "uavlab/replay": 720,
    "uavlab/runtime": 2_370,
    "uavlab/storage": 940,
    "uavlab/sweeps": 950,
    "uavlab/telemetry": 3_250,
    "uavlab/testing": 850,
    "uavlab/workers": 1_620,
}
PACKAGE, FILES, BESIDE = 30_700, 160, 14_200  # lines and files of ``uavlab``, and lines of all other code but tests


def excesses(rooms: dict[str, surface.Size]) -> list[str]:
    """Return what is over its budget, or has none."""
    rooms = {name: size for name, size in rooms.items() if name.partition("/")[0] != "tests"}
    package = [size for name, size in rooms.items() if name.partition("/")[0] == "uavlab"]
    beside = sum(size.lines for size in rooms.values()) - sum(size.lines for size in package)
    found = {name: (size.lines, BUDGETS.get(name, 0)) for name, size in rooms.items()}
    found["uavlab as a whole"] = (sum(size.lines for size in package), PACKAGE)
    found["files of uavlab"] = (sum(size.files for size in package), FILES)
    found["all other code"] = (beside, BESIDE)
    return [f"{name}: {count:,} of {budget:,}" for name, (count, budget) in found.items() if count > budget]


def test_every_room_keeps_its_budget() -> None:
    rooms = surface.measure_rooms()
    assert excesses(rooms) == []
    assert set(BUDGETS) <= set(rooms)  # a room that went leaves no budget behind


def test_what_grows_is_told() -> None:
    full = surface.Size(files=1, lines=BUDGETS["uavlab/ops"] + 1, code=0, characters=0)
    assert excesses({"uavlab/ops": full}) == [f"uavlab/ops: {full.lines:,} of {BUDGETS['uavlab/ops']:,}"]
    assert excesses({"uavlab/new": full._replace(lines=1)}) == ["uavlab/new: 1 of 0"]
    whole = {"uavlab/ops": surface.Size(161, 30_701, 0, 0), "tools": surface.Size(1, 14_201, 0, 0)}
    assert [text.partition(":")[0] for text in excesses(whole)] == [
        *("uavlab/ops", "tools", "uavlab as a whole", "files of uavlab", "all other code")
    ]
