r"""Interventions: change the attention weights and measure predictions, maps and text.

Each change (see `changes`) is applied on its own and undone exactly; the same material is run through the original,
every change and every control. So all differences are paired: the ratio of perplexities is $e^{\bar d}$, d the
difference of nats on the same token, with an interval over windows.
"""

from collections.abc import Sequence
from functools import partial

import polars as pl
import torch

from headscope.core import Finding, TextSpec
from headscope.corpora import text_of
from headscope.experiments.experiment import Display, Experiment, Passage, short_table
from headscope.experiments.intervene.change_spelling import DIAGONAL, Change, Place, place_of
from headscope.experiments.intervene.changes import Touched, changed, check_matrices, controlled
from headscope.experiments.intervene.effects import Effects, Observer, mean_effects
from headscope.experiments.intervene.figures import figures
from headscope.experiments.intervene.material import Material, gather
from headscope.experiments.intervene.sentences import headlines
from headscope.experiments.intervene.settings import COMMAND, Params
from headscope.experiments.intervene.tables import (
    Variant,
    effects_table,
    head_quantities,
    heads_table,
    matrices_table,
    texts_table,
)
from headscope.experiments.intervene.writing import judged, needed_tokens, surprises
from headscope.model.language import has_chat_template, predicts_next_token
from headscope.model.model import Model
from headscope.progress import Stage, Step

# What a terminal shows of the table of effects, under short names; --format csv or json has everything.
SHORT_NAMES = {
    "change": "change",
    "which": "which",
    "perplexity": "perplexity",
    "ratio": "ratio",
    "ratio_low": "low",
    "ratio_high": "high",
    "kl": "kl",
    "numbers": "numbers",
    "flops": "flops",
    "cosine": "cosine",
    "cosine_low": "low ",
    "cosine_high": "high ",
    "found": "found",
    "moved": "moved",
    "entropy_share": "entropy",
    "self": "self",
    "first": "first",
}


class Intervene(Experiment[Params]):
    """Every change beside the original and its control.

    Properties:
        - scaling W_Q by α is scaling the scores by α  (tested: test_scaling_w_q_scales_the_scores)
        - rank of all singular values changes nothing  (tested: test_full_rank_is_no_change)
        - the model is as it was  (tested: test_everything_is_undone)
    """

    name = "intervene"
    command = COMMAND.path
    params = Params

    def stages(self, model: Model, params: Params) -> list[Stage]:
        """The original, then every change and its controls; controls after the first write no texts."""
        stages = [Stage(task_of("original"))]
        for change in _changes(params):
            stages.append(Stage(task_of(change.label)))
            stages += [Stage(task_of(control_name(change, draw, params.draws))) for draw in range(params.draws)]
        return stages

    def run(self, model: Model, params: Params, progress: Step) -> tuple[Finding, TextSpec]:
        """Measure the original, then every change and its control, each on the same material."""
        self.check(params)
        changes, place = _changes(params), place_of(params.matrices, params.at)
        check_matrices(model, changes, place)
        sizes = {"window": params.window, "windows": params.windows, "new_tokens": params.new_tokens}
        material = gather(model, text_of(params.text), params.prompts, **sizes)
        heads = place.changed_heads(model.sites)
        observe = Observer(model, material, heads, params.new_tokens)
        variants = [Variant("original", None, observe(partial(progress, task_of("original"))))]
        for change in changes:
            variants += _change_and_control(model, change, place, params, observe, progress)
        tables = {"effects": effects_table(variants, heads)}
        if material.prompts:
            tables["texts"] = _texts(model, variants, material, params.seed)
        tables |= {"matrices": matrices_table(variants), "heads": heads_table(variants, model.sites, heads)}
        tokens = [model.tokenizer.decode([token]) for token in material.drawn_window.tolist()]  # type: ignore[union-attr]
        return Finding(
            self.name,
            self.about,
            tables=tables,
            figures=figures(variants, heads, tables, tokens),
            headlines=headlines(tables, place.matrices, material.text.n_windows),
            quantities=head_quantities(tables["heads"]),
            method=_method(model, material, params),
            warnings=tuple(_warnings(model, changes, place, variants, material)),
            params=_stated_params(changes, place, params),
        ), material.text

    def show(self, finding: Finding) -> Display:
        """The table of effects as far as it fits, and the texts of each prompt side by side."""
        passages = []
        if "texts" in finding.tables:
            for (prompt,), rows in finding.tables["texts"].group_by(["prompt"], maintain_order=True):
                labels = [
                    row["change"] + (", control" if row["which"] == "control" else "")
                    for row in rows.iter_rows(named=True)
                ]
                passages.append(Passage(str(prompt), tuple(zip(labels, rows["text"], strict=True))))
        return Display(short_table(finding.tables["effects"], SHORT_NAMES), tuple(passages))


