# SPDX-License-Identifier: Apache-2.0
"""All verbs of a table (table_verbs.py) on parameter servers; a program for `server_cluster`."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

from support.processes import server_programs, table_verbs


def tables(strategy: Any, folder: str) -> Any:
    """Writes the results for all kinds of tables into the file `results`."""
    results = {}
    for name, kind in table_verbs.KINDS.items():
        with strategy.scope():
            own = f"{folder}/{name}".replace(" ", "_")
            variable = table_verbs.new_variable(name, kind, own, kind.sharding)
        results[name] = table_verbs.run_verbs(kind, variable, [0, 1])
    pathlib.Path(folder, "results").write_bytes(pickle.dumps(results))
    return {"kinds": len(results)}


if __name__ == "__main__":
    server_programs.main({**vars(server_programs), "tables": tables})
