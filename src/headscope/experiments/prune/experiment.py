"""Prune: the importance of every head, and what the model loses when many are switched off."""

from collections.abc import Sequence

from headscope.core import Finding, TextSpec
from headscope.corpora import text_of
from headscope.errors import UsageError
from headscope.experiments.experiment import Display, Experiment
from headscope.experiments.prune import ablation, curve, gradients
from headscope.experiments.prune.curve import Curves, Pruner, WindowText
from headscope.experiments.prune.figures import figures
from headscope.experiments.prune.importance import Importance, importance
from headscope.experiments.prune.material import FITTED, Material, gather
from headscope.experiments.prune.sentences import headlines
from headscope.experiments.prune.settings import COMMAND, Params
from headscope.experiments.prune.tables import (
    by_order,
    correlations_table,
    curve_table,
    head_quantities,
    heads_table,
    spared_table,
)
from headscope.model.language import predicts_next_token
from headscope.model.model import Model
from headscope.progress import Stage, Step

CRITERIA = ("zero", "mean", "gradient", "curvature")
_FLOPS_PER_SECOND = 1e11  # of two cores, for the time left at first


class Prune(Experiment[Params]):
    """Heads switched off one by one and together, with random heads for comparison.

    Properties:
        - a head that gives zero anyway has no importance  (tested: test_a_dead_head_has_no_importance)
        - a head that carries everything comes first  (tested: test_the_head_that_carries_everything)
        - the model is as it was  (tested: test_pruning_leaves_the_model_as_it_was)
    """

    name = "prune"
    command = COMMAND.path
    params = Params
    keeps_threads = True  # many rows at once are large products

    def stages(self, model: Model, params: Params) -> list[Stage]:
        """Every task, by the products that it takes."""
        weights = sum(parameter.numel() for parameter in model.hf.parameters())
        window = 2 * weights * params.tokens / _FLOPS_PER_SECOND
        heads = sum(site.n_heads for site in model.sites)
        points = len(curve.counts(heads)) * params.test_windows * window
        orders = [*CRITERIA, *_random_names(params)]
        return [
            Stage(ablation.MEANS_TASK, FITTED * window),
            Stage(gradients.TASK, 5 * params.windows * window),
            Stage(ablation.TASK, params.windows * 2 * heads * window * 0.6),  # layers below a head are not computed
            Stage(curve.ORIGINAL_TASK, params.test_windows * window),
            *(Stage(curve.task_of(order), points) for order in orders),
        ]

    def run(self, model: Model, params: Params, progress: Step) -> tuple[Finding, TextSpec]:
        """Switch heads off alone, then together."""
        self.check(params)
        if not predicts_next_token(model):
            raise UsageError(
                f"pruning is judged by perplexity, and {model.spec.name} predicts no next token",
                hint="use a causal language model, e.g. tiny or smollm2",
            )
        sizes = {"tokens": params.tokens, "windows": params.windows, "test_windows": params.test_windows}
        material = gather(model, text_of(params.text), **sizes)
        means = ablation.mean_outputs(model, material.fit, progress)
        predicted = gradients.gradient_scores(model, material.search, params.seed, progress)
        late = ablation.starts_late(model, material.search[0])
        scores = ablation.single_heads(model, material.search, means, late, progress)
        by_head = importance(model.sites, scores, predicted)
        curves = _curves(model, material, by_head, ablation.outputs_when_off(params.off, means), params, progress)
        tables = {
            "curve": curve_table(curves, len(by_head.heads)),
            "heads": heads_table(by_head),
            "spared": spared_table(curves, len(by_head.heads)),
            "correlations": correlations_table(by_head),
        }
        return Finding(
            self.name,
            self.about,
            tables=tables,
            figures=figures(tables, model.sites, params.off),
            headlines=headlines(tables, params.off, material.tested_text.name),
            quantities=head_quantities(),
            method=_method(material, params, late),
            params=_stated_params(params, material),
        ), material.spec

    def show(self, finding: Finding) -> Display:
        """The perplexity ratio of every order, a row for each number of heads that are off."""
        return Display(by_order(finding.tables["curve"]))


EXPERIMENT = Prune()


def _curves(
    model: Model,
    material: Material,
    by_head: Importance,
    outputs: ablation.Outputs,
    params: Params,
    progress: Step,
) -> Curves:
    text = WindowText(material.test)
    original = curve.original_nats(model, text, progress)
    pruner = Pruner(model, text, by_head.heads, outputs, original, progress)
    by_criterion = {criterion: pruner.curve(criterion, by_head.order(criterion)) for criterion in CRITERIA}
    return {**by_criterion, curve.RANDOM: pruner.random(params.draws, params.seed)}


def _random_names(params: Params) -> Sequence[str]:
    return [curve.random_name(draw, params.draws) for draw in range(params.draws)]


def _method(material: Material, params: Params, late: bool) -> str:
    n = len(material.search[0])
    begins = (
        "computes the layers below it once for all heads of a layer, which changes no number"
        if late
        else "computes all layers, since this family does not let rows differ from a layer on"
    )
    return (
        f"Importance: {len(material.search)} windows of {n} tokens of the split search; each head alone {begins}. Mean "
        f"outputs: {len(material.fit)} windows of the split fit. Curves: {len(material.test)} windows of the split "
        f"test, each token but the first of a window scored once, ratios paired with the original; "
        f"{params.draws} random orders. Intervals: Student t over windows; rank correlations: the jackknife over "
        "windows. Criteria are compared on the same windows; the interval of a curve knows of the test windows alone."
    )


def _stated_params(params: Params, material: Material) -> dict[str, str | int | float | bool | None]:
    return {
        "off": params.off.value,
        "tokens": len(material.search[0]),
        "windows": len(material.search),
        "test_windows": len(material.test),
        "draws": params.draws,
        "seed": params.seed,
    }
