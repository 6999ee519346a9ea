"""Attention maps of an encoder, a decoder and the cross-attention between them, on a sentence and its translation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.experiments.text_sample import Tokens
from headscope.experiments.translation.pair_material import Material
from headscope.model.model import Model
from headscope.model.token_maps import spelled_ids

_WORDS = range(5, 11)  # of a sentence whose maps can be read on a page


@dataclass(frozen=True)
class SentenceMaps:
    """The maps of every site, with the tokens that the encoder and the decoder read."""

    source: tuple[str, ...]
    written: tuple[str, ...]
    maps: dict[Site, Float[Tensor, "heads queries keys"]]


def drawn_sentences(material: Material, count: int, seed: int) -> list[int]:
    """The positions of judged pairs that are drawn: of a handy length where there are some, at random."""
    sources = material.judged.sources
    handy = [index for index, source in enumerate(sources) if len(source.split()) in _WORDS] or list(
        range(len(sources))
    )
    order = torch.randperm(len(handy), generator=torch.Generator().manual_seed(seed)).tolist()
    return sorted(handy[index] for index in order[:count])


def sentence_maps(model: Model, source: str, translation: str) -> SentenceMaps:
    """The maps of a model while it writes a translation; without dropout.

    The decoder reads its first token and the translation, as it did when it wrote it.

    Properties:
        - rows of a map sum to 1  (tested: test_maps_of_sentences_are_those_of_the_network)
    """
    ids, read = pair_ids(model, source, translation)
    model.hf.eval()
    with model.session() as session, torch.no_grad():
        capture = session.capture("pattern")
        model.hf(input_ids=ids[None], decoder_input_ids=read[None], use_cache=False)
        patterns: dict[Site, Any] = capture.take()["pattern"]
    maps = {site: pattern[0] for site, pattern in patterns.items()}
    return SentenceMaps(spelled_ids(model, ids.tolist()), spelled_ids(model, read.tolist()), maps)


def pair_ids(model: Model, source: str, translation: str) -> tuple[Tokens, Tokens]:
    """What the encoder reads, and what the decoder reads while it writes the translation."""
    tokenizer: Any = model.tokenizer
    ids, written = (torch.tensor(tokenizer(text)["input_ids"]) for text in (source, translation))
    return ids, torch.cat([torch.tensor([model.hf.config.decoder_start_token_id]), written[:-1]])


def last_sites(sites: Sequence[Site]) -> list[Site]:
    """The last site of each stack and kind."""
    return list({(site.stack, site.kind): site for site in sites}.values())
