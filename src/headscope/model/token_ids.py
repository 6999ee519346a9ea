"""Checks token ids against the embedding table."""

from torch import Tensor

from headscope.core.model_spec import ModelSpec
from headscope.errors import CheckpointError


def check_token_ids(tokens: Tensor, spec: ModelSpec) -> None:
    """Refuse tokens without a vector: tokenizer and weights are of different models.

    Raises:
        CheckpointError: An id is not below the size of the vocabulary.
    """
    largest = int(tokens.max()) if tokens.numel() else 0
    if spec.vocabulary and largest >= spec.vocabulary:
        raise CheckpointError(
            f"{spec.name}: the tokenizer gives the token {largest} for this text, "
            f"but the embedding table has {spec.vocabulary} rows",
            hint="tokenizer and weights belong to different models: fetch both from the same place",
        )
