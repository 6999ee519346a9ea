"""Edits of a model's weights and skips, undone exactly when the `with` block ends.

    with model.edit() as e:
        e.scale_spectrum("qk", 2.0)
        e.truncate("L0-3", "ov", rank=8)
        e.ablate("L5.H2")
        e.skip(0.5)
        e.without("mlp")

Letters name the matrices: q, k, v, o. Each is the stack of the selected heads' projections taken as one matrix
W [d_model, heads · d_head] (for o its transpose's shape), so that a whole layer's selection edits the layer's
W_Q as the documents mean it, and one head's selection that head's. k and v belong to the heads that share them.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headscope.core.selection import Selection
from headscope.core.site import Site
from headscope.errors import UsageError, VariantRefused, WeightsRefused
from headscope.model.tracing.projections import Plan, Rows
from headscope.model.tracing.skip_connections import PARTS, Part, rewired
from headscope.model.transformers.library_messages import quiet

if TYPE_CHECKING:
    from headscope.model.model import Model

Where = Selection | str | Site | None
Spectrum = Float[Tensor, " rank"]
Matrix = Float[Tensor, "rows columns"]
Letters = Literal["q", "k", "v", "o"]
_LETTERS: tuple[Letters, ...] = ("q", "k", "v", "o")


@dataclass(frozen=True)
class HeadMatrix:
    """The matrix that a rule receives: its site, its letter and its heads.

    For k and v these are key/value heads.
    """

    site: Site
    letter: Letters
    heads: tuple[int, ...]
    rows: Rows


Rule = Callable[[HeadMatrix, Matrix], Matrix]


class Edit:
    """Changes to a model; open one with `model.edit()`.

    Every change is undone, bit by bit, when its `with` block ends.
    """

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._hf: Any = model.hf
        self._before: dict[str, Tensor] = {}
        self._strength, self._removed = 1.0, frozenset[Part]()
        self._wiring = ExitStack()
        self._open = False

    def __enter__(self) -> "Edit":
        if self._model.edited:
            raise UsageError("this model is already being edited", hint="one `with model.edit()` takes all changes")
        self._open = self._model.edited = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wiring.close()
        self._strength, self._removed = 1.0, frozenset()
        with torch.no_grad():
            for name, before in self._before.items():
                self._hf.get_parameter(name).copy_(before)
        self._before.clear()
        self._open = self._model.edited = False

    def map_matrix(self, at: Where, matrices: str, rule: Rule) -> None:
        """Replace each named matrix w by `rule(named, w)`.

        w is float64 and rows act on the right: inputs × outputs.
        """
        self._change_rows(at, matrices, lambda named, before: rule(named, before.double()))

    def initial_matrices(self, seed: int = 0) -> Callable[[HeadMatrix], Matrix]:
        """The same matrices of the same architecture, freshly initialised."""
        fresh = self._fresh_model(seed)
        return lambda named: _read(fresh, named.rows, named.letter)

    def map_spectrum(self, at: Where, matrices: str, rule: Callable[[Spectrum], Spectrum]) -> None:
        """Replace the singular values of each named matrix by `rule(σ)`.

        σ is descending and float64.
        """
        self._change(at, matrices, lambda w: _with_spectrum(w, rule))

    def scale_spectrum(self, matrices: str, factor: float, at: Where = None) -> None:
        """Multiply every singular value of each named matrix by `factor`."""
        self._change(at, matrices, lambda w: w * factor)

    def truncate(self, at: Where, matrices: str, rank: int) -> None:
        """Replace each named matrix by the nearest one of rank `rank`."""
        if rank < 0:
            raise UsageError(f"a rank is at least 0, got {rank}")
        self.map_spectrum(at, matrices, lambda s: torch.where(torch.arange(len(s)) < rank, s, 0.0))

    def randomise(
        self, at: Where = None, matrices: str = "qkvo", *, keep: Literal["", "UD"] = "", seed: int = 0
    ) -> None:
        """Replace the named matrices by random ones.

        keep="": from the model's own initialisation. keep="UD": in W = U D Vᵀ, written [out, in] as the documents do, a
        Haar-random V replaces the one of the input side; spectrum and output side stay.
        """
        generator = torch.Generator().manual_seed(seed)
        if keep == "UD":
            self._change(at, matrices, lambda w: _with_random_input_side(w, generator))
            return
        fresh = self.initial_matrices(seed)
        self._change_rows(at, matrices, lambda named, _: fresh(named))

    def put(self, parameter: str, axis: int, index: Tensor, values: Tensor) -> None:
        """Set rows (`axis` 0) or columns (`axis` 1) of a parameter, by its name.

        Raises:
            UsageError: There is no such parameter, or it has another shape.
        """
        self._check_open()
        weight: Tensor | None = dict(self._hf.named_parameters()).get(parameter)
        shape = None if weight is None else (*weight.shape[:axis], len(index), *weight.shape[axis + 1 :])
        if weight is None or shape != tuple(values.shape) or int(index.max()) >= weight.shape[axis]:
            size = "none" if weight is None else tuple(weight.shape)
            raise UsageError(
                f"{parameter} cannot hold {len(index)} parts of {tuple(values.shape)}: the model has {size}"
            )
        self._remember(parameter, weight)
        with torch.no_grad():
            weight.index_copy_(axis, index.to(weight.device), values.to(weight.device, weight.dtype))

    def initialise(self, seed: int = 0) -> None:
        """Give the whole model, not only its attention, a fresh initialisation."""
        fresh = dict(self._fresh_model(seed).named_parameters())
        self._check_open()
        with torch.no_grad():
            for name, parameter in self._hf.named_parameters():
                self._remember(name, parameter)
                parameter.copy_(fresh[name])
                # Three copies of all weights would set the peak of a report.
                fresh[name].data = fresh[name].new_empty(0)

    def ablate(self, at: Where) -> None:
        """Zero what the selected heads write: their rows of w_o."""
        self._change(at, "o", torch.zeros_like)

    def skip(self, strength: float) -> None:
        """Let every skip connection carry s·x instead of x.

        1 leaves it unchanged, 0 removes it. What the branches add stays.

        Raises:
            VariantRefused: The skip connections of this family were not found; nothing is changed.
        """
        if not 0 <= strength < float("inf"):
            raise UsageError(f"the strength of a skip connection must be a finite number from 0 on, got {strength}")
        self._rewire(strength, self._removed)

    def without(self, *parts: str) -> None:
        """Remove the branches "attention" or "mlp" from every layer: they add nothing.

        A skip connection around that branch alone then carries x in full, whatever its strength. So `skip(0)` and
        `without("mlp")` together leave a stack of attention alone.

        Raises:
            VariantRefused: The skip connections of this family were not found; nothing is changed.
        """
        named = frozenset(part for part in PARTS if part in parts)
        if not parts or set(parts) - named:
            unknown = ", ".join(str(part) for part in parts if part not in named)
            raise UsageError(f"cannot remove {unknown or 'nothing'}", hint=f"one of {', '.join(PARTS)}")
        self._rewire(self._strength, self._removed | named)

    def _rewire(self, strength: float, removed: frozenset[Part]) -> None:
        self._check_open()
        branches = self._model.branches()
        for part in removed:
            if part in branches.unknown:
                raise VariantRefused(branches.unknown[part])
        self._wiring.close()
        self._strength, self._removed = strength, removed
        self._wiring.enter_context(rewired(self._hf, branches, strength, removed))

    def _fresh_model(self, seed: int) -> Any:
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return type(self._hf)._from_config(self._hf.config, dtype=self._hf.dtype)

    def _change(self, at: Where, matrices: str, rule: Callable[[Matrix], Matrix]) -> None:
        self.map_matrix(at, matrices, lambda _, before: rule(before))

    def _change_rows(self, at: Where, matrices: str, rule: Rule) -> None:
        self._check_open()
        matrix_letters = _letters(matrices)
        heads_by_site = Selection.of(at).resolve(self._model.sites)
        self._refuse_partly_shared(heads_by_site)
        done: set[tuple[str, tuple[int, ...]]] = set()
        for site, heads in heads_by_site.items():
            plan = self._model.plan(site)
            for letter in matrix_letters:
                named = _selected_matrix(plan, site, heads, letter)
                key = (named.rows.module + letter, tuple(named.rows.row.flatten().tolist()))
                if key not in done:  # a module shared by several layers is edited once
                    done.add(key)
                    self._write(named, rule)

    def _write(self, named: HeadMatrix, rule: Rule) -> None:
        rows, letter = named.rows, named.letter
        linear: Any = self._hf.get_submodule(rows.module)
        self._remember(f"{rows.module}.weight", linear.weight)
        after = rule(named, _read(self._hf, rows, letter))
        if not bool(torch.isfinite(after).all()):
            raise UsageError(f"the edit of {letter} in {rows.module} gives values that are not finite")
        index, place = rows.row.flatten(), {"device": linear.weight.device, "dtype": linear.weight.dtype}
        # Written as [out, in], rows are outputs (q, k, v); o is read by columns. Conv1D stores [in, out].
        by_rows = (letter != "o") == isinstance(linear, nn.Linear)
        with torch.no_grad():
            if by_rows:
                linear.weight[index] = (after if letter == "o" else after.T).to(**place)
            else:
                linear.weight[:, index] = (after.T if letter == "o" else after).to(**place)

    def _remember(self, name: str, parameter: Tensor) -> None:
        if name not in self._before:
            self._before[name] = parameter.detach().clone()

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError("this edit is not open", hint="use it inside `with model.edit() as e:`")

    def _refuse_partly_shared(self, heads_by_site: dict[Site, tuple[int, ...]]) -> None:
        """Refuse to edit only some of the layers that share their weights."""
        for site, heads in heads_by_site.items():
            for other in self._model.sites:
                if other.module == site.module and heads_by_site.get(other) != heads:
                    raise UsageError(
                        f"{site.label} and {other.label} share their weights: an edit of one changes both",
                        hint="select the same heads in every layer that shares them",
                    )


def _letters(text: str) -> list[Letters]:
    if not text or set(text) - set("qkvo"):
        raise UsageError(f"cannot edit {text!r}", hint="name matrices by the letters q, k, v, o, e.g. 'qk'")
    return [letter for letter in _LETTERS if letter in text]


def _selected_matrix(plan: Plan, site: Site, heads: tuple[int, ...], letter: Letters) -> HeadMatrix:
    if plan.projections is None:
        raise WeightsRefused(f"{site.label} cannot be edited: {plan.status.reason}")
    rows: Rows = getattr(plan.projections, letter)
    index = list(dict.fromkeys(site.kv_head(h) for h in heads)) if letter in "kv" else list(heads)
    return HeadMatrix(site, letter, tuple(index), Rows(rows.module, rows.row[index], rows.gain[index]))


def _read(model: nn.Module, rows: Rows, letter: str) -> Matrix:
    """The selected heads' matrix.

    [d_model, heads · width] for q, k, v and [heads · width, d_model] for o.
    """
    linear: Any = model.get_submodule(rows.module)
    weight = linear.weight.detach().cpu()  # rules compute in float64, which not every device has
    matrix: Tensor = weight.T if isinstance(linear, nn.Linear) else weight
    index = rows.row.flatten()
    return matrix[index] if letter == "o" else matrix[:, index]


def _with_spectrum(w: Matrix, rule: Callable[[Spectrum], Spectrum]) -> Matrix:
    u, s, vh = torch.linalg.svd(w.double(), full_matrices=False)
    after = rule(s)
    if not isinstance(after, Tensor) or after.shape != s.shape:
        got = tuple(after.shape) if isinstance(after, Tensor) else type(after).__name__
        raise UsageError(f"a spectrum rule must return {tuple(s.shape)} singular values, got {got}")
    w_new: Tensor = (u * after.double()) @ vh
    return w_new


def _with_random_input_side(w: Matrix, generator: torch.Generator) -> Matrix:
    """Replace the input side of w by a Haar-random one.

    x acts from the left (x @ w), so the input side is the left singular vectors.
    """
    _, s, vh = torch.linalg.svd(w.double(), full_matrices=False)
    gaussian = torch.randn(w.shape[0], len(s), generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    haar = q * r.diagonal().sign()  # without the signs QR is not Haar-distributed
    w_new: Tensor = (haar * s) @ vh
    return w_new
