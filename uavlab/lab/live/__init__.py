"""The panel of a live run: its pictures, its switches, and the table of what each change did."""
