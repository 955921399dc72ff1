"""Test that MindSpore's compiler gets the functions' own sources from tests."""

import functools
import inspect


def decorated(function):
    """Return a function in a wrapper. All wrappers share one code object."""

    @functools.wraps(function)
    def wrapper():
        return function()

    return wrapper


@decorated
def first():
    """Return the first function's result: the two differ in name and result."""
    return 1


@decorated
def second():
    """Return the second function's result."""
    return 2


def test_functions_of_one_decorator_have_sources_of_their_own():
    for _ in range(2):
        for function in (first, second):
            assert f"def {function.__name__}():\n" in inspect.getsourcelines(function)[0]
