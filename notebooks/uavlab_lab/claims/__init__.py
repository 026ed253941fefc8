"""The ledger of published claims, and the measurements behind each verdict."""
