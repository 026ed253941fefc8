"""A check of every GPU path on a CUDA machine; see docs/gpu.md."""
