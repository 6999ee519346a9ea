r"""How what a projection gives becomes a query or a key: rotary positions and QK-norm as one matrix per token.

Queries and keys as the scores see them are $q_i = s_i\, p_i T_i + b_i$: $p_i$ is what the projection gives at token i,
$T_i$ holds rotary positions, factors and the gain of a QK-norm, $s_i$ the scale of that norm (1 without one), $b_i$ its
bias. No table of families says what T is. The attention module is run again with unit vectors in the place of $p$, up
to its attention call; $s_i$ follows from the text, and the equation is checked at every token.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.core.site import Site
from headscope.errors import VariantRefused
from headscope.model.session.attention_calls import with_heads
from headscope.model.session.captures import QUANTITIES, Passage, WatchedQuantity
from headscope.model.session.module_taps import Watched, attached
from headscope.model.session.session import Session

if TYPE_CHECKING:
    from headscope.model.model import Model

Letter = Literal["q", "k"]
_LETTERS: tuple[Letter, ...] = ("q", "k")
_LONG = 1e3  # length of the unit vectors: a QK-norm adds a small number to the variance, which vanishes next to it
_AGREE = 2e-5  # rounding of a norm and a rotation in float32, relative to the largest entry
_ROUGH = 5e-2  # of the half-precision types


@dataclass(frozen=True)
class PositionMap:
    """The map from a projection to the queries or keys of one head: $q_i = s_i\\, p_i T_i + b_i$."""

    matrices: Float[Tensor, "tokens d_head d_head"]
    scale: Float[Tensor, "tokens 1"]
    shift: Float[Tensor, "tokens d_head"]

    def linear(self, projected: Float[Tensor, "*writers tokens d_head"]) -> Float[Tensor, "*writers tokens d_head"]:
        """What parts of the projection contribute, at the scale of the text."""
        return torch.einsum("...td,tde->...te", projected, self.matrices) * self.scale


def position_maps(model: "Model", tokens: Tensor, site: Site, head: int) -> dict[Letter, PositionMap]:
    """The maps of one head's queries and keys on a text, by letter; in float64.

    Raises:
        VariantRefused: Its queries or keys are no such function of what the projections give.

    Properties:
        - the projection through the map is the query, the key  (tested: test_terms_add_up_to_the_score)
    """
    label = site.head_label(head)
    probes = _Probes(model, site, head)
    with model.session() as session:
        captured = session.capture("q", "k", "q_proj", "k_proj", at=label)
        with probes.asked_within(session):
            session.run(tokens, head=False, stop_at=following_layer(model, site))
        tensors = {name: by_site[site][0, 0] for name, by_site in captured.take().items()}
    return {letter: _fitted(probes.answers[letter], tensors, letter, label) for letter in _LETTERS}


def following_layer(model: "Model", site: Site) -> str | None:
    """Where a forward may end that only this site is watched in; None where it is the last of its stack."""
    later = [other for other in model.sites_of_stack(site.stack) if other.layer > site.layer]
    return later[0].label if later and later[0].kind == "self" else None


class _Probes:
    """Asks an attention module with unit vectors in the place of what its projections give to one head."""

    def __init__(self, model: "Model", site: Site, head: int) -> None:
        self._model, self._site = model, site
        self._heads: dict[Letter, int] = {"q": head, "k": site.kv_head(head)}
        self._coordinate: int | None = None
        self._n_calls = 0
        self._answered: dict[Letter, list[Tensor]] = {"q": [], "k": []}

    @property
    def answers(self) -> dict[Letter, Float[Tensor, "vectors tokens d_head"]]:
        """Queries and keys for the zero vector, then for each unit vector."""
        return {letter: torch.stack(rows) for letter, rows in self._answered.items()}

    @contextmanager
    def asked_within(self, session: Session) -> Iterator[None]:
        """Ask when the module is about to run."""
        module = self._model.hf.get_submodule(self._site.module)

        def ask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not session.live.is_live():
                return
            is_this_call, self._n_calls = self._n_calls == self._site.call, self._n_calls + 1
            if is_this_call:
                self._ask(session, module, args, kwargs)

        handle = module.register_forward_pre_hook(ask, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _ask(self, session: Session, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with ExitStack() as stack:
            attached(self._model.hf, self._places(), self._passed, lambda: True, stack)
            for coordinate in (None, *range(self._site.d_head)):
                self._coordinate = coordinate
                inputs = session.live.inputs_of(self._site, module, args, kwargs)
                for letter in _LETTERS:
                    self._answered[letter].append(inputs[letter][0, self._heads[letter]].detach().double())

    def _places(self) -> list[Watched]:
        places = []
        for letter in _LETTERS:
            quantity = cast(WatchedQuantity, QUANTITIES[f"{letter}_proj"])
            spot = self._model.spots(quantity).by_site[self._site]
            places.append(Watched(quantity, self._site, replace(spot, call=0, calls_per_forward=1)))
        return places

    def _passed(self, watched: Watched, tensor: Tensor, incoming: Tensor | None, module: str) -> Tensor:
        """Put the unit vector in the place of the head's projection."""
        texts = tensor[None] if tensor.ndim == 2 else tensor
        passage = Passage(self._model, self._site, watched.spot, texts)
        before = watched.quantity.read(passage)
        letter: Letter = "q" if watched.quantity.name == "q_proj" else "k"
        row = torch.zeros_like(before[:, :1])
        if self._coordinate is not None:
            row[..., self._coordinate] = _LONG
        after = with_heads(before, (self._heads[letter],), row)
        return watched.quantity.write(passage, before, after).reshape(tensor.shape)


def _fitted(
    answers: Float[Tensor, "vectors tokens d_head"], tensors: dict[str, Tensor], letter: Letter, label: str
) -> PositionMap:
    """The map that the answers tell, with the scale that the text has; checked on the text."""
    shift, matrices = answers[0], ((answers[1:] - answers[0]) / _LONG).transpose(0, 1)
    dtype = tensors[letter].dtype
    projected, vectors = tensors[f"{letter}_proj"].double(), tensors[letter].double()
    unscaled = PositionMap(matrices, torch.ones(len(shift), 1, dtype=torch.float64), shift)
    mapped = unscaled.linear(projected)
    sizes = mapped.square().sum(-1, keepdim=True)
    scale = torch.where(sizes > 0, ((vectors - shift) * mapped).sum(-1, keepdim=True) / sizes, torch.ones_like(sizes))
    error = float((mapped * scale + shift - vectors).abs().max() / vectors.abs().max())
    if not error <= (_AGREE if torch.finfo(dtype).bits >= 32 else _ROUGH):
        name = "queries" if letter == "q" else "keys"
        raise VariantRefused(
            f"{label}: its {name} are not a matrix times what the projection gives at each token (they differ by "
            f"{error:.1g} of the largest entry), so its scores are no sum over writers"
        )
    return PositionMap(matrices, scale, shift)
