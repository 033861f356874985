"""Undoes what a check found, as far as the catalog allows."""

from __future__ import annotations

from pathlib import Path

from strop.errors import IndexDamaged
from strop.storage.catalog import Catalog
from strop.storage.check import Findings
from strop.storage.compaction import rewrite
from strop.storage.seals import KEY


def repair(catalog: Catalog, folder: Path, dim: int, findings: Findings) -> None:
    """Undo damage as far as the catalog allows; vectors that were lost wait to be made again."""
    if findings.reseal:
        with catalog.writing() as connection:
            connection.execute("DELETE FROM meta WHERE key = ?", (KEY,))
    if findings.reindex:
        with catalog.writing() as connection:
            connection.execute("REINDEX")
            report = [line for (line,) in connection.execute("PRAGMA integrity_check(5)")]
            if report != ["ok"]:
                raise IndexDamaged(
                    f"{catalog.path} is damaged ({'; '.join(report)}) and cannot be rebuilt: "
                    "restore it from a backup, or build the index again in another folder"
                )
    for set_id, numbers in findings.rewrite.items():
        file = catalog.vectors.files()[set_id]
        rewrite(catalog, folder, dim, file, file.dtype, sorted(numbers))
    with catalog.writing() as connection:
        connection.executemany(
            "INSERT OR IGNORE INTO waiting (set_id, number) VALUES (?, ?)", findings.lost
        )
        connection.execute("DELETE FROM waiting WHERE number NOT IN (SELECT number FROM documents)")
        if findings.recount:
            catalog.vectors.recount()
        for kind in findings.sidecars:
            catalog.settings.put_sidecar(kind, None)
