"""Folders with the libraries of pins.txt, one for each library, in the cache, and processes that import them."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("ROUTELAWS_WILD", Path.home() / ".cache" / "routelaws-wild"))


def pins() -> dict[str, list[str]]:
    """Return {library: requirements} of pins.txt."""
    lines = (line.partition(":") for line in (HERE / "pins.txt").read_text("utf-8").splitlines() if line[:1] != "#")
    return {name: requirements.split() for name, _, requirements in lines}


def install(library: str) -> Path:
    """Return the folder of a library. pip fills it unless it has the pinned versions."""
    folder, marker, wanted = CACHE / library, CACHE / library / ".pins", " ".join(pins()[library])
    if not marker.exists() or marker.read_text("utf-8") != wanted:
        print(f"installing {library} into {folder}", file=sys.stderr)
        alone = [] if library == "torch" else ["--no-deps"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", folder, *alone]
        environment = os.environ | {"DS_BUILD_OPS": "0"}
        subprocess.run([*map(str, command), *pins()[library]], check=True, env=environment)
        marker.write_text(wanted, "utf-8")
    return folder


def answer(script: str, words: Sequence[str], libraries: Sequence[str], limit: int):
    """Run a script of this folder in a process of its own, and return the content of the JSON file that it writes.

    Args:
        words: arguments of the script before the name of the file.
        libraries: names; the process can import those of pins.txt. PyTorch comes first.
        limit: seconds.

    Returns:
        The content; None if the process fails, with the reason on standard error.
    """
    folders = [install(name) for name in dict.fromkeys(["torch", *libraries]) if name in pins()]
    path = os.pathsep.join(map(str, reversed(folders)))
    environment = os.environ | {"PYTHONPATH": path, "KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "answer.json"
        command = [sys.executable, "-W", "ignore", str(HERE / script), *words, str(file)]
        try:
            done = subprocess.run(command, env=environment, timeout=limit, stdout=subprocess.DEVNULL, check=False)
            reason = f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            reason = f"more than {limit} s"
        if reason:
            print(f"{script} {' '.join(words)}: no answer, {reason}", file=sys.stderr)
            return None
        return json.loads(file.read_text("utf-8"))


def renew(page: Path, marks: tuple[str, str], text: str) -> None:
    """Write the generated part of a page between its marks."""
    head, _, rest = page.read_text("utf-8").partition(marks[0])
    page.write_text(f"{head}{marks[0]}\n\n{text}\n\n{marks[1]}{rest.partition(marks[1])[2]}", "utf-8")
