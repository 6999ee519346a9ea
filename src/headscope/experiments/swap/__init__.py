"""Swap: let heads of a model attend through cheaper mechanisms, and measure what it costs and what it saves.

`rules` reads replacements by hand, `candidates` names the mechanisms that a search tries, `head_damage` predicts what
each costs on a head, `ladder` orders them, `search` measures plans on the whole model until the budget is met.
`quality`, `speed` and `leak` judge a plan on text that the search never saw.
"""
