"""Glossary of axes: the names of axes for code, docs and report.

Array types are written with jaxtyping, e.g. `Float[Tensor, "batch heads queries d_head"]`, and are enforced
when the tests run. Einsum uses the letters of `LETTERS`.

Conventions: rows act on the right (`x @ w`); `w_q, w_k, w_v: [d_model, d_head]`, `w_o: [d_head, d_model]`;
`W_QK = w_q w_kᵀ` and `W_OV = w_v w_o` are d_model × d_model and kept factored.
"""

# The size of the corner of a pattern that is drawn and compared: the first tokens of a window.
CORNER = 64

# The size of the pattern that is kept of every head, of the first window alone.
OPENING = 256

AXES: dict[str, str] = {
    "batch": "sequences processed together",
    "heads": "query heads of one attention site",
    "kv_heads": "key/value heads of one attention site; query head h reads kv head h // (heads // kv_heads)",
    "queries": "positions that attend",
    "keys": "positions attended to",
    "d_model": "width of the residual stream",
    "d_source": "width of the stream that keys and values are read from (the encoder's, in cross-attention)",
    "d_head": "width of one query or key",
    "d_value": "width of one value (equal to d_head in most families)",
    "d_mlp": "width of the feed-forward part between its matrices",
    "vocabulary": "tokens that the model can write",
    "single": "one number",
    "layers": "layers of one stack",
    "tokens": "positions of a text",
    "first_queries": f"the first queries of a window, at most {CORNER} where no other number is asked for",
    "first_keys": "the first keys of a window, as many as first queries",
    "visible_keys": "the keys that the first queries may see: as many as queries in causal attention, else all",
    "sampled_rows": "queries at equal steps, at most 16",
    "sampled_queries": "queries in runs of eight at every distance before the end of a window; all in a short window",
    "sampled_keys": "keys in the same runs",
    "run_queries": "queries in four runs of sixteen neighbours, the last of each quarter; all in a short window",
    "d_value_again": "the second axis of a square matrix of width d_value",
    "key_kinds": "the keys 1, 2, 3, 4, N − 1 and N before the query; keys after copies of its token; their controls",
}

LETTERS: dict[str, str] = {
    "l": "layers",
    "b": "batch",
    "h": "heads",
    "q": "queries",
    "k": "keys",
    "m": "d_model",
    "d": "d_head",
}
