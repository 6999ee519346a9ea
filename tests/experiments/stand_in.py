"""A model that holds nothing but what a test asks of it."""

from headscope.model.model import Model


def stand_in(**attributes: object) -> Model:
    """An object of the class `Model` with these attributes alone."""
    properties = {name: property(lambda _, value=value: value) for name, value in attributes.items()}
    kind = type("StandIn", (Model,), properties)
    return object.__new__(kind)
