"""The trainer of every study, for any network, objective and data.

Names are fetched when they are used, so that settings can be checked without torch.
"""

from typing import TYPE_CHECKING

from headscope.lazy_names import lazy_names

if TYPE_CHECKING:
    from headscope.training.batches.batch_source import BatchSource, Place
    from headscope.training.batches.sequences import SequenceBatches
    from headscope.training.batches.text_windows import TextWindows
    from headscope.training.objectives.masked_tokens import MaskedTokens
    from headscope.training.objectives.next_token import NextToken
    from headscope.training.objectives.objective import Batch, Loss, Objective
    from headscope.training.objectives.sequence_to_sequence import SequenceToSequence
    from headscope.training.recipe import Budget, Optimisation, Rate, Recipe, Saving, Target, Validation
    from headscope.training.task import Task
    from headscope.training.trainer import Outcome, train

__all__ = [
    "Batch",
    "BatchSource",
    "Budget",
    "Loss",
    "MaskedTokens",
    "NextToken",
    "Objective",
    "Optimisation",
    "Outcome",
    "Place",
    "Rate",
    "Recipe",
    "Saving",
    "SequenceBatches",
    "SequenceToSequence",
    "Target",
    "Task",
    "TextWindows",
    "Validation",
    "train",
]

__getattr__ = lazy_names(
    __name__,
    {
        "batches.batch_source": "BatchSource Place",
        "batches.sequences": "SequenceBatches",
        "batches.text_windows": "TextWindows",
        "objectives.masked_tokens": "MaskedTokens",
        "objectives.next_token": "NextToken",
        "objectives.objective": "Batch Loss Objective",
        "objectives.sequence_to_sequence": "SequenceToSequence",
        "recipe": "Budget Optimisation Rate Recipe Saving Target Validation",
        "task": "Task",
        "trainer": "Outcome train",
    },
)
