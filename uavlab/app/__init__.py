"""What assembles, drives, keeps and measures a run."""
