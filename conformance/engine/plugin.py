"""The pytest plugin: options, the `backend` fixture, and the record of each test.

`python -m routelaws.conformance` loads the plugin by name. With pytest, use
`pytest -p routelaws.conformance.engine.plugin`. In this repository, conftest.py registers the plugin. If neither an
option nor ROUTELAWS_BACKEND names a backend, the fixture is the module `routelaws.accelerated`.
"""

import functools
import gc
import json
import os
import random
import time

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import FailedHealthCheck, Unsatisfiable
from hypothesis.internal.conjecture import providers

import routelaws
from routelaws.conformance import bounds
from routelaws.conformance.engine import backends, failing_calls, harness, page, report
from routelaws.conformance.engine.ledger import Ledger, Slack
from routelaws.conformance.engine.names import public_functions
from routelaws.conformance.engine.options import PROFILES, Options, folder_for
from routelaws.conformance.engine.stances import ACTIVATED
from routelaws.reference import experts

NAME = "routelaws.conformance.engine.plugin"

_STORAGE = os.environ.get("HYPOTHESIS_STORAGE_DIRECTORY", ".hypothesis")  # Hypothesis stores no examples on CI
_SUPPRESSED = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(  # before "default" is replaced, because a profile copies its other settings from "default"
    "nightly",
    max_examples=400,
    deadline=None,
    derandomize=False,
    database=DirectoryBasedExampleDatabase(os.path.join(_STORAGE, "examples")),
    suppress_health_check=_SUPPRESSED,
)
settings.register_profile(
    "quick",
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=_SUPPRESSED,
    phases=[phase for phase in Phase if phase is not Phase.explain],  # the phase "explain" takes longest
)
settings.register_profile(
    "default", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_SUPPRESSED
)
SELDOM = (200_000, 20, 100)
"""Thresholds of Python's garbage collector in the quick profile; the default thresholds cost 3 % of the time."""

OFTEN = 25
"""Number of tests after which `harness.make_room` runs."""

_SEED = "_hypothesis_internal_add_digest"
"""The attribute by which Hypothesis draws and stores the examples of a test with parameters."""


class Suite:
    """The state of one run: its backends, options and ledger."""

    def __init__(self, options: Options):
        self.options, self.collector, self.tests = options, (), 0
        self.is_local = getattr(providers, "is_local_module_file", None)  # the oldest allowed version lacks it
        self.folder, self.ledger, self.started = folder_for(options.export_failing), Ledger(), time.time()
        limit, require = options.time_limit, options.require
        self.backends = {
            name: backends.Backend(name, backends.load(name), self.ledger, require=require, time_limit=limit)
            for name in options.backends
        }
        self.ledger.keeps = bool(self.folder) or any(not each.is_ours for each in self.backends.values())
        for name, backend in self.backends.items():
            if not backend.functions and not require:
                raise backends.BackendError(
                    f"backend {name} has none of the reference's functions; --list shows them, and "
                    "`python -m pydoc routelaws.conformance.adapters.blocks` shows how to test a router"
                )

    def header(self, backend) -> dict[str, str]:
        named = [*backend.capabilities, *["torch"] * backend.autograd]
        none = "none" if backend.named_capabilities is not None else "none listed"
        capabilities = ", ".join(named) or f"{none}: neither jit nor gradients are tested"
        profile, slow = self.options.profile, sorted(self.left_out(backend))
        seed = "random" if profile == "nightly" else "fixed (derandomised)"
        return {
            "backend": backend.name,
            "version": backend.version,
            "suite": routelaws.__version__,
            "capabilities": capabilities,
            "dtypes": ", ".join(backend.dtypes),
            **backends.versions(),
            "profile": f"{profile}: {settings.get_profile(profile).max_examples} examples per property",
            **({"left out": f"tests of {', '.join(slow)}"} if slow else {}),
            **({"borrowed": BORROWED.format(len(backend.borrowed))} if backend.borrowed else {}),
            "seed": seed,
            **({} if self.options.shuffle is None else {"order": f"shuffled: --shuffle {self.options.shuffle}"}),
            "time limit": f"{backend.time_limit:g} s per call",
        }

    def left_out(self, backend) -> frozenset[str]:
        """Return the functions whose tests are skipped: the backend's slow functions, in the quick profile only."""
        return backend.slow - set(self.options.only) if self.options.profile == "quick" else frozenset()

    def reports(self) -> list[report.Report]:
        only = self.options.only
        functions = only + self.options.require if only else tuple(public_functions())
        return [
            report.build(
                backend,
                self.ledger,
                self.header(backend),
                functions,
                self.options.expected,
                strict=self.options.strict,
                slack=self.slack(name, getattr(backend.namespace, "__name__", "")),
            )
            for name, backend in self.backends.items()
        ]

    def slack(self, name: str, module: str) -> tuple[Slack, ...]:
        """Return the loose bounds of `routelaws.accelerated`. Return () for other backends and in the quick profile."""
        return self.ledger.slack(name) if module == backends.OURS and self.options.profile != "quick" else ()


