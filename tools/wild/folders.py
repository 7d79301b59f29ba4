"""Folders with the libraries of pins.txt, one for each library, in the cache."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def pins() -> dict[str, list[str]]:
    """Return {library: requirements} of pins.txt."""
    lines = (line.partition(":") for line in (HERE / "pins.txt").read_text("utf-8").splitlines() if line[:1] != "#")
    return {name: requirements.split() for name, _, requirements in lines}


def install(library: str, cache: Path) -> Path:
    """Return the folder of a library. pip fills it unless it has the pinned versions."""
    folder, marker, wanted = cache / library, cache / library / ".pins", " ".join(pins()[library])
    if not marker.exists() or marker.read_text("utf-8") != wanted:
        print(f"installing {library} into {folder}", file=sys.stderr)
        alone = [] if library == "torch" else ["--no-deps"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", folder, *alone]
        environment = os.environ | {"DS_BUILD_OPS": "0"}
        subprocess.run([*map(str, command), *pins()[library]], check=True, env=environment)
        marker.write_text(wanted, "utf-8")
    return folder
