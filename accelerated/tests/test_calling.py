"""A copy of a reference function calls the given functions, and the reference is unchanged."""

import inspect

import pytest

from routelaws.accelerated import laws
from routelaws.accelerated._calling import calling
from routelaws.reference.laws import hoffmann, utilisation


class Search:
    @staticmethod
    def fit_additive(law, columns, loss, huber, starts):
        return law.name, columns, loss, huber


def test_a_copy_calls_the_twin_and_the_original_does_not():
    before = hoffmann.additive
    copy = calling(hoffmann.fit_hoffmann, additive=Search)
    assert copy([1.0], [2.0], [3.0], huber=0.5) == ("hoffmann", [[1.0], [2.0]], [3.0], 0.5)
    assert hoffmann.fit_hoffmann.__globals__["additive"] is before


def test_a_copy_has_the_parameters_and_the_description_of_the_original():
    copy = laws.utilisation.fit_utilisation
    assert copy is not utilisation.fit_utilisation and copy.__doc__ == utilisation.fit_utilisation.__doc__
    assert inspect.signature(copy) == inspect.signature(utilisation.fit_utilisation)
    assert copy.__module__ == "routelaws.accelerated.laws.utilisation"


def test_a_name_that_is_not_used_is_an_error():
    with pytest.raises(NameError, match="fit_hoffmann has no variable search"):
        calling(hoffmann.fit_hoffmann, search=Search)


def double(value):
    return 2 * value


def doubles(values):
    return [double(value) for value in values]


def test_names_within_inner_functions_count():
    assert doubles([1, 2]) == [2, 4] and calling(doubles, double=str)([1, 2]) == ["1", "2"]
