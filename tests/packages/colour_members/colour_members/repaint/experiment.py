"""W_Q of every head is multiplied, and the last hidden states are compared with the original's."""

import torch
from torch import Tensor

from colour_members.repaint.figures import figures
from colour_members.repaint.sentences import sentences
from colour_members.repaint.settings import COMMAND, Params
from colour_members.repaint.tables import changes_table
from headscope.core import Finding, TextSpec
from headscope.corpora import shipped_text
from headscope.experiments.experiment import Experiment
from headscope.model.model import Model
from headscope.progress import Step


class Repaint(Experiment[Params]):
    """How far does the model move when all of its heads attend more sharply or more evenly?"""

    name = "repaint"
    command = COMMAND.path
    params = Params

    def run(self, model: Model, params: Params, progress: Step) -> tuple[Finding, TextSpec]:
        """The original, then every strength."""
        text = shipped_text()
        tokens = model.encode("\n\n".join(text.documents))[None, : params.tokens]
        original = _last_states(model, tokens)
        changes: dict[float, float] = {}
        for done, strength in enumerate(params.factors()):
            progress("repainting", done, len(params.strengths))
            with model.edit() as edit:  # undone to the last bit when the block ends
                edit.scale_spectrum("q", strength)
                changes[strength] = float((_last_states(model, tokens) - original).norm() / original.norm())
        table = changes_table(changes)
        finding = Finding(
            self.name,
            self.about,
            tables={"changes": table},
            figures=figures(table),
            headlines=sentences(table),
            method="exact",
            params={"strengths": ", ".join(params.strengths), "tokens": params.tokens, "seed": params.seed},
        )
        count = tokens.shape[1]
        return finding, TextSpec(text.name, text.sha256, text.n_characters, count, 1, count)


def _last_states(model: Model, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        states: Tensor = model.hf.base_model(input_ids=tokens).last_hidden_state
    return states


EXPERIMENT = Repaint()
