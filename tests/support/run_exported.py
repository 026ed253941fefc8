"""Run exported policies as someone without uavlab does: python -I run_exported.py FOLDER FILE...

For each FOLDER/given/NAME.npz of inputs it writes FOLDER/results/NAME.npz of outputs. Each FILE lies in the working
directory and is run by the line of Python that its description holds.
"""

import json
import sys
from pathlib import Path


def main(folder: str, *files: str) -> None:
    sys.modules["uavlab"] = None  # type: ignore[assignment]  # every import of it fails
    import numpy as np
    import onnxruntime
    import torch

    for given in Path(folder, "given").iterdir():
        inputs, arrays = np.load(given, allow_pickle=False), {}
        for file in files:
            record = json.loads(Path(f"{file}.json").read_text())
            kind = torch.from_numpy if file.endswith(".pt2") else np.asarray
            names = {"torch": torch, "onnxruntime": onnxruntime, **{key: kind(inputs[key]) for key in inputs}}
            exec(record["load"], names)
            outputs = [np.asarray(names[each["name"]]) for each in record["outputs"]]
            arrays |= {f"{file.rpartition('.')[2]}.{n}": each for n, each in enumerate(outputs)}
        np.savez(Path(folder, "results", given.name), allow_pickle=False, **arrays)
    assert [name for name in sys.modules if name.partition(".")[0] == "uavlab"] == ["uavlab"]


main(*sys.argv[1:])
