"""``python -m uavlab``."""

from uavlab.cli import main

if __name__ == "__main__":
    main()
