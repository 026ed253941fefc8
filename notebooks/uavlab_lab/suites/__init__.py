"""The suites of ``uavlab bench``: every module here is imported, and registers its suites by a decorator."""
