"""Why a head attends where it does: its scores by writer, and the model without the strongest writers."""

import hashlib

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.core import Finding, Selection, Site, TextSpec
from headscope.corpora import Text
from headscope.errors import UsageError, VariantRefused
from headscope.experiments.experiment import Display, Experiment, short_table
from headscope.experiments.why.causal_checks import PatchedRun, Sums, pair_contrasts, patched_run, side_sums
from headscope.experiments.why.figures import figures
from headscope.experiments.why.logit_effect import logit_effect
from headscope.experiments.why.repeated_tokens import repeated_tokens, strongest_induction
from headscope.experiments.why.score_terms import POSITIONS, ScoreTerms, Side, score_terms
from headscope.experiments.why.sentences import headlines
from headscope.experiments.why.sequence_checks import sequence_checks
from headscope.experiments.why.settings import COMMAND, Params
from headscope.experiments.why.tables import MOST_PAIRED, Explanation, tables
from headscope.experiments.why.target_pairs import TargetPairs, target_pairs
from headscope.experiments.why.trigram_checks import TrigramChecks, trigram_checks
from headscope.model.model import Model
from headscope.progress import Stage, Step

FINDING, READING, REMOVING, CHECKING = (
    "finding the head",
    "taking the scores apart",
    "removing paths",
    "checking other text",
)
_CHARACTERS = 12  # of a text, for each token that is read
_ROWS = 12  # that a terminal shows


class Why(Experiment[Params]):
    """Which earlier parts wrote what a head reads, and what it does without them.

    Properties:
        - the terms add up to the scores  (tested: test_terms_add_up_to_the_score)
        - the model is as it was  (tested: test_the_model_is_unchanged)
    """

    name = "why"
    command = COMMAND.path
    params = Params

    def stages(self, model: Model, params: Params) -> list[Stage]:
        """The head, its scores, and the runs without a path."""
        return [Stage(FINDING), Stage(READING), Stage(REMOVING), Stage(CHECKING)]

    def run(self, model: Model, params: Params, progress: Step) -> tuple[Finding, TextSpec]:
        """Take the scores of one head apart and remove its strongest writers."""
        self.check(params)
        progress(FINDING, 0, 1)
        site, head, origin = _head(model, params)
        tokens, spec = _tokens(model, params)
        progress(READING, 0, 1)
        explanation = explained(model, tokens, site, head, params, progress, needs_repeat=params.head is None)
        finding = Finding(
            self.name,
            self.about,
            tables=tables(explanation),
            figures=figures(explanation),
            headlines=headlines(explanation),
            method=_method(explanation, origin, params),
            warnings=(model.spec.weight_warning,) if model.spec.weight_warning else (),
            params=_stated_params(explanation, params),
        )
        return finding, spec

    def show(self, finding: Finding) -> Display:
        """The strongest writers of the keys."""
        names = ("writer", "contrast", "null_low", "null_high", "share", "without", "alone", "patched")
        return Display(short_table(finding.tables["keys"].head(_ROWS), dict(zip(names, names, strict=True))))


EXPERIMENT = Why()


def explained(
    model: Model,
    tokens: Int[Tensor, " tokens"],
    site: Site,
    head: int,
    params: Params,
    progress: Step,
    *,
    needs_repeat: bool = False,
) -> Explanation:
    """Everything that is measured about one head on one text."""
    try:
        stream = model.written(tokens[None], site.stack)
    except VariantRefused as error:
        hint = "choose a model that norms before its parts; `headscope head MODEL HEAD` draws a head of this one"
        raise VariantRefused(error.message, hint=hint) from error
    terms = score_terms(model, tokens, site, head, stream)
    pairs = target_pairs(terms, tokens, params, needs_repeat=needs_repeat)
    generator = torch.Generator().manual_seed(params.seed)
    keys, queries = (side_sums(terms, pairs, side, params.draws, generator) for side in ("key", "query"))
    effect = logit_effect(model, tokens, terms, pairs, stream)
    runs = _runs(model, tokens, terms, pairs, (keys, queries), params.strongest, progress)
    progress(CHECKING, 0, 1)
    trigrams = trigram_checks(model, site, head, params)
    return Explanation(
        terms=terms,
        pairs=pairs,
        tokens=tokens,
        pieces=_pieces(model, tokens),
        keys=keys,
        queries=queries,
        paired=_paired(terms, pairs, keys, queries),
        runs=runs,
        effect=effect,
        sequence_checks=sequence_checks(model, terms, pairs, runs, params),
        trigrams=trigrams,
        trigram_pieces=_trigram_pieces(model, trigrams),
    )


def _runs(
    model: Model,
    tokens: Int[Tensor, " tokens"],
    terms: ScoreTerms,
    pairs: TargetPairs,
    sides: tuple[Sums, ...],
    count: int,
    progress: Step,
) -> tuple[PatchedRun, ...]:
    paths: list[tuple[Side, str]] = [
        (sums.side, sums.names[index]) for sums in sides for index in sums.strongest(count)
    ]
    runs = []
    for done, (side, writer) in enumerate(paths):
        progress(REMOVING, done, len(paths))
        runs.append(patched_run(model, tokens, terms, pairs, side, writer))
    progress(REMOVING, len(paths), len(paths))
    return tuple(run for run in runs if run is not None)


