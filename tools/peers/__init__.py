"""Times of updates and of whole iterations, beside those of other programs: ``python -m tools.peers``.

A worker imports the packages of its own program alone; this package and ``worker`` import none but torch.
"""
