"""Known failures, and bounds that are slack for our own twin."""

import json
from types import SimpleNamespace

import pytest

from routelaws.conformance import bounds
from routelaws.conformance.engine import backends, plugin, report
from routelaws.conformance.engine import options as engine_options
from routelaws.conformance.engine.ledger import Ledger
from routelaws.reference import notation


class TestKnownFailures:
    def written(self, folder, text: str) -> str:
        (folder / "known.txt").write_text(text, encoding="utf-8")
        return str(folder / "known.txt")

    def test_a_file(self, tmp_path):
        text = "# ours\n\nsoftmax: adds up to two # for now\nrouters.top_k.top_k_router:ties: to the higher index\n"
        wanted = {"notation.softmax": "adds up to two", "routers.top_k.top_k_router": "ties: to the higher index"}
        assert engine_options.known_failures_of(self.written(tmp_path, text)) == wanted

    @pytest.mark.parametrize("text, problem", [
        ("one_hot: a\nsoftmix: b", "line 2: softmix does not name"), ("softmax", "write `path: reason`"),
        ("softmax:  # why", "line 1: .*write `path"), (": why", "write `path"),
        ("one_hot: a until 9999-12-31\nsoftmax: b until 2026-01-31", "line 2: softmax expired on 2026-01-31"),
        ("softmax: a\n\nnotation.softmax: b", "line 3: notation.softmax appears twice"),
    ])  # fmt: skip
    def test_lines_that_are_wrong(self, tmp_path, text, problem):
        with pytest.raises(backends.BackendError, match=problem) as caught:
            engine_options.known_failures_of(self.written(tmp_path, text))
        assert "\n" not in str(caught.value)

    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises(backends.BackendError, match="known failures .*: it cannot be read"):
            engine_options.known_failures_of(str(tmp_path / "no"))

    def test_what_is_right_all_the_same(self):
        """An unexpected success is reported, and fails only with `--strict`. An untested function is not a success."""
        ledger = Ledger()
        ledger.called("mine", "notation.softmax")
        backend = backends.Backend("mine", notation, ledger)
        paths = ["notation.softmax", "notation.one_hot"]
        known = dict.fromkeys(paths, "known")
        loose, strict = (report.build(backend, ledger, {}, paths, known, strict=strict) for strict in (False, True))
        assert [row.verdict for row in loose.rows] == ["unexpectedly right", "not asked"]
        assert (loose.exit_code, strict.exit_code, strict["softmax"].failed) == (0, 1, 1)
        assert any("unexpectedly right" in line for line in loose.lines())

    def test_the_options_arrive(self, tmp_path):
        options = {
            "--routelaws-known-failures": self.written(tmp_path, "softmax: why"),
            "--routelaws-strict": True,
            "--routelaws-backend": ["routelaws.reference"],
            "--routelaws-export-failing": str(tmp_path / "a" / "b"),
        }
        config = SimpleNamespace(getoption=lambda name, default=None: options.get(name, default))
        suite = plugin.Suite(engine_options.Options.of_pytest(config))
        assert suite.options.expected == {"notation.softmax": "why"} and suite.options.strict and suite.ledger.keeps
        assert (tmp_path / "a" / "b").is_dir()

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        with pytest.raises(backends.BackendError, match="the folder cannot be created"):
            engine_options.folder_for(self.written(tmp_path, "") + "/here")


class TestSlackBounds:
    def suite(self, profile: str, name: str = backends.OURS) -> plugin.Suite:
        """Run with three bounds checked often, one seldom, and three shares too small."""
        suite = plugin.Suite(engine_options.Options.made([name], profile=profile))
        suite.ledger.called(name, "notation.softmax")
        used = {"loose": 1e-3, "tight": 0.5, "exact": 0.0, "seldom": 1e-3}
        for bound, share in used.items():
            for i in range(bounds.SLACK_CHECKS - (bound == "seldom")):
                suite.ledger.share(bound, share / (1 + 99 * (i > 0)))
        return suite

    def test_of_our_twin_after_enough_examples(self):
        (found,) = self.suite("default").reports()
        assert found.slack == (("loose", 1e-3, bounds.SLACK_CHECKS),)
        assert any("loose" in line and "1.0e-03" in line for line in found.lines())
        assert found.as_dict()["slack_bounds"][0]["bound"] == "loose" and found.exit_code == 0

    @pytest.mark.parametrize("profile, name", [("quick", backends.OURS), ("default", "routelaws.reference")])
    def test_of_nobody_else(self, profile, name):
        (found,) = self.suite(profile, name).reports()
        assert found.slack == () and not any("slack" in line for line in found.lines())

    def test_in_a_plain_run_and_from_other_processes(self):
        """Tests without the guard count if they use the backend. Tests of the suite itself do not."""
        one, all_ = Ledger(), Ledger()
        for plain in (backends.OURS, ""):
            one.begin(plain)
            for _ in range(bounds.SLACK_CHECKS // 2):
                one.share("loose", 1e-3 if plain else 0.5)
        for _ in range(2):
            all_.add(json.loads(json.dumps(one.as_lists())))
        assert all_.slack(backends.OURS) == (("loose", 1e-3, bounds.SLACK_CHECKS),) and one.slack(backends.OURS) == ()
