"""Types, protocols, random streams, errors: what everything else is made of."""
