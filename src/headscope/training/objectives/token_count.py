"""How many tokens a batch has."""

from headscope.training.objectives.objective import IGNORED, Batch


def n_tokens(batch: Batch) -> int:
    """The tokens of the input of a network, without padding."""
    mask = batch.get("attention_mask")
    return int(batch["input_ids"].numel() if mask is None else mask.sum())


def n_labels(batch: Batch) -> int:
    """The positions that predict something."""
    return int((batch["labels"] != IGNORED).sum())
