"""ipywidgets: panels, toggles, a training at work."""
