"""What a network can be made of, and the refusal of anything else; loads no torch."""

from collections.abc import Mapping
from typing import Any

from headscope.errors import UsageError

POSITIONS = ("sinusoidal", "learnt", "rotary", "none")
NORMS = ("layer", "rms", "none")
NORM_PLACES = ("pre", "post")
FEED_FORWARD = ("relu", "gelu", "swiglu", "none")
INITIALISATIONS = ("xavier", "identity", "diagonal", "sparse")
CELLS = ("lstm", "gru")
SCORES = ("none", "bahdanau", "luong_dot", "luong_general")

_CHOICES = {
    "positions": POSITIONS,
    "norm": NORMS,
    "norm_place": NORM_PLACES,
    "feed_forward": FEED_FORWARD,
    "initialisation": INITIALISATIONS,
    "cell": CELLS,
    "score": SCORES,
}
_COUNTS = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
           "max_position_embeddings", "num_hidden_layers", "encoder_layers", "decoder_layers")  # fmt: skip
_MOST_HEADS = 2**16  # far beyond any network: more would fill the memory before a size is refused
_SHARES = ("dropout", "attention_dropout")


def check_choices(settings: Mapping[str, Any]) -> None:
    """Refuse a size, share or choice that no network can have.

    Raises:
        UsageError: The first setting that is wrong, with what was expected.
    """
    for name, options in _CHOICES.items():
        if name in settings and settings[name] not in options:
            raise UsageError(f"{name} is {settings[name]!r}, expected one of {', '.join(options)}")
    for name in _COUNTS:
        count = settings.get(name)
        if count is not None and (not isinstance(count, int) or count < 1):
            raise UsageError(f"{name} is {count!r}, expected a whole number of at least 1")
    for name in _SHARES:
        share = settings.get(name, 0.0)
        if not isinstance(share, int | float) or not 0.0 <= share < 1.0:
            raise UsageError(f"{name} is {share!r}, expected a share of at least 0 and below 1")
    _check_heads(settings)


def _check_heads(settings: Mapping[str, Any]) -> None:
    heads = settings.get("num_attention_heads")
    if heads is None:
        return
    if heads > _MOST_HEADS:
        raise UsageError(f"num_attention_heads is {heads}, expected at most {_MOST_HEADS}")
    width, d_head, kv_heads = (settings.get(name) for name in ("hidden_size", "head_dim", "num_key_value_heads"))
    if d_head is None and width is not None and width % heads:
        raise UsageError(
            f"hidden_size {width} cannot be cut into {heads} heads evenly", hint="give head_dim, the width of one head"
        )
    if kv_heads is not None and heads % kv_heads:
        raise UsageError(
            f"{heads} query heads cannot share {kv_heads} key/value heads evenly",
            hint="num_key_value_heads must divide num_attention_heads",
        )
    if settings.get("positions") == "rotary" and (d_head or (width or 0) // heads) % 2:
        raise UsageError("rotary positions turn pairs of channels, and the width of a head is odd", hint="use head_dim")
    if settings.get("shared_queries_and_keys") and kv_heads not in (None, heads):
        raise UsageError(
            f"queries and keys cannot share a matrix with {heads} query heads and {kv_heads} key heads",
            hint="leave num_key_value_heads out",
        )
    rules = settings.get("mechanisms") or {}
    if not isinstance(rules, dict) or not all(isinstance(word, str) for rule in rules.items() for word in rule):
        raise UsageError(
            f"mechanisms is {str(rules)[:60]}, expected heads by mechanism", hint='{"window(left=4)": "enc.L0.H0-1"}'
        )
    if rules and settings.get("attention_dropout"):
        raise UsageError("mechanisms drop no attention weights", hint="set attention_dropout to 0; dropout may stay")
