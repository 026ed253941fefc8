"""Programs as users write them, for type checkers; they are not run."""
