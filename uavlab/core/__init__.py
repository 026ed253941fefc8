"""Types, contracts, random streams, errors and messages that every other package uses."""
