"""Tools for notebooks: figures, widget panels, live runs, headless runs and reports."""
