"""An experiment: presets, settings, assembly, run, run folder, trained policy."""
