"""Every head attends through `tint`, and the last hidden states are compared with the original's."""

import torch

from colour_members.repaint.figures import figures
from colour_members.repaint.sentences import sentences
from colour_members.repaint.settings import COMMAND, Params
from colour_members.repaint.tables import changes_table
from colour_members.tint import Tint
from headscope.core import Finding, TextSpec
from headscope.corpora import shipped_text
from headscope.errors import UsageError
from headscope.experiments.experiment import Experiment


class Repaint(Experiment):
    """How far does the model move when all of its heads attend more sharply or more evenly?"""

    name = "repaint"
    command = COMMAND.path
    params = Params

    def check(self, params):
        """Refuse factors that are no numbers above 0."""
        for strength in params.strengths:
            try:
                Tint(float(strength))
            except ValueError:
                raise UsageError(f"cannot read the strength {strength!r}", hint="write 2 or 0.5") from None

    def run(self, model, params, progress):
        """The original, then every strength."""
        text = shipped_text()
        tokens = model.encode("\n\n".join(text.documents))[None, : params.tokens]
        original = self._last_states(model, tokens)
        changes = {}
        for done, strength in enumerate(map(float, params.strengths)):
            progress("repainting", done, len(params.strengths))
            states = self._last_states(model, tokens, Tint(strength))
            changes[strength] = float((states - original).norm() / original.norm())
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

    @staticmethod
    def _last_states(model, tokens, mechanism=None):
        with model.session() as session, torch.no_grad():
            if mechanism is not None:
                session.replace(None, mechanism)
            return model.hf.base_model(input_ids=tokens).last_hidden_state


EXPERIMENT = Repaint()
