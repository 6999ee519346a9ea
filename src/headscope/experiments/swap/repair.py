r"""Trains the projections of swapped heads to give what the heads gave before.

Each layer is trained alone, on the split `fit`.

Definition:
    Let z be what the swapped heads of a layer give in the original on some text, and z̃ what their mechanisms give on
    the same inputs of the layer. The error of the layer is
    $$\text{error} = \| \tilde z \tilde W_O - z W_O \|_F^2 \,/\, \| z W_O \|_F^2 .$$
    Trained are the swapped heads' rows of W_Q, the rows of W_K and W_V of key/value heads all of whose query heads are
    swapped, and the swapped heads' columns of W_O (rows and columns of [out, in]). No other weight moves.
How:
    W_Q, W_K and W_V by Adam, one step for each window. W_O by least squares, exactly:
    $\tilde W_O = (\tilde z^T \tilde z + \lambda)^{-1} (\tilde z^T z + \lambda) W_O$, a ridge that pulls to the W_O of
    the model. Every fourth window is held out. On these each layer chooses λ, whether to take W_Q, W_K and W_V too, and
    whether to be repaired at all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.attention.mechanism import Mechanism
from headscope.attention.mechanism_spelling import spelled
from headscope.core import Site
from headscope.corpora import Text
from headscope.errors import UsageError
from headscope.experiments.swap.layer_inputs import LayerInput, SwappedSite, layer_inputs, swapped_states
from headscope.experiments.text_sample import Tokens, spread, windows_of
from headscope.model.model import Model
from headscope.model.plans.plan import Plan
from headscope.model.plans.repaired_weights import RepairedWeights, Slice
from headscope.model.tracing.projections import Rows
from headscope.progress import Step

TRAINING = "repairing, training window"
SOLVING = "repairing, solving window"
HELD_OUT = 4  # every so many windows one is held out
RATE = 0.01  # first step of Adam over the root mean square of the weights; it falls to 0
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # λ over the mean square of z̃
Square = Float[Tensor, "channels channels"]


@dataclass(frozen=True)
class LayerRepair:
    """The error of a layer on held-out windows, before and after its repair."""

    site: Site
    n_heads: int
    error: float
    repaired_error: float
    trained: str  # "", "o" or letters with it


@dataclass(frozen=True)
class Repair:
    """New weights for a plan, and what they do to each layer."""

    weights: RepairedWeights
    layers: tuple[LayerRepair, ...]
    tokens: int


@dataclass(frozen=True)
class Sums:
    """Sums over tokens of products of the states of swapped and original heads."""

    swapped: Square
    mixed: Square
    original: Square

    @classmethod
    def of(cls, swapped: Tensor, original: Tensor) -> "Sums":
        """The sums of one window."""
        a, b = (states.detach().cpu().double() for states in (swapped, original))
        return cls(a.T @ a, a.T @ b, b.T @ b)

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.swapped + other.swapped, self.mixed + other.mixed, self.original + other.original)

    def error(self, w_new: Tensor, w: Tensor) -> float:
        """The error of the layer with a new W_O, relative to what it wrote.

        Properties:
            - it is that of the definition  (tested: test_errors_are_those_of_the_definition)
        """
        written = (w * (self.original @ w)).sum()
        missing = (w_new * (self.swapped @ w_new)).sum() - 2 * (w_new * (self.mixed @ w)).sum() + written
        return float((missing / written).clamp(min=0.0))

    def solve(self, w: Tensor, ridge: float) -> Tensor:
        """The W_O of least error, pulled to the one of the model.

        Properties:
            - no other one has a smaller penalised error  (tested: test_the_ridge_solution_is_the_least)
        """
        weight = ridge * self.swapped.diagonal().mean() * torch.eye(len(self.swapped), dtype=torch.float64)
        solution: Tensor = torch.linalg.solve(self.swapped + weight, self.mixed @ w + weight @ w)
        return solution


def repair_windows(model: Model, text: Text, length: int, n_tokens: int) -> tuple[Tokens, ...]:
    """Windows evenly spread over a text, with `n_tokens` in all: two at least.

    Raises:
        UsageError: The text is too short.
    """
    length = min(length, model.spec.context or length, n_tokens // 2)
    cut = windows_of(model, text, length)
    if len(cut.full) < 2:
        raise UsageError(
            f"{text.name} has {cut.n_tokens} tokens, and a repair needs two windows of {length}",
            hint="give a longer text (--text moby-dick), or shorter windows (--tokens)",
        )
    return spread(cut, n_tokens // length)


def repair_plan(model: Model, plan: Plan, windows: Sequence[Tokens], step: Step) -> Repair:
    """Repair a plan on some windows; the model is left as it was.

    Properties:
        - only rows and columns of swapped heads change  (tested: test_only_weights_of_swapped_heads_change)
        - what W_O alone can mend is mended  (tested: test_a_planted_damage_is_repaired)

    Raises:
        UsageError: There is nothing to repair, or the weights of a swapped head cannot be trained.
    """
    attempts = _attempts(model, plan)
    sites = [attempt.swapped for attempt in attempts]
    fitted = [window for index, window in enumerate(windows) if not _is_held_out(index, len(windows))]
    for index, window in enumerate(fitted):
        step(TRAINING, index, len(fitted))
        inputs = layer_inputs(model, sites, window)
        for attempt in attempts:
            attempt.train(inputs[attempt.site], RATE * (1 - index / len(fitted)))
    step(TRAINING, len(fitted), len(fitted))
    for index, window in enumerate(windows):
        step(SOLVING, index, len(windows))
        inputs = layer_inputs(model, sites, window)
        for attempt in attempts:
            attempt.add(inputs[attempt.site], held_out=_is_held_out(index, len(windows)))
    step(SOLVING, len(windows), len(windows))
    solved = [attempt.solve() for attempt in attempts]
    slices = {name: part for _, parts in solved for name, part in parts.items()}
    return Repair(RepairedWeights.of(slices), tuple(layer for layer, _ in solved), sum(map(len, windows)))


def _is_held_out(index: int, count: int) -> bool:
    """Whether a window is held out: every fourth, and the last of fewer."""
    return index % HELD_OUT == HELD_OUT - 1 or (count < HELD_OUT and index == count - 1)


class Attempt:
    """The repair of one layer: rows in training, and sums that W_O is solved from."""

    def __init__(self, model: Model, swapped: SwappedSite) -> None:
        self.swapped, self.site, self._model = swapped, swapped.site, model
        self._output = _output_rows(model, swapped.site)
        self._w_o = _matrix(model, self._output, swapped.heads)
        rows = _input_rows(model, swapped)
        self._letters = "".join(rows)
        self._parts = {
            name: Slice(part.axis, part.index, part.values.clone().requires_grad_())
            for name, part in _slices(model, rows.values()).items()
        }
        self._sizes = [float(part.values.detach().square().mean().sqrt()) for part in self._parts.values()]
        groups = [{"params": [part.values]} for part in self._parts.values()]
        self._adam = torch.optim.Adam(groups) if groups else None
        self._sums: dict[tuple[bool, bool], Sums] = {}  # by whether W_Q, W_K, W_V are trained, and by held out

    def train(self, inputs: LayerInput, rate: float) -> None:
        """Take one step on a window.

        `rate` is its size over the root mean square of the weights.
        """
        if self._adam is None:
            return
        w_o = self._w_o.to(inputs.z.device, inputs.z.dtype)
        with torch.enable_grad():
            states = swapped_states(self._model, self.swapped, inputs, self._weights())
            written = (inputs.z @ w_o).square().sum()
            error = ((states - inputs.z) @ w_o).square().sum() / written.clamp(min=torch.finfo(written.dtype).tiny)
            gradients = torch.autograd.grad(error, [part.values for part in self._parts.values()])
        for group, size, gradient in zip(self._adam.param_groups, self._sizes, gradients, strict=True):
            group["lr"] = rate * size
            group["params"][0].grad = gradient
        self._adam.step()

    def add(self, inputs: LayerInput, *, held_out: bool) -> None:
        """Add a window to the sums, with the weights before and after training."""
        for is_trained in (False, True) if self._parts else (False,):
            with torch.no_grad():
                weights = self._weights() if is_trained else None
                sums = Sums.of(swapped_states(self._model, self.swapped, inputs, weights), inputs.z)
            before = self._sums.get((is_trained, held_out))
            self._sums[is_trained, held_out] = sums if before is None else before + sums

    def solve(self) -> tuple[LayerRepair, dict[str, Slice]]:
        """The repair with the least error on held-out windows, solved on all."""
        w = self._w_o.double()
        error = self._sums[False, True].error(w, w)
        outcomes = [(error, False, 0.0)]
        for is_trained in (False, True) if self._parts else (False,):
            fitted, held_out = self._sums[is_trained, False], self._sums[is_trained, True]
            outcomes += [(held_out.error(fitted.solve(w, ridge), w), is_trained, ridge) for ridge in RIDGES]
        least, is_trained, ridge = min(outcomes)
        if ridge == 0.0:
            return LayerRepair(self.site, len(self.swapped.heads), error, error, ""), {}
        solution = (self._sums[is_trained, False] + self._sums[is_trained, True]).solve(w, ridge)
        letters = f"{self._letters if is_trained else ''}o"
        layer = LayerRepair(self.site, len(self.swapped.heads), error, least, letters)
        return layer, self._output_slice(solution) | (self._trained_slices() if is_trained else {})

    def _weights(self) -> dict[str, Tensor]:
        """The parameters with the trained rows in place."""
        return {
            name: self._model.hf.get_parameter(name).detach().index_copy(part.axis, part.index, part.values)
            for name, part in self._parts.items()
        }

    def _trained_slices(self) -> dict[str, Slice]:
        return {name: Slice(part.axis, part.index, part.values.detach()) for name, part in self._parts.items()}

    def _output_slice(self, w_o: Tensor) -> dict[str, Slice]:
        name = f"{self._output.module}.weight"
        index = self._output.row[list(self.swapped.heads)].flatten()
        is_linear = isinstance(self._model.hf.get_submodule(self._output.module), nn.Linear)
        return {name: Slice(1, index, w_o.T) if is_linear else Slice(0, index, w_o)}


def _attempts(model: Model, plan: Plan) -> list[Attempt]:
    """A repair for each site with swapped heads."""
    mechanisms: dict[Site, dict[int, Mechanism]] = {}
    for spelling, heads_by_site in plan.heads(model.sites).items():
        mechanism = spelled(spelling)
        for site, heads in heads_by_site.items():
            mechanisms.setdefault(site, {}).update(dict.fromkeys(heads, mechanism))
    if not mechanisms:
        raise UsageError("there is nothing to repair: the plan replaces no head")
    return [Attempt(model, SwappedSite(site, by_head)) for site, by_head in mechanisms.items()]


def _output_rows(model: Model, site: Site) -> Rows:
    """The columns of W_O that read the heads of a site.

    Raises:
        UsageError: They are not known, shared with another layer, or no plain numbers.
    """
    plan = model.plan(site)
    if plan.output is None or not model.dispatches:
        raise UsageError(f"{site.label} cannot be repaired: {plan.status.reason or 'its weights were not found'}")
    if sum(other.module == site.module for other in model.sites) > 1:
        raise UsageError(f"{site.label} cannot be repaired: it shares its weights with another layer")
    weight: Any = model.hf.get_submodule(plan.output.module).weight
    if not isinstance(weight, nn.Parameter) or not weight.is_floating_point():
        raise UsageError(f"{site.label} cannot be repaired: its weights are quantised")
    return plan.output


def _input_rows(model: Model, swapped: SwappedSite) -> dict[str, tuple[Rows, tuple[int, ...]]]:
    """The rows of W_Q, W_K and W_V of swapped heads alone, by letter."""
    site, projections = swapped.site, model.plan(swapped.site).projections
    if projections is None:
        return {}
    other_heads = set(range(site.n_heads)) - set(swapped.heads)
    used_by_others = {site.kv_head(head) for head in other_heads}
    kv_heads = tuple(sorted({site.kv_head(head) for head in swapped.heads} - used_by_others))
    rows = {"q": (projections.q, swapped.heads), "k": (projections.k, kv_heads), "v": (projections.v, kv_heads)}
    inside = f"{site.module}."
    return {letter: part for letter, part in rows.items() if part[1] and part[0].module.startswith(inside)}


def _slices(model: Model, rows: Iterable[tuple[Rows, tuple[int, ...]]]) -> dict[str, Slice]:
    """Rows of projections, joined where one module holds several of them."""
    index_by_module: dict[str, list[Tensor]] = {}
    for part, heads in rows:
        index_by_module.setdefault(part.module, []).append(part.row[list(heads)].flatten())
    slices = {}
    for module, indices in index_by_module.items():
        linear: Any = model.hf.get_submodule(module)
        axis, index = 0 if isinstance(linear, nn.Linear) else 1, torch.cat(indices).to(linear.weight.device)
        slices[f"{module}.weight"] = Slice(axis, index, linear.weight.detach().index_select(axis, index))
    return slices


def _matrix(model: Model, rows: Rows, heads: tuple[int, ...]) -> Float[Tensor, "channels d_model"]:
    """The W_O of some heads; their channels act on the right."""
    linear: Any = model.hf.get_submodule(rows.module)
    weight = linear.weight.detach().cpu()
    matrix: Tensor = weight.T if isinstance(linear, nn.Linear) else weight
    return matrix[rows.row[list(heads)].flatten()]
