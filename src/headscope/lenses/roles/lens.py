r"""Roles: which heads look at the previous token, at copies, and after copies?

A fold over windows of random tokens that repeat, windows in which nothing repeats, and text. Per head and role: the
mean mass on the keys that the role names, its null, and the same in the initialised model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan

import polars as pl
from torch import Tensor

from headscope.core import Headline, ModelSpec, Site, WeightSource
from headscope.lenses.lens import AS_IS, Batch, Measurement, Needs, NotApplicable, Tables, TextLens, TextSize
from headscope.lenses.roles.definition import definition
from headscope.lenses.roles.figures import figures
from headscope.lenses.roles.sentences import sentences
from headscope.lenses.roles.settings import Params
from headscope.lenses.roles.tables import (
    FEW_REPEATED,
    FRESH,
    REPEAT_ROLES,
    REPEATED,
    ROLES,
    ROLES_SCHEMA,
    SCHEMA,
    TEXT,
    head_quantities,
)
from headscope.lenses.roles.token_windows import INITIALISED, made_windows
from headscope.lenses.roles.window_sums import Sums, joined_sums, made_sums, text_sums
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number, with_values
from headscope.maths.resampling.clustered_mean import clustered_mean

# Text that the initialised model reads at least: its first batch.
_INITIALISED_TOKENS = 1

# The variant of the model, and the windows that it read.
Reading = tuple[str, str]
# The windows, and the role that was looked for in them.
Key = tuple[str, str]


@dataclass(frozen=True)
class State:
    """The sums of the windows so far, by site and reading."""

    params: Params
    sites: tuple[Site, ...]
    sums: Mapping[Site, Mapping[Reading, tuple[Sums, ...]]] = field(default_factory=dict)
    refusal: str = ""


class Roles(TextLens[Params, State]):
    """Which heads look at the previous token, at copies, and after copies?"""

    name = "roles"
    params = Params
    invariant = frozenset({"qk", "vo", "heads"})

    def needs(self, params: Params) -> Needs:
        """Weights on the keys that roles name, on text and made windows, also of the initialised model."""
        params.check()
        return Needs(
            captures=frozenset({_capture_name(params)}),
            variants=(AS_IS, INITIALISED),
            tokens=_INITIALISED_TOKENS,
            pieces=True,
            made=made_windows(params),
            reads_text=params.with_text,
        )

    def start(self, params: Params, model: ModelSpec, sites: tuple[Site, ...], text: TextSize) -> State:
        """No window yet."""
        params.check_vocabulary(model.name, model.vocabulary)
        return State(params, sites)

    def update(self, state: State, batch: Batch) -> State:
        """Add the windows of one batch."""
        if batch.refused:
            return replace(state, refusal=batch.refused)
        reading = (batch.variant, REPEATED if batch.made == FEW_REPEATED else batch.made or TEXT)
        sums = dict(state.sums)
        for site, masses in batch.captures.get(_capture_name(state.params), {}).items():
            if site.kind == "self":
                part = made_sums(masses, state.params.tokens) if batch.made else text_sums(batch, masses)
                before = sums.get(site, {})
                sums[site] = {**before, reading: (*before.get(reading, ()), part)}
        return replace(state, sums=sums)

    def merge(self, a: State, b: State) -> State:
        """The windows of both, a's first."""
        sums = dict(a.sums)
        for site, by_reading in b.sums.items():
            before = sums.get(site, {})
            sums[site] = {**before, **{key: (*before.get(key, ()), *parts) for key, parts in by_reading.items()}}
        return replace(a, sums=sums, refusal=a.refusal or b.refusal)

    def finish(self, state: State, weights: WeightSource | None) -> Measurement:
        """The roles of all heads."""
        sites = [site for site in state.sites if site in state.sums]
        scores = {site: _site_scores(_readings(state, site)) for site in sites}
        if not any((REPEATED, "induction") in by_role for by_role in scores.values()):
            raise NotApplicable(
                f"no self-attention read two copies of {state.params.tokens} tokens: the context may be too short"
            )
        nulls = _largest_nulls(scores)
        rows = [row for site, by_role in scores.items() for row in _rows(site, by_role, nulls, state.params.margin)]
        heads = pl.DataFrame(rows, schema=SCHEMA)
        tables = {"heads": heads, "roles": pl.DataFrame(list(_head_rows(rows)), schema=ROLES_SCHEMA)}
        return Measurement(
            tables,
            figures(heads, sites),
            method=_method(state),
            warnings=(f"the initialised model was not run: {state.refusal}",) if state.refusal else (),
            quantities=with_values(head_quantities(heads), tables),
        )

    def sentences(self, tables: Tables) -> tuple[Headline, ...]:
        """Induction, the previous token, and how many heads have a role."""
        return sentences(tables)

    def definition(
        self, params: Params, weights: WeightSource | None, batches: Sequence[Batch]
    ) -> dict[str, pl.DataFrame]:
        """The tables by their formulas."""
        return definition(params, weights, batches)


def _capture_name(params: Params) -> str:
    return f"repeats:{params.tokens}"


