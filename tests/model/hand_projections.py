"""How some families project, rotate and mix, written down by hand: what headscope must find by itself.

Each description says which rows of which module of a layer make queries, keys and values, what is done to them, and
which module reads the outputs. Heads are 4 of width 8, as in `families`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

HEADS, WIDTH = 4, 8
SEPARATE = torch.arange(HEADS * WIDTH).reshape(HEADS, WIDTH)


@dataclass(frozen=True)
class Hand:
    """One family: modules of a layer by letter, rows by letter, factors, added biases, and rotation."""

    layer: str
    modules: dict[str, str]
    rows: dict[str, Tensor] = field(default_factory=lambda: dict.fromkeys("qkv", SEPARATE))
    gain: dict[str, float] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)
    rotate: Callable[[Tensor], Tensor] | None = None

    @property
    def is_rotary(self) -> bool:
        """Whether queries and keys are rotated."""
        return self.rotate is not None

    def module(self, hf: Any, layer: int, letter: str) -> Any:
        return hf.get_submodule(f"{self.layer.format(layer)}.{self.modules[letter]}")

    def matrix(self, hf: Any, layer: int, letter: str) -> Tensor:
        """[in, out], rows acting on the right."""
        module = self.module(hf, layer, letter)
        weight = module.weight.detach()
        return weight.T if isinstance(module, torch.nn.Linear) else weight

    def weight(self, hf: Any, layer: int, letter: str) -> Tensor:
        """The matrices of the heads, as `HeadWeights` has them."""
        matrix = self.matrix(hf, layer, letter)
        if letter == "o":
            return matrix[SEPARATE]
        return matrix[:, self.rows[letter]].movedim(1, 0)

    def bias(self, hf: Any, layer: int, letter: str) -> Tensor:
        bias = self.module(hf, layer, letter).bias
        rows = self.rows[letter]
        own = torch.zeros(rows.shape) if bias is None else bias.detach()[rows]
        if letter not in self.extra:
            return own
        return own + hf.get_submodule(self.layer.format(layer)).get_parameter(self.extra[letter]).detach().reshape(
            rows.shape
        )

    def _extra(self, hf: Any, layer: int, letter: str) -> Tensor:
        parameter: Tensor = hf.get_submodule(self.layer.format(layer)).get_parameter(self.extra[letter])
        return parameter.detach()

    def states(self, hf: Any, layer: int, letter: str, output: Tensor) -> Tensor:
        """Queries, keys or values by heads, from what their module gave."""
        states = output[..., self.rows[letter]].movedim(2, 1)
        if letter in self.extra:
            states = states + self._extra(hf, layer, letter).reshape(HEADS, 1, WIDTH)
        states = states * self.gain.get(letter, 1.0)
        return states if letter == "v" or self.rotate is None else self.rotate(states)


def interleaved(width: int) -> Callable[[Tensor], Tensor]:
    """Rotary positions on neighbouring channels, the first `width` of them."""

    def rotate(states: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(states.shape[2]).float(), 10000 ** (-torch.arange(0, width, 2) / width))
        even, odd = states[..., 0:width:2], states[..., 1:width:2]
        turned = torch.stack(
            (even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()), dim=-1
        )
        return torch.cat((turned.flatten(-2), states[..., width:]), dim=-1)

    return rotate


def by_halves(states: Tensor) -> Tensor:
    """Rotary positions on the two halves of a head."""
    half = states.shape[-1] // 2
    angles = torch.outer(torch.arange(states.shape[2]).float(), 10000 ** (-torch.arange(half) / half))
    first, second = states[..., :half], states[..., half:]
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), dim=-1
    )


def fused(name: str, start: Callable[[int, int], int], heads: tuple[int, int, int] = (4, 4, 4)) -> dict[str, Any]:
    """One module for q, k and v: `start` gives the first row of part 0, 1 or 2 of a head."""
    parts = zip("qkv", range(3), heads, strict=True)
    rows = {
        letter: torch.tensor([[start(part, head) + j for j in range(WIDTH)] for head in range(count)])
        for letter, part, count in parts
    }
    return {"modules": {**dict.fromkeys("qkv", name)}, "rows": rows}


def hand(layer: str, o: str, *, q: str = "", k: str = "", v: str = "", **more: Any) -> Hand:
    modules = {"q": q, "k": k, "v": v} if q else more.pop("modules")
    return Hand(layer, {**modules, "o": o}, **more)


SCALE = WIDTH**-0.5
THREE_TERMS = (3 * WIDTH) ** -0.5  # DeBERTa scales by the number of its terms

BY_HAND = {
    "gptj": hand("transformer.h.{}.attn", "out_proj", q="q_proj", k="k_proj", v="v_proj", rotate=interleaved(4)),
    "gpt_neo": hand("transformer.h.{}.attn.attention", "out_proj", q="q_proj", k="k_proj", v="v_proj"),
    "codegen": hand(
        "transformer.h.{}.attn",
        "out_proj",
        **fused("qkv_proj", lambda part, head: 24 * head + (0, 16, 8)[part]),
        rotate=interleaved(4),
    ),
    "bloom": hand(
        "transformer.h.{}.self_attention", "dense", **fused("query_key_value", lambda part, head: 24 * head + 8 * part)
    ),
    "mpt": hand("transformer.blocks.{}.attn", "out_proj", **fused("Wqkv", lambda part, head: 32 * part + 8 * head)),
    "falcon": hand(
        "transformer.h.{}.self_attention",
        "dense",
        **fused("query_key_value", lambda part, head: (8 * head, 32, 40)[part], (4, 1, 1)),
        rotate=by_halves,
    ),
    "falcon_grouped": hand(
        "transformer.h.{}.self_attention",
        "dense",
        **fused(
            "query_key_value",
            lambda part, head: (32 * (head // 2) + 8 * (head % 2), 32 * head + 16, 32 * head + 24)[part],
            (4, 2, 2),
        ),
        rotate=by_halves,
    ),
    "mpnet": hand("mpnet.encoder.layer.{}.attention.attn", "o", q="q", k="k", v="v"),
    "xglm": hand("model.layers.{}.self_attn", "out_proj", q="q_proj", k="k_proj", v="v_proj", gain={"q": SCALE}),
    "flaubert": hand("transformer.attentions.{}", "out_lin", q="q_lin", k="k_lin", v="v_lin", gain={"q": SCALE}),
    "openai": hand("transformer.h.{}.attn", "c_proj", **fused("c_attn", lambda part, head: 32 * part + 8 * head)),
    "deberta": hand(
        "deberta.encoder.layer.{}.attention",
        "output.dense",
        **fused("self.in_proj", lambda part, head: 24 * head + 8 * part),
        gain={"q": THREE_TERMS},
        extra={"q": "self.q_bias", "v": "self.v_bias"},
    ),
    "deberta_v2": hand(
        "deberta.encoder.layer.{}.attention",
        "output.dense",
        q="self.query_proj",
        k="self.key_proj",
        v="self.value_proj",
        gain={"k": THREE_TERMS},
    ),
}
