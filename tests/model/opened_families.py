"""The tiny families, each built and opened once for all the tests that only look at them."""

from headscope.model.model import Model, open_model
from tests.model.families import Family

_MODELS: dict[str, Model] = {}


def opened(family: Family) -> Model:
    """The model of a family; whoever changes it builds one of their own."""
    if family.name not in _MODELS:
        _MODELS[family.name] = open_model(family.build())
    return _MODELS[family.name]
