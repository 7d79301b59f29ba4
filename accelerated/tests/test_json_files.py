"""Reading changed JSON: parsing, forms, and error messages."""

import math

import pytest

from routelaws.accelerated.errors import InputError
from routelaws.accelerated.json_files import NULL, NUMBER, misfit, parse_json, read_json

RUN = {"name": str, "runs": [{"steps": int, "loss?": NUMBER}], "jobs?": (*NUMBER, NULL), "digests?": {"*": str}}
GOOD = (
    '{"name": "x", "runs": [{"steps": 8, "loss": 2}, {"steps": 8, "more": true}], "jobs": null, "digests": {"a": "b"}}'
)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (GOOD, None),
        ('{"runs": []}', "name is missing"),
        ('{"name": null, "runs": []}', "name is null; a text is needed"),
        ('{"name": "x", "runs": {}}', "runs is {}; a list is needed"),
        ('{"name": "x", "runs": [{}]}', "runs[0].steps is missing"),
        ('{"name": "x", "runs": [{"steps": 8.0}]}', "runs[0].steps is 8.0; a whole number is needed"),
        ('{"name": "x", "runs": [{"steps": true}]}', "runs[0].steps is true; a whole number is needed"),
        ('{"name": "x", "runs": [{"steps": 8, "loss": "2"}]}', "runs[0].loss is '2'; a number is needed"),
        ('{"name": "x", "runs": [], "jobs": []}', "jobs is []; a number or null is needed"),
        ('{"name": "x", "runs": [], "digests": {"a": 1}}', "digests.a is 1; a text is needed"),
        (f'"{"y" * 100}"', f"its content is '{'y' * 39}...; an object is needed"),
    ],
)
def test_a_value_of_another_form_is_named_by_its_place(text, wrong):
    assert misfit(parse_json(text), RUN) == wrong


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "Expecting value"),
        ("[" * 10**5, "it is nested too deeply"),
        ('{"a":' * 10**5, "it is nested too deeply"),
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' appears twice"),
        *((f"[{number}]", f"{number} is not a finite number") for number in ("NaN", "-Infinity", "1e999")),
        (f"[{'9' * 5000}]", "Exceeds the limit"),
        ("\ufeff{}", "BOM"),
    ],
)
def test_what_is_no_json_is_a_value_error(tmp_path, text, wrong):
    with pytest.raises(ValueError, match=wrong):
        parse_json(text)
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"a.json: is not valid JSON: .*{wrong}") as error:
        read_json(tmp_path / "a.json", dict)
    assert "\n" not in str(error.value)


def test_numbers_that_are_not_finite_are_read_where_they_are_allowed():
    assert parse_json("[Infinity, 1e999]", infinite=True) == [math.inf, math.inf]