BORROWED = "{} functions are the reference's own, so their agreement is no evidence"

SUITE = pytest.StashKey[Suite]()
OPTIONS = pytest.StashKey[Options]()
"""Key under which `runner` stores the options of its run."""


def options_of(config) -> Options:
    """Return the options of a run, from `runner`, from the parent process or from the command line."""
    if OPTIONS in config.stash:
        return config.stash[OPTIONS]
    handed = getattr(config, "workerinput", {}).get("routelaws")
    return Options(**json.loads(handed)) if handed else Options.of_pytest(config)


def pytest_addoption(parser):
    group = parser.getgroup("routelaws", "conformance of a backend with routelaws.reference")
    add = group.addoption
    add("--routelaws-backend", action="append", metavar="NAME", help="module[:attribute] or entry point; repeatable")
    add("--routelaws-require", action="append", metavar="FUNCTION", help="fail if this function is missing")
    add("--routelaws-only", action="append", metavar="FUNCTION", help="run only the tests of this function")
    add("--routelaws-time-limit", type=float, metavar="SECONDS", help="time limit of one call")
    add("--routelaws-profile", choices=PROFILES, help="number of examples")
    add("--routelaws-json", metavar="FILE", help="write the report as JSON")
    add("--routelaws-html", metavar="FILE", help="write the report as a page")
    add("--routelaws-export-failing", metavar="FOLDER", help="write the failing calls to this folder, as .npz files")
    add(
        "--routelaws-known-failures",
        metavar="FILE",
        help="text file of functions that may fail, one `path: reason` per line",
    )
    add("--routelaws-shuffle", type=int, metavar="SEED", help="run the tests in a random order with this seed")
    add("--routelaws-strict", action="store_true", help="fail if a function in the file of known failures is right")


def no_local_modules(file) -> bool:
    """Replace Hypothesis's search for the user's modules, so that examples never change.

    Even with a fixed seed, Hypothesis takes one number in twenty from the source code of these modules. So a number in
    an unrelated file, or an earlier test in the same process, would change the examples.
    """
    return False


def pytest_configure(config):
    config.addinivalue_line("markers", "released: needs the released tables; skipped without ROUTELAWS_DATA")
    config.addinivalue_line("markers", "library(name): compares with that library; skipped where it is not installed")
    config.addinivalue_line(
        "markers",
        "asks(path, ..., because=): functions that the test calls; *.NAME: all of that name; because: why none",
    )
    config.addinivalue_line("markers", "slow: skipped in the quick profile")
    config.addinivalue_line("markers", "twin: promises of our own twin only, such as error messages")
    try:
        suite = config.stash[SUITE] = Suite(options_of(config))
        settings.load_profile(suite.options.profile)
        if settings.default.derandomize:
            providers.is_local_module_file = no_local_modules
        harness.compile_quickly(suite.options.profile == "quick")
        harness.multiply_in_full()
        if suite.options.profile == "quick":
            suite.collector = gc.get_threshold()
            gc.set_threshold(*SELDOM)
    except backends.BackendError as error:
        raise pytest.UsageError(str(error)) from error
    bounds.listeners.append(suite.ledger.share)


