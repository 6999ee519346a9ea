"""Interventions: change the attention weights and measure how the model changes.

`changes` says what is done to a matrix and what its control is, `material` what the model is run on, `effects` what is
measured, `writing` what the text that it writes is like; `tables` and `figures` are what is shown, `sentences` what is
said.
"""