@dataclass(frozen=True)
class _Scores:
    """The numbers of one role at one site, by head."""

    windows: Sums
    index: int
    null: Tensor
    initialised: Tensor | None

    @property
    def value(self) -> Tensor:
        return self.windows.value()[self.index]

    def ends(self, head: int) -> tuple[float, float]:
        """The ends of the 95 % interval over windows; a mean of masses lies between 0 and 1."""
        interval = clustered_mean(self.windows.masses[:, self.index, head], self.windows.queries[:, self.index])
        if not isfinite(interval.low):
            return nan, nan
        return max(interval.low, 0.0), min(interval.high, 1.0)


def _readings(state: State, site: Site) -> dict[Reading, Sums]:
    return {reading: joined_sums(parts) for reading, parts in state.sums[site].items()}


def _site_scores(readings: Mapping[Reading, Sums]) -> dict[Key, _Scores]:
    """The scores of a site by source and role; roles that no query could play are left out."""
    scores: dict[Key, _Scores] = {}
    fresh = readings.get((AS_IS, FRESH))
    for source, names in ROLES.items():
        sums, initial = readings.get((AS_IS, source)), readings.get((INITIALISED, source))
        if sums is None:
            continue
        for index, role in enumerate(names):
            if sums.queries[:, index].sum() == 0:
                continue
            null = fresh.value()[index] if role in REPEAT_ROLES and fresh is not None else sums.null()[index]
            scores[source, role] = _Scores(sums, index, null, None if initial is None else initial.value()[index])
    return scores


@dataclass(frozen=True)
class _Nulls:
    """The largest masses by chance of all heads, for one role."""

    measured: float
    initialised: float | None

    def threshold(self, margin: float) -> float:
        """What the lower end of an interval must exceed."""
        return max(self.measured, self.initialised or 0.0) + margin


def _largest_nulls(scores: Mapping[Site, Mapping[Key, _Scores]]) -> dict[Key, _Nulls]:
    """The largest nulls of all heads, by source and role."""
    nulls: dict[Key, _Nulls] = {}
    for key in dict.fromkeys(key for by_role in scores.values() for key in by_role):
        by_site = [by_role[key] for by_role in scores.values() if key in by_role]
        measured = [null for score in by_site for null in score.null.tolist()]
        initial = [mass for score in by_site if score.initialised is not None for mass in score.initialised.tolist()]
        nulls[key] = _Nulls(max(filter(isfinite, measured), default=0.0), max(filter(isfinite, initial), default=None))
    return nulls


def _rows(site: Site, scores: Mapping[Key, _Scores], nulls: Mapping[Key, _Nulls], margin: float) -> Iterator[Row]:
    for head in range(site.n_heads):
        for (source, role), score in scores.items():
            low, high = score.ends(head)
            threshold = nulls[source, role].threshold(margin)
            queries = score.windows.queries[:, score.index]
            yield {
                **place(site, head),
                "source": source,
                "role": role,
                "value": number(score.value[head]),
                "low": number(low),
                "high": number(high),
                "null": number(score.null[head]),
                "initialised": nulls[source, role].initialised,
                "threshold": threshold,
                "has_role": low > threshold,
                "queries": int(queries.sum()),
                "windows": int((queries > 0).sum()),
            }


def _head_rows(rows: Sequence[Row]) -> Iterator[Row]:
    """One row per head: the role that exceeds its threshold by the most, and its further roles.

    The first token comes last: heads rest there when they have nothing else to do.
    """
    columns = ("stack", "kind", "layer", "head")
    by_head: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        by_head.setdefault(tuple(row[name] for name in columns), []).append(row)
    for key, head_rows in by_head.items():
        role_rows = sorted((row for row in head_rows if row["has_role"]), key=_rank, reverse=True)
        main: Row = role_rows[0] if role_rows else {}
        further = dict.fromkeys(str(row["role"]) for row in role_rows if row["role"] != main["role"])
        yield {
            **dict(zip(columns, key, strict=True)),
            **{name: main.get(name) for name in ("role", "source", "value", "low", "high", "threshold")},
            "further_roles": ", ".join(further) or None,
            "windows": main.get("windows", head_rows[0]["windows"]),
        }


def _rank(row: Row) -> tuple[bool, float]:
    low, threshold = row["low"], row["threshold"]
    excess = low - threshold if isinstance(low, float) and isinstance(threshold, float) else -1.0
    return row["role"] != "first token", excess


def _method(state: State) -> str:
    params = state.params
    ids = params.id_range()
    tokens = "all ordinary tokens" if ids is None else f"the ordinary tokens with ids {ids[0]} to {ids[1]}"
    cross = " Cross-attention is left out: its keys are not those of the text that the queries read."
    repeated, fresh, _ = made_windows(params)
    return (
        f"Random tokens are drawn from {tokens}; other tokens move the scores. {repeated.count} windows hold "
        f"{params.tokens} tokens twice, {fresh.count} hold as many of which none repeats on purpose. A role needs a "
        f"lower end of its 95 % interval over windows that exceeds the largest null of all heads by {params.margin:g}. "
        "The weights come from rows of the softmax that are summed at once; no map is stored."
        + (cross if any(site.kind == "cross" for site in state.sites) else "")
    )


LENS = Roles()