def pytest_unconfigure(config):
    if SUITE not in config.stash:
        return
    suite = config.stash[SUITE]
    providers.is_local_module_file = suite.is_local
    if suite.collector:
        gc.set_threshold(*suite.collector)
    if suite.ledger.share in bounds.listeners:
        bounds.listeners.remove(suite.ledger.share)


@pytest.fixture(scope="session")
def backend(request):
    """Return the namespace under test, by default `routelaws.accelerated`."""
    chosen = request.config.stash[SUITE].backends
    if not chosen:
        return backends.load(backends.OURS)
    return chosen[getattr(request, "param", next(iter(chosen)))]


def pytest_generate_tests(metafunc):
    chosen = metafunc.config.stash[SUITE].backends
    if "backend" in metafunc.fixturenames and len(chosen) > 1:
        metafunc.parametrize("backend", list(chosen), indirect=True, scope="session")


def name_of(item) -> str:
    """Return the name of a test in reports: its file without the folder, and the test."""
    return f"{item.path.name}::{item.nodeid.partition('::')[2]}"


def _backend_of(item):
    """Return the `Backend` of a test; None if the test uses no backend or a module without a guard."""
    suite = item.config.stash[SUITE]
    if "backend" not in getattr(item, "fixturenames", ()) or not suite.backends:
        return None
    name = getattr(item, "callspec", None) and item.callspec.params.get("backend")
    return suite.backends[name or next(iter(suite.backends))]


@functools.cache
def asked_for(text: str) -> frozenset[str]:
    """Return the paths that a mark names: `text` itself, or for `*.NAME` all paths with this last name."""
    paths, last = public_functions(), text.removeprefix("*.")
    return frozenset(path for path in paths if path == text or last != text and path.rpartition(".")[2] == last)


def asked_by(item) -> frozenset[str]:
    """Return the paths of the functions in a test's marks and parameters.

    A string parameter names a function by its path, or by its last name. The last name must contain "_", because a
    parameter without "_", such as "softmax", is usually an option.
    """
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    texts = {text for mark in item.iter_markers("asks") for text in mark.args}
    for value in (value for value in parameters if isinstance(value, str)):
        texts |= {value, f"*.{value}"} if "_" in value else {value}
    return frozenset().union(*map(asked_for, texts))


