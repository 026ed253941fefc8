"""Times of updates and of learning beside those of another program, BenchMARL.

``python -m tools.peers`` measures the former, ``python -m tools.peers.learning`` the latter. A worker imports the
packages of its own program alone, but for environments of this package on which another one learns; this package and
``worker`` import none but torch.
"""
