"""Compiled loops as functions for XLA's foreign function interface on CPU.

XLA passes the address of a frame, which has the addresses and shapes of arguments and results. The layout of a frame is
public (`xla/ffi/api/c_api.h`, part of jaxlib). This file reads frames in words of 8 bytes. `known` compares the header
file with the expected layout, to reject other versions.
"""

import functools
import importlib
import re
import threading
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from numba import config

from ..errors import SlowerWarning
from ..kernels.compile import jit
from .memory import longs
from .tiles import compile_product
from .together import NUM_THREADS, SCHEDULE, compile_help

FUNCTIONS = {
    "routelaws_attention": "attention_call",
    "routelaws_experts": "expert_call",
}
"""{XLA's name of a function: the module whose `compiled` returns it}."""

UNKNOWN = (
    "this jaxlib has an unknown FFI layout, so attention and experts run in plain JAX, and a step takes 1.2 to 1.5 "
    "times as long; install the jaxlib of constraints.txt"
)
"""The warning if the layout is not known."""

_EXTENSION, _INTERFACE, _CONTEXT = 1, 2, 3
_NUM_ARGUMENTS, _ARGUMENTS, _NUM_RESULTS, _RESULTS, _ATTRIBUTES = 7, 9, 12, 14, 20  # positions in the frame, in words

_MOST_OPTIONAL = 9  # maximum arrays of a call, some of them optional
_DATA, _DIMENSIONS = 3, 5  # positions in an array, in words
_METADATA, _VERSION_THERE, _VERSION_HERE = 3, 3, 4  # positions in extension, metadata and interface, in words

KNOWN = {
    "XLA_FFI_CallFrame": "struct_size extension_start api ctx stage args rets attrs future",
    "XLA_FFI_Args": "struct_size extension_start size types args",
    "XLA_FFI_Rets": "struct_size extension_start size types rets",
    "XLA_FFI_Attrs": "struct_size extension_start size types names attrs",
    "XLA_FFI_Buffer": "struct_size extension_start dtype data rank dims",
    "XLA_FFI_Scalar": "dtype value",
    "XLA_FFI_Extension_Base|XLA_FFI_InternalExtension": "struct_size type next",  # the names before JAX 0.12 and since
    "XLA_FFI_Metadata_Extension": "extension_base metadata",
    "XLA_FFI_Metadata": "struct_size api_version traits state_type_id",
    "XLA_FFI_Api": "struct_size extension_start api_version internal_api",  # then the functions
    "XLA_FFI_Api_Version": "struct_size extension_start major_version minor_version",
    "XLA_FFI_ThreadPool_Schedule_Args": "struct_size extension_start ctx task data",
    "XLA_FFI_ThreadPool_NumThreads_Args": "struct_size extension_start ctx num_threads",
}
"""The fields of the structures that this file reads or writes, in order."""

FIRST_FUNCTION = 6
"""Position of the first function in the interface, in words."""


def known(header: str) -> bool:
    """Return whether a header of XLA's interface has the expected layout."""
    code = re.sub(r"//.*", "", header)
    functions = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\);", code)
    called = {"ThreadPool_Schedule": SCHEDULE, "ThreadPool_NumThreads": NUM_THREADS}
    structures = re.findall(r"struct (XLA_FFI_\w+) \{(.*?)\n\}", re.sub(r"_XLA_FFI_API_.*", "", code), re.DOTALL)
    fields = {name: " ".join(re.findall(r"(\w+);", body)) for name, body in structures}
    return all(functions[word - FIRST_FUNCTION :][:1] == [name] for name, word in called.items()) and all(
        expected in map(fields.get, names.split("|")) for names, expected in KNOWN.items()
    )


def registered(name: str) -> bool:
    """Register the function with XLA under a name. Return False if numba cannot compile, or XLA's version is
    unknown."""
    with _ONE_THREAD:
        return _registered(name)


_ONE_THREAD = threading.Lock()


@functools.cache
def _interface_is_known() -> bool:
    try:
        header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    except OSError:
        header = ""
    if not known(header):
        warnings.warn(UNKNOWN, SlowerWarning, stacklevel=2)
    return known(header)


@functools.cache
def _registered(name):
    if config.DISABLE_JIT or not _interface_is_known():
        return False
    compile_product()
    compile_help()
    called = importlib.import_module(f".{FUNCTIONS[name]}", __package__).compiled()
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(called.ctypes), platform="cpu")
    return True


class Call(NamedTuple):
    """The arguments of a call by XLA.

    Attributes:
        arguments: [_MOST_OPTIONAL or more], addresses of the data of all arguments; 0 for missing arguments
        results: the same for all results
        shapes: the address of XLA's data on the arguments, with their shapes
        attributes: the address of the attributes' values, in alphabetical order
        interface: the address of XLA's functions
        context: XLA's argument for calls of these functions
    """

    arguments: np.ndarray
    results: np.ndarray
    shapes: int
    attributes: int
    interface: int
    context: int


@jit
def is_question(frame):
    """Return whether XLA only asks for the version of the interface; if so, write XLA's own version as the answer."""
    words = longs(frame, _ATTRIBUTES + 1)
    if words[_EXTENSION]:
        metadata = longs(words[_EXTENSION], _METADATA + 1)[_METADATA]
        longs(metadata, _VERSION_THERE + 1)[_VERSION_THERE] = longs(words[_INTERFACE], _VERSION_HERE + 1)[_VERSION_HERE]
    return words[_EXTENSION] != 0


@jit
def read_call(frame):
    words = longs(frame, _ATTRIBUTES + 1)
    arguments = _addresses(words[_ARGUMENTS], words[_NUM_ARGUMENTS])
    results = _addresses(words[_RESULTS], words[_NUM_RESULTS])
    return Call(arguments, results, words[_ARGUMENTS], words[_ATTRIBUTES], words[_INTERFACE], words[_CONTEXT])


@jit
def attribute(call, i):
    return longs(longs(longs(call.attributes, i + 1)[i], 2)[1], 1)[0]


@jit
def shape(call, i):
    """Return the axis sizes of argument i, at most four."""
    array = longs(longs(call.shapes, i + 1)[i], _DIMENSIONS + 1)
    return longs(array[_DIMENSIONS], 4)


@jit
def _addresses(arrays, count):
    """Return the data addresses of all arguments or results; 0 for omitted ones."""
    addresses = np.zeros(max(_MOST_OPTIONAL, count), np.int64)
    each = longs(arrays, count)
    for i in range(count):
        addresses[i] = longs(each[i], _DATA + 1)[_DATA]
    return addresses