def pytest_collection_modifyitems(config, items):
    suite = config.stash[SUITE]
    if suite.options.shuffle is not None:
        random.Random(suite.options.shuffle).shuffle(items)
    if not suite.backends:
        return

    def wanted(item) -> bool:
        backend = _backend_of(item)
        if backend is None:
            return not suite.options.leave_others
        if item.get_closest_marker("twin") and getattr(backend.namespace, "__name__", "") != backends.OURS:
            return False
        slow = suite.left_out(backend)
        if not asked_by(item).isdisjoint(slow):
            return False
        return not suite.options.only or not asked_by(item).isdisjoint(suite.options.only)

    kept, left = [], []
    for item in items:
        (kept if wanted(item) else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_runtest_setup(item):
    suite = item.config.stash[SUITE]
    suite.ledger.begin("" if suite.backends or "backend" not in getattr(item, "fixturenames", ()) else backends.OURS)


def pytest_runtest_teardown(item, nextitem):
    suite = item.config.stash[SUITE]
    suite.tests += 1
    if suite.tests % OFTEN == 0:
        harness.make_room()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Start a record in the ledger for each example of a property test, and keep the calls of failing examples."""
    backend, inner = _backend_of(pyfuncitem), getattr(getattr(pyfuncitem.obj, "hypothesis", None), "inner_test", None)
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(inner, _SEED) and "suite" in pyfuncitem.path.parts:  # the folders do not change the examples
            patch.setattr(inner, _SEED, name_of(pyfuncitem).encode())
        for path in asked_by(pyfuncitem) & ACTIVATED.keys() if backend is not None else ():
            # An expert with another known activation is compared with a reference that has this activation.
            patch.setattr(experts, "gelu", backend.activations.get(path, experts.gelu))
        return (yield from _examples_kept(pyfuncitem))


def _examples_kept(pyfuncitem):
    ledger, property_ = pyfuncitem.config.stash[SUITE].ledger, getattr(pyfuncitem.obj, "hypothesis", None)
    if not ledger.keeps or property_ is None:
        return (yield)
    inner = property_.inner_test

    @functools.wraps(inner)
    def example(*arguments, **keywords):
        ledger.begin_example()
        try:
            return inner(*arguments, **keywords)
        except Exception as error:
            ledger.failed.append((error, list(ledger.calls)))
            raise

    property_.inner_test = example
    try:
        return (yield)
    finally:
        property_.inner_test = inner


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    result = yield
    suite, backend = item.config.stash[SUITE], _backend_of(item)
    if backend is not None and result.passed and call.when == "call" and "test_dialects" not in item.nodeid:
        suite.ledger.ended()  # not for dialects, because these tests do not compare with the reference
    if backend is None or not result.failed:
        return result
    if isinstance(call.excinfo.value, Unsatisfiable | FailedHealthCheck) and suite.ledger.left_out:
        result.outcome, result.longrepr = "skipped", (str(item.path), 0, f"Skipped: {suite.ledger.left_out}")
        return result
    where = name_of(item)
    trouble = suite.ledger.blame(call.excinfo.value, backend.name, where, asked_by(item))
    if not backend.is_ours and trouble.function in public_functions():
        function = backend.find(trouble.function)
        trouble = failing_calls.with_input(suite.ledger, trouble, backend.namespace, function)
        suite.ledger.troubles[-1] = trouble
    if suite.folder and trouble.function in public_functions() and trouble.kind != "missing":
        where = suite.folder, suite.options.export_failing
        file = failing_calls.export(*where, suite.ledger, trouble, suite.options.profile)
        suite.ledger.troubles[-1] = trouble._replace(file=file)
    if trouble.function in suite.options.expected:
        result.outcome, result.wasxfail = "skipped", suite.options.expected[trouble.function]
    return result


def pytest_sessionfinish(session):
    """In a worker of xdist, send the records to the parent process. Elsewhere, set the exit code of the session."""
    suite = session.config.stash[SUITE]
    if hasattr(session.config, "workeroutput"):
        shares = {name: float(share) for name, share in bounds.worst_share.items()}
        session.config.workeroutput["worst_share"] = shares
        session.config.workeroutput["ledger"] = suite.ledger.as_lists()
    elif session.exitstatus in (0, 5) and any(report.exit_code for report in suite.reports()):
        session.exitstatus = 1


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Add the records of a finished worker of xdist."""
    output = getattr(node, "workeroutput", {})
    for name, share in output.get("worst_share", {}).items():
        bounds.worst_share[name] = max(bounds.worst_share.get(name, 0.0), share)
    if "ledger" in output:
        node.config.stash[SUITE].ledger.add(output["ledger"])


def pytest_terminal_summary(terminalreporter, config):
    suite = config.stash[SUITE]
    if suite.backends:
        reports = suite.reports()
        for each in reports:
            terminalreporter.section(f"conformance of {each.backend}")
            for line in each.lines():
                terminalreporter.write_line(line)
        for path, write in ((suite.options.json, report.write_json), (suite.options.html, page.write_html)):
            if path:
                write(reports, path)
                terminalreporter.write_line(f"written: {path}")
    elif bounds.worst_share:
        terminalreporter.section("share of each bound used (1 = the limit)")
        for name, share in sorted(bounds.worst_share.items()):
            terminalreporter.write_line(f"{name:48} {share:9.2e}   {bounds.BOUNDS[name].reason}")
        for line in report.slack_lines(suite.slack(backends.OURS, backends.OURS)):
            terminalreporter.write_line(line)
