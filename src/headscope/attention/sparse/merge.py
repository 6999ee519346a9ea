r"""Attention over disjoint sets of keys, merged by log-sum-exp."""

from collections.abc import Sequence

import torch

from headscope.attention.call import Output
from headscope.errors import UsageError


def merge(outputs: Sequence[Output]) -> Output:
    r"""Attention over the union of disjoint key sets, from the attention over each.

    Definition:
        $\text{lse} = \ln \sum_p e^{\text{lse}_p}$, $\text{out} = \sum_p e^{\text{lse}_p - \text{lse}}\, \text{out}_p$
    Properties:
        - exact for any split of the keys, with gradients  (tested: test_merge_of_any_split_is_the_whole)
        - a part in which a row sees nothing (lse = −∞) does not count; if none sees anything, out = 0 and
          lse = −∞  (tested: test_merge_with_rows_that_see_nothing)
    """
    if not outputs:
        raise UsageError("there is nothing to merge: expected at least one output, got none")
    parts = [part.lse for part in outputs if part.lse is not None]
    if len(parts) != len(outputs):
        raise UsageError("outputs merge by their log-sum-exp, and one has none", hint="call mechanism(call, lse=True)")
    stacked = torch.stack(parts)
    # The gradient of logsumexp is NaN where every part is −∞, so those rows are computed as if all were 0.
    nothing = (stacked == -torch.inf).all(dim=0)
    finite = stacked.masked_fill(nothing, 0.0)
    lse = torch.logsumexp(finite, dim=0)
    # A part that saw nothing has out = 0, so its weight may be anything.
    weights = torch.exp(finite - lse)
    mixed = sum(weight[..., None].to(part.out.dtype) * part.out for weight, part in zip(weights, outputs, strict=True))
    return Output(torch.as_tensor(mixed), lse.masked_fill(nothing, -torch.inf))
