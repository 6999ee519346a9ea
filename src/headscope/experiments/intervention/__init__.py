"""Interventions: change the attention weights and measure what becomes of the model.

`changes` says what is done to a matrix and what its control is, `material` what the model is run on, `effects` what is
measured, `writing` what the text that it writes is like, `table` and `figures` what is shown, `sentences` what is said.
"""

from headscope.experiments.intervention.changes import Change, place_of
from headscope.experiments.intervention.run import Setting, intervene

__all__ = ["Change", "Setting", "intervene", "place_of"]
