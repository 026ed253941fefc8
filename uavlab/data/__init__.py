"""Logs of flights, read from files that anybody may have written."""
