r"""The largest of many estimates, such that rounding does not decide.

Estimates are made in float64 and compared as float32. Two ways of adding the same numbers differ by about 1e-16, which
changes a float32 value for one in 10⁹; so they rank alike, and what is equal stays equal. Of equal values the earlier
wins.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

NONE = -1


def largest(values: Float[Tensor, "*rows n"], count: int, *, above: float = -torch.inf) -> Int[Tensor, "*rows places"]:
    """The places of the `count` largest values above a limit, in order of size.

    Where there are fewer, `NONE` fills the rest.

    Properties:
        - that of a sort by value and place  (tested: test_largest_is_a_stable_sort)
        - noise far below a float32 rounding changes nothing  (tested: test_rounding_does_not_decide)
    """
    compared = values.float() + 0.0  # plus 0 makes -0 and 0 one number
    bits = compared.contiguous().view(torch.int32).long()
    size = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)  # whole numbers in the order of the floats
    count_of_values = values.shape[-1]
    # One whole number for value and place, so that no two are equal and any selection gives the same.
    keys = (size << 32) - torch.arange(count_of_values, device=values.device)
    places = keys.topk(min(count, count_of_values), dim=-1).indices
    places = places.masked_fill(~(compared.gather(-1, places) > above), NONE)
    return torch.nn.functional.pad(places, (0, count - places.shape[-1]), value=NONE)
