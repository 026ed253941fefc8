"""The suites of `uavlab bench`, one file each."""