EXPERIMENT = Intervene()


def task_of(state: str) -> str:
    """The task of measuring one state of the model; the number of the part follows."""
    return f"measuring {state}, part"


def control_name(change: Change, draw: int, draws: int) -> str:
    """The name of a control, with its number where there are several."""
    return f"{change.label}, control" if draws == 1 else f"{change.label}, control {draw + 1}"


def _changes(params: Params) -> list[Change]:
    """Every change once, in the order in which they are given."""
    return list(dict.fromkeys(Change.of(spelled) for spelled in params.spelled_changes()))


def _change_and_control(
    model: Model, change: Change, place: Place, params: Params, observe: Observer, progress: Step
) -> list[Variant]:
    """The change, and its control: the mean of several draws, which are kept too."""
    with changed(model, change, place, params.seed) as touched:
        done = Variant("change", change, observe(partial(progress, task_of(change.label))), touched)
    draws: list[Effects] = []
    touched_by_draw: list[Sequence[Touched]] = []
    for draw in range(params.draws):
        with controlled(model, change, place, touched, params.seed, draw) as moved:
            task = task_of(control_name(change, draw, params.draws))
            draws.append(observe(partial(progress, task), write_texts=draw == 0))
            touched_by_draw.append(moved)
    return [done, Variant("control", change, mean_effects(draws), touched_by_draw[0], tuple(draws))]


def _texts(model: Model, variants: Sequence[Variant], material: Material, seed: int) -> pl.DataFrame:
    writings = [judged(model, material.prompts, variant.effects.texts) for variant in variants]
    return texts_table(variants, writings, _references(model, material, seed))


def _references(model: Model, material: Material, seed: int) -> dict[str, float]:
    """Nats per token of the text as it is and shuffled: the two ends between which written text is read."""
    if not predicts_next_token(model):
        return {}
    generator = torch.Generator().manual_seed(seed)
    tokens = material.windows[0]
    mixed = torch.cat([tokens[:1], tokens[1:][torch.randperm(len(tokens) - 1, generator=generator)]])
    ordinary, shuffled = (surprises(model, ids[:1], ids[1:]) for ids in (tokens, mixed))
    return {
        "ordinary": float(ordinary.mean()),
        "shuffled": float(shuffled.mean()),
        "needed": float(needed_tokens(ordinary, shuffled)),
    }


def _stated_params(
    changes: Sequence[Change], place: Place, params: Params
) -> dict[str, str | int | float | bool | None]:
    return {
        "changes": ", ".join(change.label for change in changes),
        "matrices": place.matrices,
        "at": place.at.text,
        "window": params.window,
        "windows": params.windows,
        "new_tokens": params.new_tokens,
        "seed": params.seed,
        "draws": params.draws,
    }


