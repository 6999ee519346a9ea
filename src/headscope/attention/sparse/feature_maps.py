r"""Feature maps of linear attention.

$\varphi(q) \cdot \varphi(k)$ replaces $e^{q \cdot k}$.

| name | $\varphi(q) \cdot \varphi(k)$ |
|---|---|
| `elu` | $\varphi(x) = \mathrm{elu}(x) + 1$ (Katharopoulos et al., Transformers are RNNs) |
| `relu` | $\varphi(x) = \max(x, 0)$ |
| `taylor` | $1 + \hat q \cdot \hat k$, first order on unit vectors (Li et al., Linear Attention Mechanism) |
| `identity` | $q \cdot k$ |
| `random` | $\sum_r e^{\sqrt s\, w_r \cdot q}\, e^{\sqrt s\, w_r \cdot k - s |k|^2 / 2}$, $s$ the scale, $w_r$
Gaussian: |
| | up to a factor of the query it is $e^{s\, q \cdot k}$ in the mean (Choromanski et al., Rethinking Attention) |

The factor of a query cancels where weights are normalised, which the random features therefore ask for.
"""

from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

FEATURES = ("elu", "relu", "taylor", "identity", "random")

Features = Float[Tensor, "batch heads n features"]


def features(name: str, x: Float[Tensor, "batch heads n d_head"]) -> Features:
    """The feature map of that name, for queries and keys alike; not `random`."""
    if name == "elu":
        # The same as elu(x) + 1, in half the time.
        return torch.clamp(x, min=0).add_(torch.clamp(x, max=0).exp_())
    if name == "relu":
        return F.relu(x)
    if name == "taylor":
        return F.pad(F.normalize(x, dim=-1), (0, 1), value=1.0)
    return x


def random_features(
    q: Float[Tensor, "batch heads queries d_head"],
    k: Float[Tensor, "batch kv_heads keys d_head"],
    directions: Float[Tensor, "features d_head"],
    scale: float,
) -> tuple[Features, Float[Tensor, "batch kv_heads keys features"]]:
    r"""Random features of queries and keys, in float64 and without overflow.

    With $c_r = |w_r|^2 / 2$ moved from keys to queries, a key's exponent is $-|\sqrt s\, k - w_r|^2 / 2 \le 0$. It does
    not depend on other keys, so that a causal sum stays causal. A query's largest exponent is subtracted.
    """
    w = directions.to(q.device)
    half = w.square().sum(dim=-1) / 2
    query_exponents = scale**0.5 * (q.double() @ w.T) + half
    query_exponents = query_exponents - query_exponents.detach().amax(dim=-1, keepdim=True)
    scaled_keys = k.double() * scale**0.5
    distance = half + scaled_keys.square().sum(dim=-1, keepdim=True) / 2 - scaled_keys @ w.T
    return torch.exp(query_exponents), torch.exp(-distance)


@cache
def random_directions(count: int, width: int, seed: int) -> Float[Tensor, "count width"]:
    """Gaussian directions, orthogonal within each run of `width`.

    This lowers the variance.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for start in range(0, count, width):
        basis, _ = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
        lengths = torch.randn(width, width, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
        rows.append((basis.T * lengths)[: count - start])
    return torch.cat(rows)
