"""The tables of README and of the guides, made from figures/records: ``python -m tools.tables --write``.

A record holds its machine, commit and command; those of claims and proofs hold a commit for each row.
"""

from tools.tables import assignment, defaults, headline, peers, scale, scores, speed
from tools.tables.records import ROOT, read, table

MARKS = {
    "README.md": ("<!-- headline: made by tools/tables -->", "<!-- end of headline -->"),
    "docs/measurements.md": ("<!-- tables: made by tools/tables -->", "<!-- end of tables -->"),
    "docs/reliability.md": ("<!-- proofs: made by tools/tables -->", "<!-- end of proofs -->"),
}


def tables() -> list[str]:
    """Return all tables of the measurements, section by section, with the sentences between them."""
    sections = {
        "Leader and followers": scores.followers(),
        "Informative mapping": [*scores.maps(), *speed.missions()],
        "Telemetry": [*scores.flights(), *speed.loaders()],
        "Target assignment and curricula": assignment.parts(),
        "Defaults on tasks of others": defaults.parts(),
        "Updates": speed.updates(),
        "Another program": [*peers.parts(), *peers.learning()],
        "Update intervals and several devices": scale.parts(),
        "Claims about speed": speed.claims(),
        "Worlds": speed.worlds(),
    }
    return [part for title, parts in sections.items() if parts for part in (f"## {title}", *parts)]


def proofs() -> list[str]:
    """Return the result of each proof, and how to run it again."""
    rows = [{"name": name, **proof} for name, proof in sorted(read("proofs")["figures"].items())]
    places = dict.fromkeys("{cpu} ({cores} cores, torch {torch}, Python {python})".format(**row) for row in rows)
    return [
        table("what | figure | command", "{name} | {figure} | `pytest {test}`", rows),
        speed.guard(),
        speed.monitor(),
        f"The proofs ran on {' and '.join(sorted(places))}; the machine and the commit of each figure stand in "
        "`figures/records/proofs.json`. `sh tools/records.sh proofs` runs them all. Of n "
        "trials at random (kills, signals, damaged bytes, mutated settings), 0 failures mean a true rate below 3/n, "
        "with 95 % confidence; of listed cases only that these passed.",
    ]


PARTS = {"README.md": headline.parts, "docs/measurements.md": tables, "docs/reliability.md": proofs}


def block(name: str = "docs/measurements.md") -> str:
    """Return the text of a file between its two marks."""
    begin, end = MARKS[name]
    return "\n\n".join([begin, *PARTS[name](), end])


def write(name: str) -> None:
    """Put a file's tables into it."""
    begin, end = MARKS[name]
    text = (ROOT / name).read_text(encoding="utf-8")
    (ROOT / name).write_text(text.split(begin)[0] + block(name) + text.split(end)[1], encoding="utf-8")
