r"""Dependence: do the keys that get attention also depend on the query?

A fold over text that keeps a bounded sample of pairs of tokens. Per head: do the keys that rank high in a row of the
attention pattern also rank high by their dependence on the query, beyond what their distance tells, and more than they
would with another text's query in its place? And what does dependence add to the scores of a head: the shift
Tr(C Σ_ji) of their mean, and their variance, compared with the Gaussian formula. The other files of this
folder compute these numbers from the sample, one idea per file.

Held are 64 windows at most, and of each up to 56 tokens or, where it is longer, a run of 8 for each octave of distance
from its end: their vectors, and what they pay to each other. A whole pattern is never held, and the vectors of all
tokens only for the layer that is running, so that memory grows with the length of a window and not with its square.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import polars as pl
from torch import Tensor

from headscope.attention.maps import SHORT
from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.lenses.dependence.definition import defined
from headscope.lenses.dependence.figures import figures
from headscope.lenses.dependence.joint_test import joint_rows
from headscope.lenses.dependence.moments import pair_rows
from headscope.lenses.dependence.pooled import pooled_pairs
from headscope.lenses.dependence.profile import profile_rows
from headscope.lenses.dependence.ranks import head_rows
from headscope.lenses.dependence.sentences import method, sentences, unseen, warnings
from headscope.lenses.dependence.settings import Params
from headscope.lenses.dependence.tables import SCHEMAS, head_quantities
from headscope.lenses.dependence.windows import KEYS, SampleSize, SiteSample
from headscope.lenses.lens import (
    AS_IS,
    Batch,
    Measurement,
    Needs,
    NotApplicable,
    Tables,
    TextLens,
    TextSize,
)
from headscope.lenses.shared.head_threads import mapped
from headscope.lenses.shared.table import Row
from headscope.lenses.shared.token_pairs import CAPTURES, PairSample
from headscope.lenses.shared.window_sample import SAMPLE_BYTES, sample_warning
from headscope.lenses.shared.window_tests import adjusted

# Windows kept at most, and at least, and what they may take with SHORT tokens each; beyond it not every layer. Of
# longer windows a few more tokens are kept (64 of 512, 96 of 8,192), which makes them at most three times as large.
WINDOWS, FEWEST_WINDOWS = 64, 16


@dataclass(frozen=True)
class State:
    """The sample of each site."""

    params: Params
    sites: tuple[Site, ...]
    crossed: tuple[Site, ...]
    step: int
    room: int
    samples: Mapping[Site, PairSample] = field(default_factory=dict)


class Dependence(TextLens[Params, State]):
    """Do the keys that get attention also depend on the query?"""

    name = "dependence"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """The stream into each layer, its queries and keys, and the pattern among sampled tokens."""
        params.check()
        return Needs(captures=frozenset(CAPTURES), pieces=True)

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """The state before any text, with the windows and the layers that fit into memory."""
        self_sites = [site for site in sites if site.kind == "self"]
        sizes = [
            4 * SHORT * (model.d_model + (site.n_heads + site.n_kv_heads) * site.d_head + site.n_heads * SHORT)
            for site in self_sites
        ]
        step = max(1, -(-sum(sizes) * FEWEST_WINDOWS // SAMPLE_BYTES))
        sampled_sites = tuple(self_sites[::step])
        room = min(WINDOWS, max(FEWEST_WINDOWS, SAMPLE_BYTES // max(1, sum(sizes[::step]))))
        return State(params, sampled_sites, tuple(site for site in sites if site.kind != "self"), step, room)

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch, at the sites that show all captures."""
        samples = dict(state.samples)
        for site in state.sites:
            captured = batch.captures_at(site, CAPTURES)
            if captured is not None:
                samples[site] = samples.get(site, PairSample(state.room)).add(batch.tokens, batch.real, captured)
        return replace(state, samples=samples)

    def merge(self, a: State, b: State) -> State:
        """The state after both texts, a's windows first."""
        merged = {
            site: a.samples[site].merge(sample) if site in a.samples else sample for site, sample in b.samples.items()
        }
        return replace(a, samples={**a.samples, **merged})

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """All tables and figures, from the sample."""
        rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
        sizes_by_site: dict[Site, SampleSize] = {}
        excess: dict[Site, dict[str, Tensor]] = {}
        # One site at a time on each thread: in float64 all of them would take several times the sample.
        for answer in mapped(partial(_site_answer, state), [site for site in state.sites if site in state.samples]):
            if answer is None:
                continue
            sizes_by_site[answer.site], excess[answer.site] = answer.size, answer.excess
            for name, rows_of_site in answer.rows.items():
                rows[name] += rows_of_site
        if not sizes_by_site:
            reason = (
                f"no row of attention with {KEYS} visible keys, the token itself and the first "
                f"{state.params.skip} left "
                "out, was shown to the lens"
            )
            raise NotApplicable(reason)
        rows["joint"] = list(joint_rows(excess))
        tables = {name: pl.DataFrame(rows[name], schema=schema) for name, schema in SCHEMAS.items()}
        tables["heads"], tables["pairs"] = (
            adjusted(tables["heads"], ["quantity"]),
            adjusted(tables["pairs"], ["quantity"]),
        )
        first, sampled_windows = (
            next(iter(sizes_by_site)),
            max(len(sample.windows) for sample in state.samples.values()),
        )
        missing = [site for site in state.sites if site not in sizes_by_site]
        size_warning = sample_warning(sampled_windows, max(sample.seen for sample in state.samples.values()), "windows")
        return Measurement(
            tables=tables,
            figures=figures(tables, list(sizes_by_site)),
            method=method(state.samples[first], sizes_by_site[first], state.params.skip, state.step),
            quantities=head_quantities(tables),
            warnings=(
                *unseen(state.crossed, missing),
                *warnings(tables, sizes_by_site, sampled_windows, state.params.components),
                *size_warning,
            ),
        )

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The formulas as written, pair by pair, on the windows of one length."""
        return defined([batch for batch in batches if batch.variant == AS_IS], params.components, params.skip)

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """What stands out, in numbers."""
        return sentences(tables)


@dataclass(frozen=True)
class _SiteAnswer:
    """The rows of each table that a site gives, and each measure's excess over its null."""

    site: Site
    size: SampleSize
    rows: Mapping[str, list[Row]]
    excess: dict[str, Tensor]


def _site_answer(state: State, site: Site) -> _SiteAnswer | None:
    """The answer of one site; None where its sample has no rows that can be compared."""
    sampled = SiteSample.of(state.samples[site], site, state.params.skip)
    if sampled is None:
        return None
    size = SampleSize(len(sampled.positions), sampled.windows, sampled.length)
    pooled = pooled_pairs(sampled, state.params.components)
    of_heads, excess = head_rows(sampled, pooled)
    profile = [*profile_rows(sampled, pooled)] if pooled else []
    return _SiteAnswer(site, size, {"heads": of_heads, "pairs": [*pair_rows(sampled)], "profile": profile}, excess)


LENS = Dependence()
