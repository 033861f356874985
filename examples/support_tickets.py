"""Support tickets: which solved tickets are like this new one, of the same product, of late?

    python examples/support_tickets.py

Filters choose by metadata before anything is ranked; a search returns the best k that match.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

from strop import Hit, Index

TICKETS = [  # id, product, day, status, text
    ("T-101", "printer", "2026-01-12", "solved", "Prints blank pages after a new cartridge. "
     "Solution: remove the orange tape from the cartridge."),
    ("T-102", "printer", "2026-05-03", "solved", "Blank pages, the cartridge is half full. "
     "Solution: run the cleaning program twice."),
    ("T-103", "printer", "2026-06-20", "solved", "Paper jam at every second page in duplex mode. "
     "Solution: replace the rear roller."),
    ("T-104", "printer", "2026-07-02", "open", "Prints stripes and blank areas since this week."),
    ("T-105", "scanner", "2026-06-11", "solved", "Scans are blank, the lamp is on. "
     "Solution: unlock the transport lock below the glass."),
    ("T-106", "scanner", "2026-02-25", "solved", "The scanner is not found on the network. "
     "Solution: give it a fixed address and install driver 4.2."),
    ("T-107", "printer", "2026-03-30", "solved", "The printer is offline after the router changed. "
     "Solution: enter the new wireless password in its menu."),
    ("T-108", "router", "2026-06-28", "solved", "Devices lose the connection every night. "
     "Solution: turn off the energy plan of the router."),
]  # fmt: skip
NEW = "The pages that come out are empty although the ink was changed yesterday"


def show(title: str, hits: Sequence[Hit]) -> None:
    print(title)
    for hit in hits:
        problem, _, solution = hit.text.partition("Solution: ")
        day, product = hit.metadata["day"], hit.metadata["product"]
        print(f"  {hit.id}  {product}, {day}: {problem.strip()}\n         {solution or 'open'}")
    print()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Index.create(f"{folder}/t.index") as index:
        index.sharpen()
        names = ("id", "product", "day", "status", "text")
        index.add(dict(zip(names, ticket, strict=True)) for ticket in TICKETS)
        print(f"New ticket: {NEW}\n")
        show("All tickets", index.search(NEW, k=3)[0])
        solved = {"product": "printer", "status": "solved"}
        show("Solved tickets about printers", index.search(NEW, k=2, where=solved)[0])
        recent = solved | {"day": {"$gte": "2026-04-01"}}
        show("Of these, since April", index.search(NEW, k=2, where=recent)[0])


if __name__ == "__main__":
    main()
