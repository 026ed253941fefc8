"""Notebooks without a browser: parameters, runner, kernel, report, and checks before a commit."""
