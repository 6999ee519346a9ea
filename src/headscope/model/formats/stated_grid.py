"""How many layers and heads a configuration states; loads no torch, so that wrong heads are refused at once."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# Names with these words in them are sizes of other things.
_NOT_HEADS = ("key_value", "kv", "dim", "size")


class StatedGrid(NamedTuple):
    """The number of layers, and the number of heads in each."""

    n_layers: int
    n_heads: int


def stated_grid(raw: Mapping[str, Any]) -> StatedGrid | None:
    """The one number of layers and the one number of heads in a configuration.

    None for an encoder–decoder, and where several numbers could be meant, such as those of parts of the model: then
    only the model itself tells.
    """
    sizes = [(name.lower(), value) for name, value in _whole_numbers(raw)]
    layers = [value for name, value in sizes if "layer" in name]
    heads = [value for name, value in sizes if "head" in name and not any(word in name for word in _NOT_HEADS)]
    if raw.get("is_encoder_decoder") or len(layers) != 1 or len(heads) != 1:
        return None
    return StatedGrid(layers[0], heads[0])


def _whole_numbers(raw: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """All whole numbers with their names, those of parts too."""
    for name, value in raw.items():
        if isinstance(value, Mapping):
            yield from _whole_numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, value
