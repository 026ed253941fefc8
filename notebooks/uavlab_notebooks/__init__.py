"""What single notebooks measure or draw; no part of the library."""
