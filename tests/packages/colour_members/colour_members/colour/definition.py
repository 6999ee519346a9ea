"""The lens `colour` by its formula, on the stored maps, in float64."""

import polars as pl


def definition(params, batches):
    """The mean of the diagonal, head by head."""
    rows = []
    for site in batches[0].captures["pattern"] if batches else ():
        maps = [batch.captures["pattern"][site].double() for batch in batches]
        for head in range(site.n_heads):
            own = [float(window[head, i, i]) for batch in maps for window in batch for i in range(window.shape[-1])]
            where = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "head": head}
            rows.append({**where, "value": params.shade * sum(own) / len(own)})
    return {"heads": pl.DataFrame(rows)}
