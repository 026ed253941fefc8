"""Notebooks without a browser: runner, kernel, parameters, report."""
