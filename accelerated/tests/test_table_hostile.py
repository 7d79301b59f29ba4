"""Expressions that would run, write or exhaust something if any of their text were run: each ends in one line."""

import builtins
import os

import pandas
import pytest

from routelaws.accelerated import cli
from routelaws.accelerated.errors import InputError
from routelaws.accelerated.tables.table import select_rows

CALLS = (
    "sentinel()", "open('written', 'w')", "__import__('os').system('touch written')", "exec('sentinel()')",
    "hyper_id.to_csv('written')", "step.pipe(sentinel)", "k.map(sentinel)", "seed.apply(lambda x: sentinel())",
)  # fmt: skip
AROUND = (
    "{}", "({})", "{} == 1", "1 == {}", "k == 1 and {}", "k == 1 or {}", "not {}", "~({})", "(k == 1) & ({})",
    "k in [{}]", "k in ({}, 1)", "-{} == 1", "k + {} > 0", "1 < {} < 3", "[{} for x in [1]]", "({} for x in [1])",
    "{{{}: 1}}", "(lambda: {})()", "(lambda x={}: x)", "f'{{{}}}' == 'a'", "f'{{k!r:{{{}}}}}' == router_type",
    "(x := {}) == 1", "{} if k else seed", "[*{}] == k", "print({})", "k[{}] == 1", "k[{}:] == 1", "@{} == 1",
    "`{}` == 1", "k @ {}", "await {}", "(yield {})", "(yield from {})", "k == 1; {}", "k == 1\n{}", "{} .x == 1",
)  # fmt: skip
CLIMBS = (
    "{}.__class__", "{}.__class__.__base__", "{}.__class__.__mro__[-1].__subclasses__()",
    "{}.__class__.__init__.__globals__['sys'].modules['os'].system('touch written') == 0",
    "{}.__class__.__bases__[0].__subclasses__()[0]('written') == 1",
)  # fmt: skip
LARGE = (
    *("9" * digits for digits in (17, 400, 4000, 5000, 9000)), "0x" + "f" * 9000, "1_0" * 3000, "1e999",
    "9" * 400 + ".0", "9**9**9", "9**9**9**9", "2.0**1024", "1e308 * 10", "'a' * 10**10", "[0] * 10**10",
    "'%1000000000d' % 1", "-" * 100 + "1", "-" * 9000 + "1",
)  # fmt: skip
NESTED = (
    ("(", "k == 1", ")"), ("[", "k == 1", "]"), ("{", "k == 1", "}"), ("not ", "k == 1", ""), ("~", "(k == 1)", ""),
    ("k[", "1", "]"), ("sentinel(", "1", ")"), ("(k + ", "1", ") > 1"), ("", "k", ".a"), ("lambda: ", "k", ""),
    ("k if ", "k", " else k"),
)  # fmt: skip
LETTERS = (
    "ｈyper_id == 1", "hyper_id．__class__", "κ == 1", "k＝＝1", "k\u200b == 1", "k\u00a0== 1", "k == ١",
    "\u202ek == 1", "k == 1\x00", "\x00", "\ud800 == 1", "router_type == '\udfff'", "k == 1\u2028sentinel()",
    "k \\\n== sentinel()", "＿＿import＿＿('os').system('touch written')", "ｓentinel()",
    "# coding: rot13\nk == sentinel()", "\ufeffk.x == 1",
)  # fmt: skip
NAMES = (
    "__import__", "__builtins__", "__class__", "__file__", "__debug__", "os", "sys", "pandas", "np", "self", "frame",
    "sentinel", "exec", "globals", "index", "inf", "@pandas", "@frame.to_csv('written')", "@sentinel()",
)  # fmt: skip
LONG = (
    "k == 1 or " * 2000 + "k == 1", "k" * 10**6, "(" * 10**5, "k == '" + "a" * 10**5 + "'",
    "k == sentinel()" + " " * 10**5 + "x",
)  # fmt: skip
SMALL = (
    "k == ...", "k == 1j", "k == b'1'", "k == {1}", "k == {1: 2}", "k == (1, 2)", "k is 1", "k is not None", "k <> 1",
    "import os", "del k", "k = 1", "k := 1", "global k", "*k", "**k", "*k == 1", "k == 1,", "k == 1 == True", "raise k",
    "assert k", "return k", "async", "k -> 1", "k.1", "k!", "k ? 1 : 2", "$k", "k == $1", "'''", '"', "\\", ")", "k)(",
    "f'{sentinel()}'", "f'{sentinel()=}' == 'a'", "rb'a' == k", "print(k)", "k if k else k", "...",
)  # fmt: skip


def hostile() -> list[str]:
    """Return all of them, put together."""
    return [
        *(around.format(call) for i, around in enumerate(AROUND) for call in CALLS[i % 3 :: 3]),
        *(climb.format(start) for climb in CLIMBS for start in ("hyper_id", "router_type", "()", "''", "1.0", "[]")),
        *(form.format(number) for number in LARGE for form in ("k == {}", "{} > k")),
        *(left * n + middle + right * n for n in (250, 1000, 4000) for left, middle, right in NESTED),
        *LETTERS,
        *NAMES,
        *LONG,
        *SMALL,
    ]


def make_frame() -> pandas.DataFrame:
    """A table of nine runs that a law can be fitted to."""
    return pandas.DataFrame(
        [
            {
                "hyper_id": 3 * i + j,
                "step": 100,
                "router_type": "Dense" if experts == 1 else "Hash",
                "k": 1,
                "seed": 42,
                "num_experts": experts,
                "dense_parameter_count": size,
                "loss_validation": 3.0 - 0.1 * i - 0.2 * j,
            }
            for i, size in enumerate((1e6, 1e7, 1e8))
            for j, experts in enumerate((1, 4, 16))
        ]
    )


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """Go to an empty folder, which has to stay so, and return the list in which whatever is called is noted."""
    called, empty = [], tmp_path / "empty"
    monkeypatch.setattr(builtins, "sentinel", lambda *given: called.append("sentinel"), raising=False)
    for place, name in ((os, "system"), (pandas.DataFrame, "eval"), (pandas.DataFrame, "query"), (pandas, "eval")):
        monkeypatch.setattr(place, name, lambda *given, name=name, **named: called.append(name))
    empty.mkdir()
    monkeypatch.chdir(empty)
    yield called
    assert called == [] and os.listdir(empty) == []


def test_there_are_enough_of_them():
    assert len(set(hostile())) >= 200


def test_nothing_is_run_and_one_line_is_said(watched):
    frame = make_frame()
    for expression in hostile():
        try:
            select_rows(frame, expression)
            said = "accepted"
        except InputError as error:
            said = str(error)
        assert said.startswith("rows ") and said.isprintable() and len(said) < 500, (expression[:80], said)


def test_through_a_command(watched, capsys, tmp_path):
    make_frame().to_csv(tmp_path / "table.csv", index=False)
    for expression in (CLIMBS[3].format("hyper_id"), CALLS[4], "(" * 5000, "k == 9**9**9", "@pandas.io", "`k` == 1"):
        code = cli.main(["fit", str(tmp_path / "table.csv"), "--rows", expression])
        said = capsys.readouterr()
        assert code == 2 and said.out == "" and said.err.startswith("routelaws: rows ") and said.err.count("\n") == 1
