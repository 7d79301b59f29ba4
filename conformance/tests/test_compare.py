"""The comparisons accept right results, reject wrong ones, and name the place."""

import numpy as np
import pytest

from routelaws.conformance import bounds
from routelaws.conformance.compare import assert_admissible_top_k, assert_close_bounded, assert_plan, assert_same


@pytest.fixture(autouse=True)
def a_bound(monkeypatch):
    """Add a separate bound, so that these tests record no share of a real bound."""
    monkeypatch.setitem(bounds.BOUNDS, "meta", bounds.Bound(2.0, "for the tests of the suite"))
    monkeypatch.setattr(bounds, "worst_share", {})


class TestCheck:
    def test_records_the_worst_share(self):
        for error in (0.5, 1.0, 0.1):
            bounds.check("meta", error, scale=4.0)
        assert bounds.worst_share == {"meta": 0.125}

    @pytest.mark.parametrize(("error", "scale"), [(2.1, 1.0), (float("nan"), 1.0), (1e-300, 0.0)])
    def test_fails(self, error, scale):
        with pytest.raises(AssertionError, match="what it was; .*meta.*for the tests of the suite"):
            bounds.check("meta", error, scale, message="what it was")
        assert not bounds.worst_share

    def test_an_exact_match_needs_no_scale(self):
        bounds.check("meta", 0.0, 0.0)

    def test_an_unknown_bound_is_an_error(self):
        with pytest.raises(KeyError):
            bounds.check("no such bound", 0.0)

    def test_every_bound_has_a_reason(self):
        assert bounds.BOUNDS
        for name, bound in bounds.BOUNDS.items():
            assert bound.limit > 0 and len(bound.reason) > 10, name


class TestClose:
    expected = np.array([[1.0, -2.0], [0.0, 4.0]])

    def test_passes_up_to_the_limit(self):
        assert_close_bounded("meta", self.expected + 2, self.expected, what="f")
        assert_close_bounded("meta", self.expected * 1.5, self.expected, np.abs(self.expected) / 4, what="f")
        assert bounds.worst_share == {"meta": 1.0}

    def test_names_the_first_bad_entry(self):
        found = self.expected.copy()
        found[1, 0] = 2.5
        message = r"f: 1 of 4 entries of shape \(2, 2\).*first at \(1, 0\): expected .*0\.0.*, found .*2\.5"
        with pytest.raises(AssertionError, match=message):
            assert_close_bounded("meta", found, self.expected, what="f")

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_a_number_is_never_close(self, bad):
        found = self.expected + 1e301  # an entry that is not finite is named before wrong ones
        found[0, 1] = bad
        with pytest.raises(AssertionError, match=r"4 of 4 .*\(0, 1\): expected -2.0, found -?(nan|inf)"):
            assert_close_bounded("meta", found, self.expected, scale=1e300, what="f")

    def test_a_scale_of_zero_is_exact(self):
        assert_close_bounded("meta", self.expected, self.expected, np.zeros((2, 2)), what="f")
        with pytest.raises(AssertionError):
            assert_close_bounded("meta", self.expected + 1e-300 * (self.expected == 0), self.expected, 0.0, what="f")

    @pytest.mark.parametrize("shape", [(4,), (2, 2, 1), (1, 2)])
    def test_shapes_are_not_broadcast(self, shape):
        with pytest.raises(AssertionError, match="shape"):
            assert_close_bounded("meta", np.resize(self.expected, shape), self.expected, 1e9, what="f")

    def test_the_scale_is_per_entry(self):
        found = self.expected + np.array([[0.0, 0.0], [0.0, 1.0]])
        with pytest.raises(AssertionError):
            assert_close_bounded("meta", found, self.expected, np.array([[9.0, 9.0], [9.0, 0.1]]), what="f")


class TestSame:
    def test_passes(self):
        assert_same(np.array([1, 2]), [1, 2], what="f")
        assert_same(np.float32(0.5), 0.5, what="f")
        assert_same(np.zeros((0, 2)), np.zeros((0, 2)), what="f")

    @pytest.mark.parametrize("found", [[1, 3], [1], [1, np.nan], [[1, 2]]])
    def test_fails(self, found):
        with pytest.raises(AssertionError, match="f: "):
            assert_same(np.array(found), np.array([1, 2]), what="f")

    def test_fails_on_single_numbers(self):
        with pytest.raises(AssertionError, match="expected"):
            assert_same(np.float64(1), np.float64(2), what="f")


class TestTopK:
    scores = np.array([[3.0, 1.0, 2.0, 0.0], [1.0, 1.0, 0.0, 0.5]])

    def top(self, chosen, margin=0.0):
        return assert_admissible_top_k(np.array(chosen), self.scores, margin, what="f")

    def test_exact_scores_decide_all_but_ties(self):
        assert self.top([[0], [0]]) == 0.5 and self.top([[0], [1]]) == 0.5
        assert self.top([[0, 2], [1, 0]]) == 0.0 and self.top([[0, 2], [0, 1]]) == 0.0

    def test_the_margin_widens_what_may_be_chosen(self):
        assert self.top([[0, 1], [0, 3]], margin=0.5) == 1.0
        with pytest.raises(AssertionError, match="margin"):
            self.top([[0, 1], [0, 1]], margin=0.4)

    def test_margins_are_per_token(self):
        assert self.top([[0, 1], [0, 1]], margin=np.array([0.5, 0.0])) == 0.5

    @pytest.mark.parametrize(
        ("chosen", "message"),
        [([[1], [0]], "certain"), ([[0, 3], [0, 1]], "certain|allows"), ([[0, 0], [0, 1]], "distinct"),
         ([[2, 0], [0, 1]], "first choice"), ([[0], [4]], "0 to 3"), ([[-1], [0]], "0 to 3"), ([[0]], "shape"),
         ([[0.0], [0.0]], "dtype")],
    )  # fmt: skip
    def test_fails(self, chosen, message):
        with pytest.raises(AssertionError, match=message):
            self.top(chosen)

    def test_what_must_be_chosen_is_certain_within_the_margin(self):
        with pytest.raises(AssertionError, match="certain"):
            self.top([[1], [0]], margin=0.4)  # 3 beats 2 by 1, more than twice 0.4
        assert self.top([[2], [0]], margin=0.5) == 1.0  # exactly twice the margin: undecided

    def test_all_experts(self):
        assert self.top([[0, 2, 1, 3], [0, 1, 3, 2]]) == 0.0


class TestPlan:
    plan = np.array([[0.4, 0.1], [0.2, 0.3]])

    def test_passes(self):
        assert_plan("meta", self.plan, 0.2, 1e-15, what="f")

    @pytest.mark.parametrize(
        ("change", "residual", "message"),
        [([[0, 0], [0.1, 0]], 0.4, "row sums"), ([[0, 0], [0, 0]], 0.1, "residual"),
         ([[0.2, -0.2], [0, 0]], 0.6, "entry"), ([[np.nan, 0], [0, 0]], 0.2, "entry")],
    )  # fmt: skip
    def test_fails(self, change, residual, message):
        with pytest.raises(AssertionError, match=message):
            assert_plan("meta", self.plan + change, residual, 1e-15, what="f")


def test_rows_in_another_order_are_told_from_other_rows():
    expected = np.array([[2, 0], [1, 2]])
    for found, said in (([[0, 2], [2, 1]], True), ([[0, 2], [2, 0]], False)):
        with pytest.raises(AssertionError) as error:
            assert_same(np.array(found), expected, what="expert")
        assert ("; every row has the expected entries in another order" in str(error.value)) == said
