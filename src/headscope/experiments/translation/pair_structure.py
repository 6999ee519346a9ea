"""The lens `structure` on pairs: which small structure carries each head while the network translates.

A sentence and its own translation are a window: the encoder reads the one, the decoder the other.
"""

from collections.abc import Sequence

import torch

from headscope.core import Finding
from headscope.experiments.translation.pair_material import Material
from headscope.experiments.translation.sentence_maps import pair_ids
from headscope.lenses.lens import AS_IS, Batch, NotApplicable, TextSize
from headscope.lenses.structure.lens import LENS
from headscope.lenses.structure.reading import CAPTURES
from headscope.lenses.structure.settings import Params
from headscope.model.model import Model
from headscope.progress import Step

TASK = "measuring the structure of heads, pair"
MOST = 64  # pairs
FEWEST_WORDS = 8  # of a sentence: in a short one every band is wide


def pair_structure(model: Model, material: Material, translations: Sequence[str], step: Step) -> Finding | None:
    """The finding of the lens on judged pairs of some length; None where no self-attention was seen.

    A recurrent decoder has cross-attention alone, which the lens does not measure.

    Properties:
        - each stack reads its own side of a pair  (tested: test_the_structure_of_pairs_reads_both_sides)
    """
    if not any(site.kind == "self" for site in model.sites):
        return None
    pairs = long_pairs(material.judged.sources, translations)
    params = Params(windows=MOST)
    state = LENS.start(params, model.spec, model.sites, TextSize(len(pairs), 0))
    model.hf.eval()
    with model.session() as session, torch.no_grad():
        capture = session.capture(*CAPTURES)
        for number, (source, translation) in enumerate(pairs):
            step(TASK, number, len(pairs))
            ids, read = pair_ids(model, source, translation)
            model.hf(input_ids=ids[None], decoder_input_ids=read[None], use_cache=False)
            state = LENS.update(
                state, Batch(AS_IS, ids[None], torch.ones_like(ids[None], dtype=torch.bool), captures=capture.take())
            )
        step(TASK, len(pairs), len(pairs))
    try:
        measurement = LENS.finish(state, None)
    except NotApplicable:
        return None
    return Finding(
        LENS.name,
        LENS.about,
        tables=measurement.tables,
        figures=measurement.figures,
        headlines=LENS.sentences(measurement.tables),
        quantities=measurement.quantities,
        method=f"{measurement.method} A window is a test sentence of at least {FEWEST_WORDS} words: the encoder reads "
        "it, the decoder reads the network's own translation of it.",
        warnings=measurement.warnings,
        params={"windows": params.windows, "reach": params.reach},
        curves=measurement.curves,
    )


def long_pairs(sources: Sequence[str], translations: Sequence[str]) -> list[tuple[str, str]]:
    """The first sentences that have enough words on both sides; the first of all where none has."""
    pairs = list(zip(sources, translations, strict=True))
    long = [pair for pair in pairs if min(len(side.split()) for side in pair) >= FEWEST_WORDS]
    return (long or pairs)[:MOST]
