"""Run exported policies as someone without uavlab does: python -I run_exported.py INPUTS RESULTS FILE..."""

import sys


def main(given: str, results: str, *files: str) -> None:
    sys.modules["uavlab"] = None  # type: ignore[assignment]  # every import of it fails
    import numpy as np
    import onnxruntime
    import torch

    inputs, arrays = np.load(given, allow_pickle=False), {}
    for file in files:
        if file.endswith(".pt2"):
            policy = torch.export.load(file).module()
            outputs = [each.numpy() for each in policy(*(torch.from_numpy(each) for each in inputs.values()))]
        else:
            outputs = onnxruntime.InferenceSession(file).run(None, dict(inputs))
        arrays |= {f"{file.rpartition('.')[2]}.{n}": each for n, each in enumerate(outputs)}
    assert [name for name in sys.modules if name.partition(".")[0] == "uavlab"] == ["uavlab"]
    np.savez(results, **arrays)


main(*sys.argv[1:])