def _paired(terms: ScoreTerms, pairs: TargetPairs, keys: Sums, queries: Sums) -> tuple[list[int], list[int], Tensor]:
    """The strongest writers of both sides by size of their contrast, and the contrast of each pair."""
    writers_by_side = []
    for sums in (queries, keys):
        order = sums.contrast.abs().argsort(descending=True, stable=True).tolist()
        writers_by_side.append([index for index in order if sums.names[index] != POSITIONS][:MOST_PAIRED])
    return writers_by_side[0], writers_by_side[1], pair_contrasts(terms, pairs, *writers_by_side)


def _head(model: Model, params: Params) -> tuple[Site, int, str]:
    """The head that was named, or the strongest induction head; and a sentence about how it was chosen."""
    if params.head is not None:
        site, heads = Selection.of(params.head).one_site(model.sites)
        if len(heads) != 1:
            raise UsageError(f"{params.head} names {len(heads)} heads, expected one", hint="write L1.H3")
        if site.kind == "cross":
            raise UsageError(
                f"{params.head} is cross-attention: its keys read another stream than its queries",
                hint="name a head of self-attention",
            )
        return site, heads[0], ""
    induction = strongest_induction(model, params.random_tokens, params.seed)
    sentence = (
        f"{induction.site.head_label(induction.head)} was chosen: of all heads it attends most to the token after the "
        f"first occurrence of random tokens that come twice (mass {induction.mass:.2f}; no head gives more than "
        f"{induction.null:.2f} to the same distance where nothing comes twice). "
    )
    return induction.site, induction.head, sentence


def _tokens(model: Model, params: Params) -> tuple[Int[Tensor, " tokens"], TextSpec]:
    if params.text is None:
        tokens = repeated_tokens(model, params.random_tokens, params.seed)[0]
        sha256 = hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
        return tokens, TextSpec("random tokens that come twice", sha256, 0, len(tokens), 1, len(tokens))
    text: Text = params.text
    if not model.reads_text:
        raise UsageError(f"{model.spec.name} reads no text", hint="leave out --text: random tokens are read then")
    limit = min(params.tokens, model.spec.context or params.tokens)
    tokens = model.encode(text.beginning(_CHARACTERS * limit))[:limit]
    if len(tokens) < 3:
        raise UsageError(f"the text has {len(tokens)} tokens, needed are at least 3", hint="give a longer text")
    return tokens, TextSpec(text.name, text.sha256, text.n_characters, len(tokens), 1, len(tokens))


def _trigram_pieces(model: Model, trigrams: TrigramChecks | None) -> tuple[tuple[str, str, str], ...]:
    if trigrams is None or model.tokenizer is None:
        return ()
    spelled = model.tokenizer.decode
    pairs = [check.pair for check in trigrams.checks]
    return tuple((spelled([pair.source]), spelled([pair.query]), spelled([pair.target])) for pair in pairs)


def _pieces(model: Model, tokens: Int[Tensor, " tokens"]) -> tuple[str, ...]:
    if model.tokenizer is None:
        return tuple(map(str, tokens.tolist()))
    return tuple(model.tokenizer.decode([token]) for token in tokens.tolist())


def _stated_params(explanation: Explanation, params: Params) -> dict[str, str | int | float | bool | None]:
    return {
        "head": explanation.terms.label,
        "pairs": explanation.pairs.kind,
        "query": params.query,
        "key": params.key,
        "tokens": len(explanation.tokens),
        "strongest": params.strongest,
        "draws": params.draws,
        "sequences": len(explanation.sequence_checks[0].masses) if explanation.sequence_checks else 0,
        "seed": params.seed,
    }


def _method(explanation: Explanation, origin: str, params: Params) -> str:
    pairs, terms = explanation.pairs, explanation.terms
    score_error, pattern_error = terms.errors()
    pair_words = {
        "named": "The pair was named.",
        "repeat": f"Pairs: {len(pairs.queries)} queries whose token came before, each with the key after its last "
        "occurrence.",
        "attended": f"Pairs: {len(pairs.queries)} queries, each with the key that gets the most mass, the first left "
        "out. Keys chosen by their mass have large scores: compare with the null.",
    }[pairs.kind]
    sink = (
        f" The first key is a sink (mean mass {pairs.sink_mass:.2f}) and none of the other keys."
        if pairs.leaves_out_first
        else ""
    )
    return (
        f"{origin}{pair_words}{sink} Exact: {len(terms.writers)} writers add up to the model's scores (largest "
        f"difference {score_error:.1g} of the largest score), and the pattern rebuilt from them is the model's "
        f"(largest difference {pattern_error:.1g}). Null: {params.draws} draws of a random earlier key for each query. "
        "Paths are removed from the model by a zero in the place of what the writer gives, with the norm computed anew."
        f"{_sequences_words(explanation)}"
    )


def _sequences_words(explanation: Explanation) -> str:
    if not explanation.sequence_checks:
        return " The queries are of one text and not independent, so their means have no interval."
    count = len(explanation.sequence_checks[0].masses)
    return (
        f" Intervals: Student's t over {count} further sequences of random tokens, on which the paths were not chosen."
    )
