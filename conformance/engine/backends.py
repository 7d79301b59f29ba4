"""Find a backend, and check each call of its functions.

A backend is a namespace with public names of the reference: a module, an attribute of a module, or any object with
attributes. It needs no base class. Tests of missing names are skipped and counted.

`Backend` wraps a namespace. A test calls `backend.routers.top_k.top_k_router` like the reference's function, with NumPy
arrays. The *guard* is the code around this call. It converts the arrays, stops a call that takes too long, and checks
that inputs are unchanged. It repeats the first call and compares both results. It returns the reference's record of
NumPy arrays.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import math
import re
import signal
import sys
import threading
import time
import types
import typing

import hypothesis
import jax
import numpy as np
import pytest

from routelaws.conformance import adapters
from routelaws.conformance.engine import comparable, stances
from routelaws.conformance.engine.harness import PRECISIONS, cast
from routelaws.conformance.engine.ledger import Trouble
from routelaws.conformance.engine.names import (
    BackendError,
    chosen_options,
    defaults_of,
    full_names,
    keywords_of,
    options_of,
    path_of_class,
    places_of,
    public_functions,
    record_called,
    reference_names,
    reference_part,
    shapes_of_call,
    stands_at,
)
from routelaws.conformance.engine.values import arrays_of, as_numpy, difference, equal, fields_of, needed, told

OURS = "routelaws.accelerated"
GROUP = "routelaws.backends"
"""The group of entry points; an installed library can name its backend there."""

DTYPES_OF = {"routelaws.reference": ("float64",), OURS: (*PRECISIONS, "bfloat16")}
"""Precisions of our own backends. A backend is tested in bfloat16 only if its `dtypes` contain bfloat16."""
TIME_LIMIT = 60.0
"""Default time limit of one call, in seconds."""

OBJECTS: dict[str, object] = {}
"""Namespaces passed as objects, by name."""


class Broken(AssertionError):
    """A function violated a rule for all functions. `kind` is one of `report.KINDS`."""

    def __init__(self, path: str, kind: str, detail: str):
        super().__init__(f"{path} {detail}")
        self.path, self.kind, self.detail = path, kind, detail


class _TimeIsUp(BaseException):
    """Raised by the alarm inside a call."""


def load(name: str):
    """Return the namespace called `name`: "module", "module:attribute", or an entry point of `GROUP`.

    Raises:
        BackendError: it does not exist, or importing it fails.
    """
    if name in OBJECTS:
        return OBJECTS[name]
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name == name:
            return _imported(name, point.value, point.load)
    known = _adapted(name)
    if known is not None:
        return known
    module, _, attribute = name.partition(":")
    namespace = _imported(name, module, functools.partial(importlib.import_module, module))
    for part in filter(None, attribute.split(".")):
        if not hasattr(namespace, part):
            raise BackendError(f"backend {name}: {module} has no attribute {attribute}")
        namespace = getattr(namespace, part)
    return namespace


def _adapted(name: str):
    try:
        return adapters.find(name)
    except LookupError as error:
        raise BackendError(f"backend {name}: {error}") from error
    except ImportError as error:
        raise BackendError(f"backend {name}: {error}; install it and torch with pip") from error


def _imported(name: str, module: str, importing):
    """Return importing(). An error or exit of the imported file becomes a BackendError of one line."""
    try:
        return importing()
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            words = f"no module {error.name} in this folder or installed; conformance/README.md shows how to write one"
            raise BackendError(f"backend {name}: {words}") from error
        raise BackendError(f"backend {name}: importing {module} raised {type(error).__name__}: {error}") from error


def _submodule(module: str, name: str):
    return _imported(
        name, module, lambda: importlib.import_module(module) if importlib.util.find_spec(module) else None
    )


def _dtypes_of(name: str, named) -> tuple[str, ...]:
    """Return the precisions of a backend, checked."""
    precisions = () if isinstance(named, str) else tuple(named)
    if not precisions or not set(precisions) <= {*PRECISIONS, "bfloat16"}:
        allowed = "a tuple of one or more of 'float64', 'float32', 'bfloat16'"
        raise BackendError(f"backend {name}: dtypes are {named!r}; allowed: {allowed}")
    return precisions


class _Room:
    """A file or folder of a backend, with attributes by their path in the reference."""

    def __init__(self, backend, path: str):
        self._backend, self._path = backend, path

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._backend.resolve(f"{self._path}.{name}")


class Backend:
    """A namespace under test, with the interface of the reference.

    Args:
        namespace: an object with some of the reference's public names. A function is at the reference's path
            (`routers.top_k.top_k_router`), or directly in the namespace if its last name is unique. Optional
            attributes: `capabilities` ("jit" and "grad" for functions of JAX, "torch" for results that keep torch's
            graph), `dtypes`, `slow` (functions that the quick profile skips), `unavailable` (functions that read a
            logit of -inf as an expert that is not available), `documented` ({router: {option: value}}),
            `training(flag)`, `script(path, **arguments)`, `from_numpy(array, dtype)`, `to_numpy(value)`, `__version__`.
        ledger: the `ledger.Ledger` that records calls and faults.
        time_limit: seconds for one call.

    Raises:
        BackendError: capabilities, dtypes or slow functions are unknown, or the time limit is not finite and above 0.
    """

    def __init__(self, name: str, namespace, ledger, *, require=(), time_limit: float = TIME_LIMIT):
        self.name, self.namespace, self.ledger = name, namespace, ledger
        self.require, self.time_limit = frozenset(require), time_limit
        if not 0 < time_limit < math.inf:
            raise BackendError(f"time limit is {time_limit:g}; allowed: a number of seconds above 0")
        own_name = getattr(namespace, "__name__", "")
        self.is_ours = own_name in DTYPES_OF
        self.named_capabilities = getattr(namespace, "capabilities", None)
        named = tuple(self.named_capabilities or (("jit", "grad") if own_name == OURS else ()))
        if not set(named) <= {"jit", "grad", "torch"}:
            raise BackendError(f"backend {name}: capabilities are {named}; allowed: jit, grad, torch")
        self.autograd, self.capabilities = (
            "torch" in named,
            tuple(capability for capability in named if capability != "torch"),
        )
        self.dtypes = _dtypes_of(name, getattr(namespace, "dtypes", DTYPES_OF.get(own_name, PRECISIONS)))
        self.slow, self.unavailable = (
            frozenset(full_names(getattr(namespace, name, ()))) for name in ("slow", "unavailable")
        )
        self.version = str(getattr(namespace, "__version__", "") or "not stated")
        self._wrapped, self._seen, self._broken, self._stances, self._padded = {}, set(), {}, {}, set()
        functions = {path: self.find(path) for path in public_functions()}
        self.functions = [path for path, function in functions.items() if callable(function)]
        self.borrowed = [path for path in self.functions if functions[path] is public_functions()[path]]

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.resolve(name)

    def resolve(self, path: str):
        """Return the guarded function, record or folder at a path of the reference."""
        functions, classes, rooms = reference_names()
        if path in rooms:
            return _Room(self, path)
        entry = self.find(path)
        if path in classes and (entry is None or hasattr(classes[path], "_replace")):
            return classes[path]  # a record class of the reference; `_given` converts its instances for a call
        if entry is None:
            room, _, name = path.rpartition(".")
            if name.startswith("_") or room not in rooms or not hasattr(reference_part(room), name):
                raise AttributeError(f"the reference has no {path}")
            self._missing(path)
        return self._wrap(path, entry) if path in functions else entry

    def find(self, path: str):
        """Return the entry at a path. A function may also be under its last name. Return None if it is missing."""
        here = self.namespace
        for part in path.split("."):
            inside, here = here, getattr(here, part, None)
            if here is None and isinstance(inside, types.ModuleType) and hasattr(inside, "__path__"):
                here = _submodule(f"{inside.__name__}.{part}", self.name)
            if here is None:
                break
        last, wanted = path.rpartition(".")[2], public_functions().get(path)
        if wanted and (here is None or here is wanted):
            # The backend may only import the reference's module, such as `notation`, so look for its own function.
            flat = getattr(self.namespace, last, None)
            return flat if here is None or callable(flat) else here
        return here

    def _missing(self, path: str):
        if path in self.require:
            raise Broken(path, "missing", "is required but missing")
        self._leave_out(f"{path} is missing")

    def _leave_out(self, reason: str):
        """Skip this example of a property test, or the whole test if it has no examples."""
        self.ledger.left_out = reason
        if hypothesis.currently_in_test_context():
            hypothesis.reject()
        pytest.skip(reason)

    def stance(self, path: str) -> stances.Stance | None:
        """Return the design of another library's function.

        Return None for our own functions, for functions without a design, and while the design is being searched.
        """
        function = self.find(path)
        if path not in stances.JUDGED or not callable(function) or stances.is_own(function):
            return None
        if path not in self._stances:
            self._stances[path] = None
            self._stances[path] = stance = stances.stance_of(self, path)
            self.ledger.findings[self.name, path] = stances.as_row(self, path, stance)
        return self._stances[path]

    @functools.cached_property
    def activations(self) -> dict:
        """{function of another library: its activation}, for functions whose activation is known."""
        theirs = [path for path in stances.ACTIVATED if path in self.functions and not stances.is_own(self.find(path))]
        found = {path: stances.activation_of(self, path) for path in theirs}
        return {path: activation for path, activation in found.items() if activation}

    def ask(self, path: str, *arrays, precision: str, **options):
        """Call a function outside of any test and return its result as the reference's record.

        Raises:
            NotImplementedError: the function lacks these options, or rejects the input.
            Fault: the function violated a rule of the guard, or raised another exception.
        """
        try:
            return self._ask(path, self.find(path), arrays, precision, options)
        except Broken as broken:
            raise stances.Fault(broken.kind, broken.detail) from broken

    def _ask(self, path: str, function, arrays, precision: str, options: dict):
        defaults, taken = defaults_of(path), keywords_of(function)
        lacking = [name for name in options if taken is not None and name not in taken]
        for name in lacking:
            if not stands_at(options[name], defaults[name]):
                raise NotImplementedError(f"option {name}")
        options = {name: value for name, value in options.items() if name not in lacking}
        if self.capabilities:
            with jax.enable_x64(precision == "float64"), jax.ensure_compile_time_eval():
                inputs = cast(arrays, precision), cast({k: v for k, v in options.items() if arrays_of(v)}, precision)
                inputs = inputs[0], options | inputs[1]
                result = self._within_limit(path, function, *inputs)
                return self._returned(path, result)
        inputs = self._given(arrays, precision), self._given(options, precision)
        before = [np.array(self._plain(leaf)) for leaf in arrays_of(inputs)]
        result = self._within_limit(path, function, *inputs)
        if any(
            a.tobytes() != np.asarray(self._plain(b)).tobytes() for a, b in zip(before, arrays_of(inputs), strict=True)
        ):
            raise stances.Fault("mutates", "changed an input array")
        self.ledger.examples[self.name, path] = self.ledger.examples.get((self.name, path), 0) + 1
        return self._returned(path, result)

    def convert(self, array: np.ndarray, dtype: str):
        """Return a NumPy array as the backend's array."""
        return getattr(self.namespace, "from_numpy", lambda array, dtype: array)(np.array(array, dtype), dtype)

    @property
    def has_gradients(self) -> bool:
        return self.autograd or "grad" in self.capabilities

    def tested(self, path: str, capability: str, reason: str = "") -> None:
        """Record that a capability of a function was tested, or the reason why not."""
        capability = "torch" if capability == "grad" and self.autograd else capability
        key = self.name, path, capability
        self.ledger.capabilities[key] = reason and self.ledger.capabilities.get(key, reason)

    def gradient(self, total, point: np.ndarray, precision: str) -> np.ndarray:
        """Return the gradient of total(point) -> number by torch or JAX; 0 without a graph.

        Raises:
            NotImplementedError: the function declines gradients, or makes NumPy arrays of traced ones.
            Fault: it raised another exception.
        """
        try:
            if self.autograd:
                leaf = self.convert(point, precision).requires_grad_(True)
                value = total(leaf)
                if getattr(value, "requires_grad", False):
                    value.backward()
                return np.zeros(point.shape) if leaf.grad is None else np.asarray(self._plain(leaf.grad), np.float64)
            with jax.enable_x64(precision == "float64"):
                return np.asarray(jax.grad(total)(cast(point, precision)), np.float64)
        except (NotImplementedError, stances.Fault):
            raise
        except jax.errors.TracerArrayConversionError as error:
            raise NotImplementedError("it makes a NumPy array of a traced array; use jax.numpy") from error
        except Exception as error:
            raise stances.Fault(
                "raises", f"the gradient by the logits raised {type(error).__name__}: {error}"
            ) from error

    def _within_limit(self, path: str, function, arguments, keywords):
        """Call for `ask`. Raise errors as a Fault, and rejected inputs as NotImplementedError."""
        try:
            with _alarm(self.time_limit):
                return function(*arguments, **keywords)
        except _TimeIsUp:
            raise stances.Fault("hangs", f"did not return within {self.time_limit:g} s") from None
        except (NotImplementedError, pytest.skip.Exception) as error:
            raise NotImplementedError(str(error)) from error
        except stances.Fault:
            raise
        except (Exception, SystemExit) as error:
            if stances.is_refusal(error):
                raise NotImplementedError(f"refused: {error}") from error
            shapes = shapes_of_call(path, arguments, keywords)
            raise stances.Fault("raises", f"raised {type(error).__name__}: {error}; given {shapes}") from error

    def other_defaults(self, path: str) -> str:
        """List the defaults, except None, that differ from the reference's defaults. Return "" if there are none."""
        if path not in public_functions():
            return ""
        parameters = inspect.signature(public_functions()[path]).parameters
        try:
            offered = inspect.signature(self.find(path)).parameters
        except (TypeError, ValueError):
            return ""
        pairs = [(name, offered[name].default, parameters[name].default) for name in parameters if name in offered]
        return ", ".join(
            f"{name} is {default!r}, in the reference {wanted!r}"
            for name, default, wanted in pairs
            if wanted is not inspect.Parameter.empty and default not in (wanted, None, inspect.Parameter.empty)
        )

    def leave_out_precision(self, precision: str):
        """Skip this example, because the backend lacks the precision."""
        self._leave_out(f"{precision} is not among the dtypes of {self.name}")

    def options(self, path: str) -> tuple[str, ...]:
        """Return the parameters of the reference's function that have a default, in its order."""
        return options_of(path) if path in public_functions() else ()

    def lacking(self, path: str) -> tuple[str, ...]:
        """Return the options that the backend's function lacks, in the reference's order."""
        taken = keywords_of(self.find(path))
        return () if taken is None else tuple(name for name in self.options(path) if name not in taken)

    def _offered(self, path: str, function, arguments, keywords) -> tuple[tuple, dict]:
        """Return the arguments of a call without missing options.

        Skip the example if the value of a missing option differs from the function's design. Without a known design,
        compare it with the reference's default.
        """
        defaults, options = defaults_of(path), options_of(path)
        places, extra = places_of(function), {}
        if len(arguments) > places:
            extra = dict(zip(list(defaults)[places : len(arguments)], arguments[places:], strict=False))
            if set(extra) <= set(options):  # pass them by name, if they are options
                arguments, keywords = arguments[:places], extra | keywords
        values = dict(zip(defaults, arguments, strict=False)) | keywords
        if path not in self.unavailable and not stances.is_own(function):
            known = [v for name in ("logits", "scores") for v in arrays_of(values.get(name))]
            if any((np.asarray(v) == -np.inf).any() for v in known if not isinstance(v, jax.core.Tracer)):
                self._not_offered(path, "a logit of -inf for an unavailable expert")
        stance = self.stance(path)
        if stance and stance.finding.verdict == "defect":
            raise Broken(path, stance.finding.kind, stance.finding.detail)
        wanted, named = stances.lacking(stance, path, function, values)
        if wanted:
            self._not_offered(path, f"option {', '.join(wanted)}", wanted)
        taken = keywords_of(function)
        dropped = [] if taken is None else [name for name in keywords if name in options and name not in taken]
        return arguments, {name: value for name, value in (named | keywords).items() if name not in dropped}

    def _not_offered(self, path: str, reason: str, options=()):
        """Skip a call that the function declines, because it lacks an option or raised NotImplementedError."""
        named = frozenset(re.findall(r"\w+", reason)) & frozenset(options)  # if empty, record all the options
        self.ledger.declined(self.name, path, reason or "it gives no reason", named or options)
        self._leave_out(f"{path}: {reason}")

    def _wrap(self, path: str, function):
        """Return the guarded function of a path.

        The result is always the same object, because it is the key of compiled functions.
        """
        if path in self._wrapped:
            return self._wrapped[path]

        def guarded(arguments, keywords, precision=None, through=None, static=()):
            """Call the function, or its compiled form `through`, which contains the `static` arguments."""
            return self._call(path, function, arguments, keywords, precision, through, dict(static))

        def call(*arguments, **keywords):
            if any(isinstance(leaf, jax.core.Tracer) for leaf in arrays_of((arguments, keywords))):
                if not self.capabilities:
                    pytest.skip(f"JAX traces {path} in this test; {self.name} does not list the capability")
                self.ledger.called(self.name, path)
                chosen = chosen_options(path, arguments, keywords)
                arguments, keywords = self._offered(path, function, arguments, keywords)
                inputs = self._given(arguments, None), self._given(keywords, None)
                try:
                    result = self._returned(path, function(*inputs[0], **inputs[1]))
                    self.ledger.answered(self.name, path, chosen)
                    return result
                except NotImplementedError as error:
                    reason = str(error)
                self._not_offered(path, reason, chosen)
            return guarded(arguments, keywords)

        call = functools.update_wrapper(call, function) if hasattr(function, "__name__") else call
        call.guarded, call.routelaws_backend, call.path = guarded, self, path
        self._wrapped[path] = call
        return call

    def _given(self, value, precision: str | None):
        """Convert an argument to the backend's records and arrays, copied."""
        if isinstance(value, dict):
            return {key: self._given(part, precision) for key, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._given(part, precision) for part in value)
        if type(value) in path_of_class() and hasattr(value, "_replace"):
            record = self.find(path_of_class()[type(value)])
            return (record or type(value))(*(self._given(part, precision) for part in value))
        lone = precision and isinstance(value, np.floating)  # a number from a record: convert it like an array
        if self.capabilities or not (lone or isinstance(value, np.ndarray | jax.Array)):
            return value
        array = np.array(value)
        if array.dtype.kind in "fV":
            record = array.dtype.name == "bfloat16"  # do not convert it to `precision`
            dtype = array.dtype.name if record or not precision else precision
            if dtype == "float32" and self.dtypes == ("float64",) and not self.is_ours:
                dtype = "float64"  # the errors that a test allows in float32 are larger
            if dtype not in self.dtypes:
                self.leave_out_precision(dtype)
            array = array.astype(dtype)
        convert = getattr(self.namespace, "from_numpy", None)
        if convert is None:
            return array
        # NumPy has no bfloat16, so pass the rounded values in float32.
        return convert(array.astype(np.float32) if array.dtype.kind == "V" else array, array.dtype.name)

    def _returned(self, path: str, value, hint=None):
        """Convert a result to the reference's record. Its arrays are NumPy arrays, or JAX arrays of a JAX backend."""
        hint = inspect.signature(public_functions()[path]).return_annotation if hint is None else hint
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            options = [option for option in typing.get_args(hint) if option is not type(None)]
            hint = None if value is None else next(iter(options))
        named = record_called(type(value).__name__)  # the record may differ from the annotation
        hint = named if named and inspect.isclass(hint) else hint
        if typing.get_origin(hint) is list and isinstance(value, list | tuple):
            return [self._returned(path, part, typing.get_args(hint)[0]) for part in value]
        if inspect.isclass(hint) and hasattr(hint, "_replace"):
            return self._record(path, value, hint)
        if isinstance(value, dict):
            return {key: self._returned(path, part, object) for key, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._returned(path, part, object) for part in value)
        if self.capabilities:
            return value
        return self._plain(value)

    def _record(self, path: str, value, record):
        parts = self.parts_of(path, value, record)
        hints = typing.get_type_hints(record)
        return record(
            *(self._returned(path, part, hints[name]) for name, part in zip(record._fields, parts, strict=True))
        )

    def parts_of(self, path: str, value, record) -> list:
        """Return the fields of a record from an object with its attributes, a dict with its keys, or a tuple.

        A tuple has all fields, or only the fields that are not optional; a lone field needs no tuple. The experts and
        gates of a routing can have either order.
        """
        names = record._fields
        needed_ones = [name for name in names if name not in comparable.OPTIONAL.get(record.__name__, ())]
        is_number = isinstance(value, float) or hasattr(value, "dtype") and not isinstance(value, dict | list | tuple)
        few = [value] if len(needed_ones) == 1 and is_number else value
        if isinstance(few, list | tuple) and not fields_of(few) and len(few) == len(needed_ones) < len(names):
            swapped = needed_ones == ["expert", "gate"] and _is_float(few[0])
            value = dict(zip(needed_ones, few[::-1] if swapped else few, strict=True))
        if isinstance(value, dict) and set(needed_ones) <= set(value):
            return [value.get(name) for name in names]
        elif not isinstance(value, dict) and all(hasattr(value, name) for name in needed_ones):
            return [getattr(value, name, None) for name in names]
        elif isinstance(value, list | tuple) and not fields_of(value) and len(value) == len(names):
            return list(value)
        optional = comparable.OPTIONAL.get(record.__name__, ())
        return self._break(path, "form", f"returned {told(value)}; {needed(record, optional)}")

    def _break(self, path: str, kind: str, detail: str):
        """Fail now and at every later call, so that Hypothesis does not search for a smaller example.

        After the fault "mutates", only calls of the same test fail.
        """
        self._broken[path] = kind, detail, self.ledger.test
        self.ledger.broke(self.name, path)
        self._fail_again(path)

    def _fail_again(self, path: str):
        # Raise all failures on one line of code. If a failure moves to another line, Hypothesis calls it flaky.
        kind, detail, test = self._broken.get(path, ("", "", 0))
        if kind and (kind != "mutates" or test == self.ledger.test):
            raise Broken(path, kind, detail)

    def _call(self, path: str, function, arguments, keywords, precision, through, static):
        """Call the function. Repeat its first call, and compare both results."""
        self.ledger.called(self.name, path)
        self._fail_again(path)
        bare = arguments, keywords
        padded = (keywords | static).get("mask") is not None and not stances.is_own(function)
        if padded:
            arguments, keywords = jax.tree.map(_filled, bare)
        everything, chosen = keywords | static, chosen_options(path, arguments, keywords | static)
        offered = self._offered(path, function, arguments, everything)
        kept = self.ledger.keep(path, arguments, everything, precision)

        def once():
            # A compiled function contains its constants, and it drops missing options when JAX traces it.
            inputs = (arguments, keywords) if through else tuple(self._given(part, precision) for part in offered)
            before = [] if self.capabilities else [np.array(self._plain(leaf)) for leaf in arrays_of(inputs)]
            value = self._timed(path, through or function, *inputs, chosen)
            arrays_after = [] if self.capabilities else map(self._plain, arrays_of(inputs))
            if path not in self._broken and not all(
                a.shape == np.shape(b) and a.tobytes() == np.asarray(b).tobytes()
                for a, b in zip(before, arrays_after, strict=True)
            ):
                self._break(path, "mutates", "changed an input array")
            return self._returned(path, value)

        raw = once()
        self.ledger.answered(self.name, path, chosen)
        if through:
            self.tested(path, "jit")
        if path == stances.DISPATCH and self.stance(path):
            self._check_placement(path, raw, dict(zip(defaults_of(path), arguments, strict=False)) | everything)
        result = self._comparable(path, raw, arguments, everything, precision)
        if kept:
            kept.returned, kept.result = True, result
        if path in (stances.TOP_K, stances.SWITCH, stances.GSHARD) and not stances.is_own(function):
            self._judge_excluded(path, result, arguments, everything, precision or "float64")
        constants = repr({key: value for key, value in everything.items() if not arrays_of(value)})
        if (path, constants, precision) not in self._seen:
            if path not in {seen[0] for seen in self._seen}:
                self._judge_structure(path, result, arguments, everything)
            self._seen.add((path, constants, precision))
            self._judge_precision(path, result, precision, (arguments, everything))
            drawn = any(isinstance(value, np.random.Generator) for value in (*arguments, *keywords.values()))
            if not drawn and not equal(raw, once()):
                self._break(path, "not deterministic", "gave two results for the same input")
            if padded and not equal(bare, (arguments, keywords)) and path not in self._padded:
                self._judge_padding(path, function, bare, static, precision, through)
        return result

    def _check_placement(self, path: str, placement, values: dict) -> None:
        if values["capacity"] == 0 and np.asarray(placement.kept).any():
            self._not_offered(path, "a capacity of 0 keeps tokens", ())
        if fault := stances.placement_fault(placement, **values):
            self._break(path, fault.kind, fault.detail)

    def _comparable(self, path: str, result, arguments, keywords, precision):
        """Return a result with missing fields added, and with choices in the reference's order."""
        if path in self.borrowed or stances.is_own(self.find(path)):
            return result
        wide = jax.tree.map(_wide, (arguments, keywords))
        try:
            return comparable.comparable(path, result, *wide, self.stance(path), precision or "float64")
        except (ValueError, TypeError, IndexError):  # the reference rejects this input
            return result

    def _plain(self, value):
        to_numpy, known = getattr(self.namespace, "to_numpy", None), isinstance(value, np.ndarray | int | float | str)
        return as_numpy(value) if to_numpy is None or known else to_numpy(value)

    def _judge_structure(self, path: str, result, arguments, keywords) -> None:
        """Fail unless the result has the reference's shapes and number types."""
        if self.find(path) is public_functions()[path]:
            return
        try:
            inputs = jax.tree.map(lambda leaf: np.array(leaf) if arrays_of(leaf) else leaf, (arguments, keywords))
            wanted = public_functions()[path](*inputs[0], **inputs[1])
        except Exception:  # the reference rejects this input, so only the tests judge the result
            return
        problem = difference(result, wanted, "")
        if problem:
            self._break(path, "form", f"returned a result of the wrong form: {problem}")

    def _judge_excluded(self, path: str, result, arguments, keywords, precision: str) -> None:
        """Fail if a real token has an expert outside of its groups, or an unavailable expert."""
        values = dict(zip(defaults_of(path), jax.tree.map(_wide, arguments), strict=False))
        values |= jax.tree.map(_wide, keywords)
        bad = comparable.excluded(path, np.asarray(result.expert), values, precision)
        if bad.any():
            chosen = np.asarray(result.expert)[bad][0].tolist()
            words = f"{bad.sum()} of {len(bad)} tokens, one with experts {chosen}, have an unavailable expert"
            self._break(path, "excluded", f"{words} or an expert outside of the chosen groups")

    def _judge_padding(self, path: str, function, bare: tuple, static: dict, precision, through) -> None:
        """Record the fault "padding" if NaN in padding makes NaN; other tests have finite padding and go on."""
        offered = self._offered(path, function, bare[0], bare[1] | static)
        inputs = bare if through else tuple(self._given(part, precision) for part in offered)
        try:
            found = self._returned(path, (through or function)(*inputs[0], **inputs[1]))
        except Exception:  # a function may reject NaN
            return
        if any(np.isnan(leaf).any() for leaf in arrays_of(found) if np.asarray(leaf).dtype.kind in "fV"):
            self._padded.add(path)
            words = "NaN in padded tokens makes NaN in the result; the other tests have finite padding"
            if path.startswith("balance."):  # most libraries multiply by the mask, and their padding has finite logits
                self.ledger.facts[self.name, path, "padding"] = "must be finite"
            else:
                self.ledger.troubles.append(Trouble(self.name, path, "padding", words, ""))

    def _judge_precision(self, path: str, result, precision: str | None, inputs) -> None:
        """Fail if results have less precision than the inputs, or than every listed one if no input is a float."""
        if not any(jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating) for leaf in arrays_of(inputs)):
            precision = precision and min(self.dtypes, key=lambda name: np.dtype(name).itemsize)
        for leaf in arrays_of(result) if precision and not self.capabilities else ():
            if leaf.dtype.kind == "f" and leaf.dtype.itemsize < np.dtype(precision).itemsize:
                message = f"returned dtype {leaf.dtype} instead of {precision}; list supported types in `dtypes`"
                self._break(path, "form", message)

    def _timed(self, path: str, function, arguments, keywords, chosen):
        """Call the function, and fail if it exceeds the time limit or tries to end the process."""
        try:
            with _alarm(self.time_limit):
                return function(*arguments, **keywords)
        except _TimeIsUp:
            trouble = "hangs", f"did not return within {self.time_limit:g} s"
        except (SystemExit, GeneratorExit) as error:
            trouble = "raises", f"raised {type(error).__name__}"
        except NotImplementedError as error:
            trouble = "not offered", str(error)
        except stances.Fault as fault:
            trouble = fault.kind, fault.detail
        except Exception as error:
            empty = _is_empty(path, arguments, keywords)
            may_refuse = self.stance(path) or path.startswith(("routers.", "balance.")) and not stances.is_own(function)
            # A capacity factor of infinity means no limit, but most libraries convert it, or 0 times it, to an integer.
            is_infinite = any(isinstance(v, float) and math.isinf(v) for v in (*arguments, *keywords.values()))
            refused = may_refuse and (empty or stances.is_refusal(error))
            refused = refused or isinstance(error, OverflowError | ValueError) and is_infinite
            if not (stances.lacks_means(error) or refused):
                self.ledger.raised.append((error, path, shapes_of_call(path, arguments, keywords)))
                raise
            words = f"raised {type(error).__name__} without tokens or slots" if empty else f"refused: {error}"
            trouble = "not offered", words
        if trouble[0] == "not offered":
            self._not_offered(path, trouble[1], chosen)
        self._break(path, *trouble)  # outside the `try`, so that every failure has the same context


