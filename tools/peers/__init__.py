"""Times of updates and of learning, beside other programs: ``python -m tools.peers`` and ``python -m tools.peers.learning``.

A worker imports the packages of its own program alone, but for environments of this package on which another one
learns; this package and ``worker`` import none but torch.
"""
