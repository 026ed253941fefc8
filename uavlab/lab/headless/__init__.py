"""Notebooks without a browser: parameters, runner, kernel, report, and what may be committed."""
