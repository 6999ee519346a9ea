r"""Structure: which small structure carries each head, and what does it miss?

A fold over windows that keeps sums: of a few runs of rows of every pattern, what each structure misses in the map and
in what the head writes; and the masses that decide which of Conti's families a head belongs to, with those of permuted
keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.lenses.lens import Batch, Measurement, Needs, NotApplicable, Tables, TextLens, TextSize
from headscope.lenses.shared.table import Row, with_values
from headscope.lenses.structure.definition import definition
from headscope.lenses.structure.errors import errors_of
from headscope.lenses.structure.example import Example, example_of
from headscope.lenses.structure.families import first_chance, masses_of
from headscope.lenses.structure.figures import figures
from headscope.lenses.structure.packing import Window, packed, unpacked
from headscope.lenses.structure.reading import CAPTURES, output_factors, reading_of
from headscope.lenses.structure.sentences import sentences
from headscope.lenses.structure.settings import Params
from headscope.lenses.structure.summary import COMPARED, family_rows, smallest_rows, structure_rows
from headscope.lenses.structure.tables import SCHEMAS, head_curves, head_quantities


@dataclass(frozen=True)
class State:
    """The sums of the first windows of each site, and an example of the first one.

    `passed_by` counts the windows that found no room.
    """

    params: Params
    sites: tuple[Site, ...]
    windows: Mapping[Site, Float[Tensor, "windows columns heads"]] = field(default_factory=dict)
    examples: Mapping[Site, Example] = field(default_factory=dict)
    passed_by: Mapping[Site, int] = field(default_factory=dict)


class StructureLens(TextLens[Params, State]):
    """Which small structure carries each head, and what does it miss?"""

    name = "structure"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """Some rows of every pattern, the values, and the lengths of what values become."""
        params.check()
        return Needs(captures=frozenset(CAPTURES), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """Nothing seen yet."""
        return State(params, sites)

    def update(self, state: State, batch: Batch) -> State:
        """Measure the windows of this batch, as long as there is room."""
        windows, examples, passed_by = dict(state.windows), dict(state.examples), dict(state.passed_by)
        for site in batch.captures.get("query_runs", {}):
            if site.kind != "self" or batch.captures_at(site, CAPTURES) is None:
                continue
            factors = output_factors(batch.captures["output_gram"][site][0])
            for index in range(len(batch.real)):
                earlier = windows.get(site)
                count = 0 if earlier is None else len(earlier)
                if count >= state.params.windows:
                    passed_by[site] = passed_by.get(site, 0) + 1
                    continue
                reading = reading_of(site, batch, index, factors)
                if reading is None:
                    continue
                measured, permuted = masses_of(reading, state.params.reach)
                errors = errors_of(reading, with_others=count < COMPARED)
                sums = packed(Window(errors, measured, permuted, first_chance(reading)))[None]
                windows[site] = sums if earlier is None else torch.cat((earlier, sums))
                if earlier is None:
                    examples[site] = example_of(reading)
        return replace(state, windows=windows, examples=examples, passed_by=passed_by)

    def merge(self, a: State, b: State) -> State:
        """The first windows of both, a's first."""
        windows, passed_by = dict(a.windows), dict(a.passed_by)
        for site in dict.fromkeys((*b.windows, *b.passed_by)):
            parts = [state.windows[site] for state in (a, b) if site in state.windows]
            later = b.passed_by.get(site, 0)
            if parts:
                joined = torch.cat(parts)
                windows[site] = joined[: a.params.windows]
                later += len(joined) - len(windows[site])
            passed_by[site] = passed_by.get(site, 0) + later
        return replace(a, windows=windows, examples={**b.examples, **a.examples}, passed_by=passed_by)

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """Errors with their intervals, the smallest structures, and the families."""
        windows = {
            site: [unpacked(sums) for sums in state.windows[site]] for site in state.sites if site in state.windows
        }
        measured_sites = list(windows)
        if not measured_sites:
            raise NotApplicable("no row of self-attention with at least two visible keys was shown to the lens")
        rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
        for site in measured_sites:
            table = list(structure_rows(site, windows[site]))
            rows["structures"] += table
            rows["smallest"] += smallest_rows(site, windows[site], table)
            rows["families"] += family_rows(site, windows[site])
        tables = {name: pl.DataFrame(rows[name], schema=SCHEMAS[name]) for name in SCHEMAS}
        return Measurement(
            tables=tables,
            figures=figures(tables, state.examples),
            method=_method(state, windows),
            quantities=with_values(head_quantities(tables), tables),
            curves=head_curves(tables["structures"]),
            warnings=_warnings(state, measured_sites),
        )

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """How few pairs carry a head, what a band misses, and which families there are."""
        return sentences(tables)

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, on the stored maps."""
        return definition(params, weights, batches)


def _method(state: State, windows: Mapping[Site, Sequence[Window]]) -> str:
    counts = {len(windows_of_site) for windows_of_site in windows.values()}
    rows = sorted({window.errors.rows for windows_of_site in windows.values() for window in windows_of_site})
    passed_by = max(state.passed_by.values(), default=0)
    passed_note = f"; {passed_by} more were not measured, the option windows says how many may be" if passed_by else ""
    read = f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
    return (
        f"Exact, on {read} rows of each of {max(counts)} windows{passed_note}. A window is cut into at most four parts "
        "of equal length, a power of two of at least 16 tokens; the last 16 queries of each part are read with all of "
        "their keys. Entries, columns and offsets are chosen for each window by looking at the rows that are read. Low "
        f"rank and linear kernel as structures: the first {COMPARED} windows. The rank that a structure is compared "
        "with has two numbers per row and is the best one for the rows read alone, which favours it. Products are "
        "taken in the precision of the pattern, sums in float64."
    )


def _warnings(state: State, measured_sites: Sequence[Site]) -> tuple[str, ...]:
    """Which self-attention was not measured; cross-attention never is."""
    unseen = [site.label for site in state.sites if site.kind == "self" and site not in measured_sites]
    crossing = [site.label for site in state.sites if site.kind == "cross"]
    texts = []
    if unseen:
        texts.append(
            f"Not measured: {', '.join(unseen)}. Rows with two visible keys, values and W_O must be known there."
        )
    if crossing:
        texts.append("Cross-attention is left out: its queries and keys count different texts.")
    return tuple(texts)


LENS = StructureLens()
