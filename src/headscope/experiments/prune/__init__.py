"""Prune: switch heads off one by one and together, and measure what the model loses.

`ablation` switches off each head alone, `gradients` predicts the same without switching anything off, `importance`
holds both for every window. `curve` switches heads off in the order of their importance and in random orders.
"""
