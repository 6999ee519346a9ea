"""The position of a forward in its text: padded rows, and tokens in the cache.

An attention call does not carry the position of its queries (a decode step with cross-attention least of
all), so it is read from the arguments of the model's forward.
"""

import inspect
from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from headscope.core.site import Site, Stack


class ForwardPosition:
    """The padding and the cache of the forward that is running, by stack."""

    def __init__(self, model: Any) -> None:
        self._two_stacks = bool(model.config.is_encoder_decoder)
        self._cached_tokens = 0
        self._real: dict[Stack, Tensor | None] = {}
        self._tokens: Tensor | None = None
        self._tokens_by_stack: dict[Stack, Tensor] = {}
        self._signatures: dict[int, tuple[Any, inspect.Signature]] = {}
        self.continues = False
        self.n_texts = 0

    def read_model(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read the arguments of a forward of the whole model."""
        arguments = self._arguments(module, args, kwargs)
        cache = arguments.get("past_key_values")
        self._cached_tokens = 0 if cache is None else int(cache.get_seq_length())
        self._read_tokens(arguments)
        first: Stack = "enc" if self._two_stacks else "only"
        self._real[first] = _two_dimensional(arguments.get("attention_mask"))
        self._real["text"] = self._real[first]
        self._real["dec"] = _two_dimensional(arguments.get("decoder_attention_mask"))

    def _read_tokens(self, arguments: dict[str, Any]) -> None:
        """Whether the forward goes on with the text of the one before: through a cache, or by reading it again."""
        name = "decoder_input_ids" if self._two_stacks else "input_ids"
        tokens, before = arguments.get(name), self._tokens
        read = next((arguments[key] for key in ("input_ids", "inputs_embeds") if arguments.get(key) is not None), None)
        self.n_texts = len(read) if isinstance(read, Tensor) else 0
        self._tokens = tokens if isinstance(tokens, Tensor) else None
        first: Stack = "enc" if self._two_stacks else "only"
        by_stack = {first: arguments.get("input_ids"), "text": arguments.get("input_ids"), "dec": self._tokens}
        self._tokens_by_stack = {
            stack: ids for stack, ids in by_stack.items() if isinstance(ids, Tensor) and ids.ndim == 2
        }
        self.continues = self._cached_tokens > 0 or _is_longer(before, self._tokens)

    def read_encoder(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read the arguments of an encoder's forward, which generation runs separately."""
        self._real["enc"] = _two_dimensional(self._arguments(module, args, kwargs).get("attention_mask"))

    def _arguments(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a forward by name, including those it passes on."""
        forward, signature = self._signatures.get(id(module), (None, None))
        if signature is None or forward != module.forward:
            # Reading a signature takes as long as the attention of a layer in a step of generation.
            signature = inspect.signature(module.forward)
            self._signatures[id(module)] = module.forward, signature
        bound = signature.bind_partial(*args, **kwargs).arguments
        return {**bound, **bound.get("kwargs", {})}

    def tokens_of(self, site: Site, n_keys: int) -> Int[Tensor, "batch keys"] | None:
        """The tokens at the keys of a site; None where its keys are not those of the tokens just read."""
        tokens = self._tokens_by_stack.get(site.stack) if site.kind == "self" else None
        return tokens if tokens is not None and tokens.shape[1] == n_keys else None

    def offset(self, stack: Stack) -> int:
        """The position of the first query of a stack."""
        return 0 if stack == "enc" else self._cached_tokens

    def real_queries(self, stack: Stack, queries: int) -> Bool[Tensor, "batch queries"] | None:
        """Which of the last `queries` positions are real; None where all are."""
        real = self._real.get(stack)
        return None if real is None or real.shape[1] < queries else real[:, -queries:].bool()


def _two_dimensional(mask: Any) -> Tensor | None:
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _is_longer(before: Tensor | None, after: Tensor | None) -> bool:
    """Whether `after` is `before` with more tokens at its end, as in generation without a cache."""
    if before is None or after is None or before.ndim != 2 or after.ndim != 2 or len(before) != len(after):
        return False
    n_before = before.shape[1]
    return n_before < after.shape[1] and bool((after[:, :n_before] == before.to(after.device)).all())
