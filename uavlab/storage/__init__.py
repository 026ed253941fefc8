"""Files: checkpoints, records of runs, descriptions of the machine."""
