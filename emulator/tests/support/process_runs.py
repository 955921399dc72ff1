"""Compare runs of one program in one process and in several."""

import dataclasses
import warnings

import numpy as np
import tikemu
from tikemu import processes


def outcome(instance, feeds, count, folder, **settings):
    """Return all that a run gives: results, report, warnings, error, trace."""
    numerics, timing = settings.pop("numerics", True), settings.pop("timing", True)
    options = tikemu.Options(processes=count, progress=False, **settings)
    found = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = tikemu.run(instance, feeds, numerics=numerics, timing=timing, options=options)
        except tikemu.TikError as error:
            found["error"] = type(error), str(error), error.message, error.location, error.moment, error.findings
        else:
            fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
            found["outputs"] = {
                name: (array.dtype, array.shape, array.tobytes()) for name, array in fields.pop("outputs").items()
            }
            trace = fields.pop("trace")
            found.update(fields)
            found["text"] = str(result.overflow)
            if timing:
                found["report"] = result.report()
            if trace is not None:
                result.save_trace(folder / f"{count}.json")
                found["trace"] = (folder / f"{count}.json").read_text()
    found["warnings"] = [(str(entry.message), entry.filename, entry.lineno) for entry in caught]
    return found


def check_same(instance, feeds, folder, most=2, **settings):
    """Compare a run in several processes with a run in one, twice; return the result."""
    feeds = {name: np.asarray(value) if np.ndim(value) else value for name, value in feeds.items()}
    found = {}
    for _ in range(2):
        for count in (1, most):
            found[count] = outcome(instance, feeds, count, folder, **settings)
        expected, got = found[1], found[most]
        assert expected.keys() == got.keys(), (expected.get("error"), got.get("error"))
        for name in expected:
            assert expected[name] == got[name], name
    return found[1]


def modes(instance):
    """Return the fallback ways in which a program was run."""
    ways = set(vars(instance._recorder.program).get("_modes", {}).values())
    return {name for name, way in (("adding", processes._ADDING), ("alone", processes._ALONE)) if way in ways}
