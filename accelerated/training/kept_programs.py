"""Programs that a later process need not trace and lower again: they are kept as StableHLO, before they are compiled.

JAX's own cache finds a compiled program by what goes into the compiler. Until that is known, a process has to trace
and lower the program, which takes longer than anything else at a second start. Here a program is found by all that it
follows from:

    the source of this package     byte by byte, the tests left out
    versions                       Python, JAX, jaxlib, NumPy, Optax
    settings                       all of JAX's, and the variables that it and its compiler read
    the device                     its platform and kind
    the run                        what the caller names, see `fields_of_programs`
    the arguments                  their tree, shapes and types

A program that differs in any of these has another file. The first process, too, compiles what it has written: so all
of them give the compiler one and the same program, and get the same numbers, bit by bit. A file that is damaged or
cannot be read is as good as none. The format is that of `jax.export`.

The command line names the folder, see `commands.programs`; without it nothing is kept.
"""

import functools
import os
import platform
import sys
from collections.abc import Callable
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

import jax
from jax import export

from ..files import PROGRAMS, write_atomically
from ..loops import CALLS, make_known
from .configuration import TrainConfig

ROOM = 1 << 27
"""Bytes that a folder may hold, of which a program takes about 100,000; the oldest go first."""

NOT_IN_PROGRAMS = ("seed", "learning_rate", "corpus", "eval", "init_from")
"""Fields of a run that are inputs of its programs, or are in none: runs that differ in these alone share them."""

_READ = ("JAX_", "XLA_", "LIBTPU_")
_DIGEST = 16


def kept(function, name: str, result: Callable, what: list, donates: bool = False):
    """Return a function that does what a jitted one does, with programs that are kept for later processes.

    A program with a callback into Python, as that of BASE, cannot be kept: such a one is traced in each process. So is
    every program where there are several devices.

    Args:
        function: jitted; its arguments are given by position.
        name: of the program, for the name of its file.
        result: is given the arguments, and returns a tree with the structure of what `function` returns.
        what: all that the programs depend on beside the arguments, as values whose `repr` says everything.
        donates: whether the function gives up its first argument.
    """
    folder = os.environ.get(PROGRAMS)
    if not folder or jax.device_count() != 1 or jax.config.jax_disable_jit:
        return function
    programs = {}

    def call(*arguments):
        leaves, tree = jax.tree.flatten(arguments)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):  # a part of another program, or shapes alone
            return function(*arguments)
        types = tuple(map(jax.typeof, leaves))
        if types not in programs:
            key = blake2b(repr([what, list(map(str, types)), str(tree), _surroundings()]).encode(), digest_size=16)
            path = Path(folder) / f"{name}-{key.hexdigest()}"
            given_up = range(len(jax.tree.leaves(arguments[0])) if donates else 0)
            programs[types] = _program(path, function, tree, leaves, tuple(given_up))
        if programs[types] is None:
            return function(*arguments)
        return jax.tree.unflatten(jax.tree.structure(result(*arguments)), programs[types](*leaves))

    return call


def fields_of_programs(config: TrainConfig) -> dict:
    """Return the fields of a run that its programs may depend on."""
    return {name: value for name, value in config.fields().items() if name not in NOT_IN_PROGRAMS}


def _program(path: Path, function, tree, leaves: list, given_up: tuple[int, ...]):
    """Return a program over leaves, from its file or written there now; None where none can be had."""

    def over_leaves(*leaves):
        return jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves)))

    def program(*leaves):
        return exported.call(*leaves)

    program.__name__ = path.name.partition("-")[0]  # as JAX's cache and profiles call it
    exported = _read(path)
    try:
        if exported is None:
            unchecked = map(export.DisabledSafetyCheck.custom_call, CALLS)  # a program is for this version alone
            exported = export.export(jax.jit(over_leaves), disabled_checks=tuple(unchecked))(*leaves)
            _write(path, bytes(exported.serialize()))
        else:  # tracing, which is left out, makes loops known to XLA
            program_text = exported.mlir_module()
            for call in CALLS:
                if call in program_text:
                    make_known(call)
    except (NotImplementedError, ValueError):  # it calls back into Python, or what no format promises to keep
        return None
    except OSError:  # no room, no right to write: this process has its program all the same
        pass
    # Compiled now, once: JAX would do it again when the first results come back, as they are tied to their device.
    return jax.jit(program, donate_argnums=given_up).lower(*leaves).compile()


def _read(path: Path) -> export.Exported | None:
    """Return the program of a file; None where there is none that can be read."""
    try:
        content = path.read_bytes()
        digest, body = content[:_DIGEST], content[_DIGEST:]
        return export.deserialize(bytearray(body)) if _digest_of(body) == digest else None
    except Exception:  # whatever the reader makes of a file that is not for it
        return None


def _write(path: Path, body: bytes) -> None:
    """Write a program beside its digest, and make room for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _digest_of(body) + body)
    files = [(found.stat(), found) for found in path.parent.iterdir()]
    room = ROOM
    for status, file in sorted(files, key=lambda pair: pair[0].st_mtime, reverse=True):
        room -= status.st_size
        if room < 0:
            file.unlink(missing_ok=True)


def _digest_of(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST).digest()


def _surroundings() -> list:
    """Return what every program of this process depends on."""
    libraries = [version(name) for name in ("jax", "jaxlib", "numpy", "optax")]
    device, settings = jax.devices()[0], sorted(jax.config.values.items())
    read = sorted((name, value) for name, value in os.environ.items() if name.startswith(_READ))
    kind = [device.platform, device.device_kind, device.client.platform_version]
    return [sys.version, platform.machine(), libraries, kind, settings, read, _source_digest()]


@functools.cache
def _source_digest() -> str:
    """Return a digest of the source of this package."""
    root, digest = Path(__file__).parents[1], blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith("tests/"):
            content = path.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
