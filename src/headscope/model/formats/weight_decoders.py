"""The formulas by which quantised weights are turned back into numbers; tensors in, float32 tensors out.

Every format stores codes c and scales s so that a weight is s · (c − z), or s · table[c]. Decoding computes just that,
in float32: what the quantiser rounded away stays lost, and nothing else is added. Matrices come back as torch's linear
layers hold them, outputs × inputs.
"""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

WORD = 32  # bits of the integers into which small codes are packed
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight neighbouring outputs is in the n-th four bits of a word


def scaled_codes(
    codes: Shaped[Tensor, "rows columns"],
    scales: Shaped[Tensor, "row_blocks column_blocks"],
    block: tuple[int, int],
    zeros: Shaped[Tensor, "row_blocks column_blocks"] | None = None,
) -> Float[Tensor, "rows columns"]:
    r"""Numbers that share a scale with the others of their block.

    Definition:
        $w_{ij} = s_{ab}\,(c_{ij} - z_{ab})$ with $a = \lfloor i / \text{rows of a block} \rfloor$ and b likewise; z is
        0 where there is none. Blocks at the edges may be smaller.
    Properties:
        - each number is its code times the scale of its block  (tested: test_blocks_at_the_edge_are_smaller)
    """
    rows = torch.arange(codes.shape[0]) // block[0]
    columns = torch.arange(codes.shape[1]) // block[1]
    values = codes.float()
    if zeros is not None:
        values = values - zeros.float()[rows][:, columns]
    return values * scales.float()[rows][:, columns]


def table_values(
    packed: Shaped[Tensor, " bytes"], table: Float[Tensor, " entries"], maxima: Float[Tensor, " blocks"], block: int
) -> Float[Tensor, " numbers"]:
    r"""Two codes of four bits in each byte, the first in the upper half, looked up in a table and scaled by blocks.

    Definition:
        $w_n = t_{c_n}\, m_{\lfloor n / \text{block} \rfloor}$
    Properties:
        - a hand-written quantiser of the same table is undone  (tested: test_four_bit_tables_by_hand)
    """
    codes = torch.stack([packed >> 4, packed & 15], dim=1).reshape(-1)
    numbers = table.float()[codes.int()]
    scales = maxima.float().repeat_interleave(block)[: len(numbers)]
    return numbers * scales


def nested_maxima(
    codes: Shaped[Tensor, " blocks"],
    table: Float[Tensor, " entries"],
    maxima: Float[Tensor, " outer_blocks"],
    block: int,
    offset: float,
) -> Float[Tensor, " blocks"]:
    r"""Scales that are quantised themselves, as bytes.

    Definition:
        $m_a = t_{c_a}\, M_{\lfloor a / \text{block} \rfloor} + \text{offset}$
    """
    outer = maxima.float().repeat_interleave(block)[: len(codes)]
    return table.float()[codes.int()] * outer + offset


def unpacked(words: Shaped[Tensor, "rows words"], bits: int) -> Int[Tensor, "rows codes"]:
    """The codes in integers of 32 bits, the lowest bits first, along the last axis."""
    shifts = torch.arange(0, WORD, bits)
    codes: Tensor = (words.long()[:, :, None] >> shifts) & (2**bits - 1)
    return codes.reshape(len(words), -1)


def gptq_weight(
    words: Shaped[Tensor, "words outputs"],
    zero_words: Shaped[Tensor, "groups zero_words"],
    scales: Float[Tensor, "groups outputs"],
    groups: Shaped[Tensor, " inputs"],
    bits: int,
    shift: int,
) -> Float[Tensor, "outputs inputs"]:
    r"""GPTQ: codes packed along the inputs, zero points along the outputs.

    Definition:
        $w_{oi} = s_{g(i)\,o}\,(c_{io} - z_{g(i)\,o} - \text{shift})$; the usual format stores z − 1: shift is 1.
    Properties:
        - a hand-written quantiser is undone, groups in any order  (tested: test_gptq_by_hand)
    """
    codes = unpacked(words.T.contiguous(), bits)
    zeros = unpacked(zero_words, bits)[:, : scales.shape[1]] + shift
    group = groups.long()
    return (scales.float()[group] * (codes.T - zeros[group]).float()).T.contiguous()


def awq_weight(
    words: Shaped[Tensor, "inputs words"],
    zero_words: Shaped[Tensor, "groups words"],
    scales: Float[Tensor, "groups outputs"],
    group: int,
) -> Float[Tensor, "outputs inputs"]:
    r"""AWQ: codes of four bits packed along the outputs, eight of them in the order of `AWQ_ORDER`.

    Definition:
        $w_{oi} = s_{g o}\,(c_{io} - z_{go})$ with $g = \lfloor i / \text{group} \rfloor$
    Properties:
        - a hand-written quantiser is undone  (tested: test_awq_by_hand)
    """
    codes, zeros = _outputs_in_order(unpacked(words, 4)), _outputs_in_order(unpacked(zero_words, 4))
    rows = torch.arange(len(codes)) // group
    return (scales.float()[rows] * (codes - zeros[rows]).float()).T.contiguous()


def _outputs_in_order(codes: Int[Tensor, "rows outputs"]) -> Int[Tensor, "rows outputs"]:
    place = torch.tensor(AWQ_ORDER).argsort()
    return codes.reshape(len(codes), -1, len(AWQ_ORDER))[:, :, place].reshape(codes.shape)