def _method(model: Model, material: Material, params: Params) -> str:
    spec = material.text
    sentences = [
        f"{spec.n_windows} windows of {spec.window} tokens, evenly spread over the text; row statistics are streamed "
        f"over them, maps are compared on {len(material.mapped)} windows of {max(map(len, material.mapped))} tokens.",
        "Intervals: Student t over windows (embeddings: over sentences).",
        f"Controls: {params.draws} draw{'s' if params.draws > 1 else ''} for each change, every one with its own "
        "directions. Predictions, embeddings and moved mass are means over draws, with the least and the most of them "
        "beside; other rows of the control, its maps and its text are of the first draw.",
    ]
    if predicts_next_token(model):
        sentences.append(
            "Each token but the first of a window is scored once, from those before it in the window; ratios and KL "
            "are paired with the original."
        )
    if material.prompts:
        how = "in the model's chat template" if has_chat_template(model) else "as plain text: it has no chat template"
        sentences.append(f"{len(material.prompts)} prompts, given {how}; greedy, at most {params.new_tokens} tokens.")
    if material.sentences:
        sentences.append(
            f"{len(material.sentences)} sentences of the text are embedded by the mean of their last states."
        )
    return " ".join(sentences)


def _warnings(
    model: Model, changes: Sequence[Change], place: Place, variants: Sequence[Variant], material: Material
) -> list[str]:
    warnings = [model.spec.weight_warning] if model.spec.weight_warning else []
    selected, reached = place.heads(model.sites), place.changed_heads(model.sites)
    more = [site.head_label(h) for site in reached for h in reached[site] if h not in selected[site]]
    if more:
        warnings.append(
            f"Key/value heads are shared: changing those of the chosen heads also changes {len(more)} other heads "
            f"({', '.join(more[:6])}{' …' if len(more) > 6 else ''}), which count as changed here."
        )
    if set(place.matrices) & set("qk"):
        normed = [site.label for site in selected if model.weight_status(site).status == "normed"]
        if normed:
            warnings.append(
                f"Queries and keys are normalised after the projection in {len(normed)} layers ({normed[0]} …): "
                "scaling W_Q or W_K does not scale their scores."
            )
        clipped = [site for site in selected if model.weight_status(site).status == "clipped"]
        if clipped:
            warnings.append(
                f"In {len(clipped)} layers ({clipped[0].label} …) {model.weight_status(clipped[0]).reason}: "
                "scaling W_Q or W_K scales only the scores of smaller ones."
            )
        weights = model.weights(next(iter(selected)))
        if bool(weights.b_q.any()) or bool(weights.b_k.any()):
            warnings.append(
                "Queries or keys have biases, which stay: scaling W_Q and W_K does not scale the whole score."
            )
    warnings += _diagonal_warnings(changes, variants)
    if len(material.windows) < 2:
        warnings.append(
            "The text gives a single window, so that there are no intervals: give more text or a smaller window."
        )
    if Change("randomise", "init") in changes and model.spec.initial_sd is None:
        warnings.append(
            "The checkpoint does not say how it was initialised: transformers' default for the family is drawn."
        )
    warnings += [
        f"{variant.label} changes nothing: no matrix has a singular value to remove."
        for variant in variants
        if variant.state == "change" and variant.change is not None and variant.change.picks_directions
        and not any(touched.change_norm for touched in variant.touched)
    ]  # fmt: skip
    return warnings


def _diagonal_warnings(changes: Sequence[Change], variants: Sequence[Variant]) -> list[str]:
    """Which chosen matrices are not square, so that their diagonal leaves out part of the stream."""
    if not any(change.value == DIAGONAL for change in changes):
        return []
    matrices = next(variant for variant in variants if variant.change and variant.change.value == DIAGONAL).touched
    narrow: dict[str, Touched] = {}
    for matrix in matrices:
        if matrix.letter != "o" and _outputs(matrix) < matrix.shape[0]:
            narrow.setdefault(matrix.letter, matrix)
    return [
        f"W_{letter.upper()} has fewer outputs than inputs ({_outputs(matrix)} of {matrix.shape[0]} in "
        f"{matrix.site.label}): its diagonal reads only the first {_outputs(matrix)} coordinates of the stream."
        for letter, matrix in narrow.items()
    ]


def _outputs(matrix: Touched) -> int:
    """The outputs of the projection of all heads of a site."""
    heads = matrix.site.n_kv_heads if matrix.letter in "kv" else matrix.site.n_heads
    return matrix.shape[1] // len(matrix.heads) * heads
