"""The helpers of the lessons."""

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from routelaws.accelerated.tables import released

SPEC = importlib.util.spec_from_file_location("lesson", Path(__file__).resolve().parents[1] / "lesson.py")
lesson = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lesson)


class TestSame:
    @pytest.mark.parametrize("precision", [np.float32, np.float64])
    def test_allows_rounding_of_the_precision_found(self, precision):
        expected = np.array([1 / 3, -2000 / 7])
        lesson.same(expected.astype(precision), expected)
        with pytest.raises(AssertionError, match="first at"):
            lesson.same((expected * (1 + 200 * np.finfo(precision).eps)).astype(precision), expected)

    def test_whole_numbers_are_exact(self):
        lesson.same(np.array([1, 2]), [1, 2])
        with pytest.raises(AssertionError, match="expected 2, found 3"):
            lesson.same(np.array([1, 3]), [1, 2])

    def test_shapes_count(self):
        with pytest.raises(AssertionError, match="shape"):
            lesson.same(np.ones(3), np.ones((3, 1)))

    def test_a_number_that_is_none_is_not_the_same(self):
        with pytest.raises(AssertionError):
            lesson.same(np.array([np.nan]), [1.0])

    def test_a_bound_by_name(self):
        lesson.same(1.0005, 1.0, "laws.fitting.quick", scale=1.0)
        with pytest.raises(AssertionError, match="laws.fitting.quick"):
            lesson.same(1.002, 1.0, "laws.fitting.quick", scale=1.0)


class TestFigure:
    @pytest.fixture
    def notebook(self, monkeypatch):
        import IPython

        shown = []
        monkeypatch.setattr(IPython, "get_ipython", object)
        monkeypatch.setattr("IPython.display.display", shown.append)
        return shown

    def test_plain_python_prints_the_caption(self, capsys):
        lesson.figure(None, "What to see. More.")
        assert capsys.readouterr().out == "[Figure] What to see. More.\n"

    def test_a_notebook_shows_the_picture_on_white_and_the_caption(self, notebook):
        lesson.figure(lambda axes: axes.set(xlabel="experts", ylabel="loss, nats"), "What to see. More.")
        picture, caption = notebook
        corner = imread(io.BytesIO(picture.data))[0, 0]
        assert corner.tolist() == [1, 1, 1, 1] and picture.alt == "What to see"
        assert caption.data == "*What to see. More.*"

    def test_axes_without_labels_are_an_error(self, notebook):
        with pytest.raises(AssertionError, match="1 of the axes"):
            lesson.figure(lambda axes: axes.set(xlabel="experts"), "What to see.")


def test_missing_packages_end_the_lesson_with_a_line_that_names_all(monkeypatch, capsys):
    lesson.needs("laws")
    needed = ["numpy>=2", "no-such-a>=1", 'no-such-b>=1; extra == "train"', 'no-such-c; extra == "laws"']
    monkeypatch.setattr(lesson, "requires", lambda name: needed)
    for extra, named in (("", "no-such-a"), ("train", "no-such-a no-such-b")):
        with pytest.raises(SystemExit) as ended:
            lesson.needs(extra)
        line = f"The rest of this lesson needs more packages: pip install {named}\n"
        assert ended.value.code is None and capsys.readouterr().out == line


def test_a_missing_table_is_said_and_is_no_error(monkeypatch, tmp_path, capsys):
    (tmp_path / "downstream_tasks.csv").write_bytes(b"another")
    monkeypatch.setenv("ROUTELAWS_DATA", str(tmp_path))
    assert lesson.released("downstream_tasks.csv") is None
    assert "is not the released table" in capsys.readouterr().out


def test_the_fitted_runs_are_the_last_rows_of_one_seed_and_one_router(tmp_path, monkeypatch):
    """Steps are compared as numbers. Another seed, frequency or k is excluded. Dense runs are E = 1 of all routers."""
    columns = "hyper_id,step,seed,k,routing_frequency,router_type,dense_parameter_count,num_experts,loss_validation"
    rows = [
        "1,900,42,1,0.5,Hash,15,8,2.9", "1,1000,42,1,0.5,Hash,15,8,2.5", "2,1000,43,1,0.5,Hash,15,8,2.4",
        "3,1000,42,1,1.0,Hash,15,8,2.3", "4,1000,42,2,0.5,Hash,15,8,2.2", "5,1000,42,1,0.5,S-Base,15,8,2.1",
        "6,1000,42,1,0.5,Dense,15,1,3.0",
    ]  # fmt: skip
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([columns, *rows]) + "\n")
    monkeypatch.setattr(released, "released_runs", lambda: path)
    assert sorted(lesson.fitted_runs("Hash").T.tolist()) == [[15, 1, 3.0], [15, 8, 2.5]]
    assert lesson.fitted_runs("Dense").T.tolist() == [[15, 1, 3.0]]


def test_one_answer_has_the_names_of_earlier_ones(tmp_path, monkeypatch, capsys):
    (tmp_path / "answers").mkdir()
    answers = (
        "size = 3\n\n# 1. Three.\nprint(1)\nsize += 1\n\n# 2. Four,\n# as 3 + 1.\nprint(size)\n\n# 3. Five.\nprint(5)\n"
    )
    (tmp_path / "answers" / "07_top_k.py").write_text(answers)
    monkeypatch.setattr(lesson, "__file__", str(tmp_path / "lesson.py"))
    lesson.answer("07", 2)
    assert capsys.readouterr().out == "2. Four,\nas 3 + 1.\n\n4\n"
    for number in (0, 4):
        with pytest.raises(SystemExit, match=f"exercise {number} does not exist; use 1 to 3"):
            lesson.answer("07", number)
    with pytest.raises(SystemExit, match="lesson '08': 0 scripts begin so"):
        lesson.answer("08", 1)


def test_a_shell_has_the_names_of_a_lesson_that_stops(tmp_path, monkeypatch, capsys):
    (tmp_path / "01_routed.py").write_text("# ## 1. Scores\nscores = 7\nraise SystemExit\n")
    monkeypatch.setattr(lesson, "__file__", str(tmp_path / "lesson.py"))
    assert lesson.run("01")["scores"] == 7 and "1. Scores" in capsys.readouterr().out