@contextlib.contextmanager
def _alarm(seconds: float):
    """Raise `_TimeIsUp` inside the block after `seconds` of processor time or 4 `seconds` of wall time.

    The alarm is off on Windows and outside the main thread.
    """
    started, end = time.process_time(), time.monotonic() + 4 * seconds

    def alarm(number, frame):
        if time.process_time() - started >= seconds or time.monotonic() >= end:
            raise _TimeIsUp

    on = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGALRM, alarm) if on else None
    try:
        if on:
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds / 4)
        yield
    finally:
        if on:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)


def _is_float(array) -> bool:
    return getattr(array, "dtype", None) is not None and "float" in str(array.dtype)


def _is_empty(path: str, arguments, keywords) -> bool:
    """Return whether a call has an empty array or a capacity of 0, which a correct function may reject."""
    values = dict(zip(defaults_of(path), arguments, strict=False)) | keywords
    return values.get("capacity") == 0 or any(0 in leaf.shape for leaf in arrays_of(list(values.values())))


PADDING = 100.0
"""Value of padding for other libraries, so that a fault with NaN does not hide other faults. `_judge_padding` tests
NaN."""


def _filled(leaf):
    """Replace NaN in a float array by `PADDING`."""
    if not hasattr(leaf, "dtype") or np.asarray(leaf).dtype.kind not in "fV":
        return leaf
    module = jax.numpy if isinstance(leaf, jax.Array) else np
    return module.where(module.isnan(leaf), PADDING, leaf).astype(leaf.dtype)


def _wide(leaf):
    """Return an array as a NumPy array, floats as float64."""
    if not hasattr(leaf, "dtype"):
        return leaf
    array = np.asarray(as_numpy(leaf))
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def versions() -> dict[str, str]:
    """Return {library: version} for a report."""
    libraries = {name: sys.modules[name].__version__ for name in ("torch",) if name in sys.modules}
    return {
        "Python": sys.version.split()[0],
        "NumPy": np.__version__,
        "JAX": jax.__version__,
        **libraries,
        "Hypothesis": hypothesis.__version__,
        "pytest": pytest.__version__,
    }
