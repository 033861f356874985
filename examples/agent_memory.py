"""Memory of an agent: it remembers what users said, recalls what matters, and can forget.

    python examples/agent_memory.py

`strop mcp FOLDER` gives the same memory to an agent over MCP.
"""

from __future__ import annotations

import tempfile
from datetime import date
from pathlib import Path

from strop import Index


class Memory:
    """Short notes of several users in one index; a note with a known topic replaces the old one."""

    def __init__(self, path: Path) -> None:
        self.index = Index.open(path) if path.exists() else Index.create(path)
        self.index.sharpen()

    def remember(self, user: str, topic: str, text: str, day: date) -> None:
        note = {"id": f"{user}/{topic}", "text": text, "user": user, "day": day.isoformat()}
        self.index.add([note])

    def recall(self, user: str, question: str, k: int = 2, since: date | None = None) -> list[str]:
        where = {"user": user} | ({"day": {"$gte": since}} if since else {})
        return [hit.text for hit in self.index.search(question, k=k, where=where)[0]]

    def forget(self, user: str) -> int:
        notes = [id_ for id_ in self.index.ids() if id_.startswith(f"{user}/")]
        self.index.remove(notes)
        return len(notes)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(Path(folder) / "memory.index")
        memory.remember("ana", "food", "Ana is allergic to peanuts.", date(2026, 1, 5))
        memory.remember("ana", "city", "Ana lives in Porto.", date(2026, 1, 5))
        memory.remember("ana", "trip", "Ana flies to Oslo on 3 May.", date(2026, 4, 20))
        memory.remember("ana", "seat", "On flights Ana wants an aisle seat.", date(2026, 2, 1))
        memory.remember("ben", "food", "Ben eats no meat.", date(2026, 3, 1))
        memory.index.close()

        memory = Memory(Path(folder) / "memory.index")  # another day, another process
        print("Order lunch for Ana:   ", memory.recall("ana", "which food must she avoid?", k=1))
        print("Order lunch for Ben:   ", memory.recall("ben", "which food must he avoid?", k=1))
        print("Book the flight:       ", memory.recall("ana", "her flight and the seat she likes"))
        memory.remember("ana", "city", "Ana moved to Lyon.", date(2026, 6, 1))
        print("After a correction:    ", memory.recall("ana", "in which city does she live?", k=1))
        print("What is new since May: ", memory.recall("ana", "news", since=date(2026, 5, 1)))
        print("Notes of Ben forgotten:", memory.forget("ben"), memory.recall("ben", "food"))


if __name__ == "__main__":
    main()
