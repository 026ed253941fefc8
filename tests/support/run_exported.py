"""Run exported policies as someone without uavlab does: python -I run_exported.py FOLDER FILE...

For each FOLDER/given/NAME.npz of inputs it writes FOLDER/results/NAME.npz of outputs.
"""

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
            if file.endswith(".pt2"):
                policy = torch.export.load(file).module()
                outputs = [out.numpy() for out in policy(*(torch.from_numpy(each) for each in inputs.values()))]
            else:
                outputs = onnxruntime.InferenceSession(file).run(None, dict(inputs))
            arrays |= {f"{file.rpartition('.')[2]}.{n}": each for n, each in enumerate(outputs)}
        np.savez(Path(folder, "results", given.name), allow_pickle=False, **arrays)
    assert [name for name in sys.modules if name.partition(".")[0] == "uavlab"] == ["uavlab"]


main(*sys.argv[1:])
