"""The algorithms of the package in one file each, with torch alone: ``masac`` and ``ppo``."""
