"""Docstrings of twins: the text of the reference, and what differs.

The docstring of a twin has the first line that editors show, arguments of its own, and each section that differs. The
last line of a twin's file calls `describe_twins`, so that `help` shows the whole text.
"""

import importlib
import inspect
import re
import sys

HEADING = r"\n+(?=(?:Args|Attributes|Returns|Raises|Source|Discontinuity|Ties|Example|Differs from the reference):)"


def _parts(text: str) -> dict[str, str]:
    opening, *sections = re.split(HEADING, inspect.cleandoc(text))
    summary, _, body = opening.partition("\n\n")
    return {"summary": summary, "body": body} | {section.partition(":")[0]: section for section in sections}


def _entries(section: str) -> dict[str, str]:
    return {entry.partition(":")[0]: entry for entry in re.split(r"\n    (?=\S)", section)}


def joined(reference: str, twin: str) -> str:
    """Return the reference's docstring, without examples, with the parts and arguments of the twin's docstring."""
    parts, other = _parts(reference), {name: text for name, text in _parts(twin).items() if text}
    if "Args" in other:
        other["Args"] = "\n    ".join((_entries(parts.get("Args", "Args:")) | _entries(other["Args"])).values())
    return "\n\n".join(text for name, text in (parts | other).items() if text and name != "Example")


def describe_twins(module: str) -> None:
    """Join the docstrings of a module's public functions, classes and methods with those of the reference."""
    original = importlib.import_module(module.replace(".accelerated.", ".reference."))
    pairs = [(vars(sys.modules[module]), vars(original))]
    for twins, originals in pairs:
        for name in twins.keys() & originals.keys():
            twin, other = twins[name], originals[name]
            if name[0] != "_" and callable(twin) and twin.__module__ == module and twin.__doc__ and other.__doc__:
                twin.__doc__ = joined(other.__doc__, twin.__doc__)
                if inspect.isclass(twin):
                    pairs.append((vars(twin), vars(other)))
