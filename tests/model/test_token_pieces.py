"""Tokens of long documents, made piece by piece, are those of the whole document."""

import itertools
import random

import pytest

from headscope.corpora import shipped_text
from headscope.errors import UsageError
from headscope.model import token_pieces as module
from headscope.model.sources.names import resolve
from headscope.model.token_pieces import Surroundings, surroundings_of, token_pieces

PIECE, OVERLAP = 2000, 256


def awkward_texts():
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = "\n\n".join(shipped_text().documents)
    return {
        "english": words[:60_000],
        "one line": words[:30_000].replace("\n", " "),
        "no spaces": "".join(draw.choice(letters) for _ in range(12_000)),
        "one letter": "a" * 9_001,
        "blanks": "word" + " " * 7_000 + "word" + "\n" * 5_000 + "\t " * 3_000 + "end",
        "digits": "".join(draw.choice("0123456789.,") for _ in range(9_000)),
        "chinese": "".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(9_000)),
        "chinese with stops": "".join(draw.choice("的一是不了人我在有他。,") for _ in range(12_000)),
        "emoji": "".join(draw.choice("🦊🐇👩‍👩‍👧é🇩🇪🏳️‍🌈 ") for _ in range(9_000)),
        "combining": "e\u0301a\u0308o\u0323\u0302" * 2_000,
        "arabic and thai": "السلام عليكم ورحمة الله " * 300 + "ภาษาไทยไม่มีช่องว่าง" * 300,
        "long words": " ".join("".join(draw.choice(letters) for _ in range(draw.randrange(1, 700))) for _ in range(60)),
        "special": "text <|endoftext|> [SEP] [CLS] <s> </s> and [MASK] on " * 400,
        "code": "def f(x):\n    return {'a': [x**2 for x in range(10)]}  # comment\n\n" * 300,
        "long": words[:90_000] * 2,
    }


TEXTS = awkward_texts()


@pytest.fixture(scope="module", params=["tiny", "minilm", "smollm2"])
def tokenizer(request):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from headscope.errors import ResourceError

    try:
        source = resolve(request.param)
    except ResourceError as error:
        pytest.skip(f"{request.param} is not in the cache and cannot be fetched: {error.message}")
    if source.checkpoint.name == "gguf":
        return AutoTokenizer.from_pretrained(source.folder, gguf_file=source.checkpoint.path.name)
    loaded = AutoTokenizer.from_pretrained(source.folder)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


@pytest.mark.parametrize("name", TEXTS)
def test_pieces_give_the_tokens_of_the_whole_document(tokenizer, name):
    document = TEXTS[name]
    surroundings = surroundings_of(tokenizer, document[:256])
    whole = surroundings.body(tokenizer(document)["input_ids"])
    chunks = [document[start : start + 777] for start in range(0, len(document), 777)]
    pieces = list(token_pieces(tokenizer, chunks, surroundings, PIECE, OVERLAP))
    assert list(itertools.chain(*pieces)) == whole
    if name in ("english", "one line", "long", "code"):
        assert len(pieces) >= len(document) // PIECE - 1


class Letters:
    """A fast tokenizer whose tokens are letters; it notes the longest text that it was given."""

    is_fast = True
    longest = 0

    def __call__(self, text, *, add_special_tokens=True, return_offsets_mapping=False):
        self.longest = max(self.longest, len(text))
        ids = list(map(ord, text))
        found = {"input_ids": [1, *ids, 2] if add_special_tokens else ids}
        return found | {"offset_mapping": [(i, i + 1) for i in range(len(text))]} if return_offsets_mapping else found


def test_a_long_document_is_never_held_whole():
    letters = Letters()
    surroundings = surroundings_of(letters, "sample")
    assert surroundings == Surroundings((1,), (2,))
    taken = 0

    def chunks():
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield "some words " * 100

    pieces = token_pieces(letters, chunks(), surroundings, PIECE, OVERLAP)
    next(pieces)
    assert taken <= 10  # the beginning of a text costs no more than a few pieces
    assert sum(map(len, pieces)) > 1_090_000
    assert letters.longest == PIECE + OVERLAP


class Pairs(Letters):
    """Tokens are pairs of letters, counted from wherever the text begins: two pieces agree on half of the places."""

    def __call__(self, text, *, add_special_tokens=True, return_offsets_mapping=False):
        self.longest = max(self.longest, len(text))
        spans = [(i, min(i + 2, len(text))) for i in range(0, len(text), 2)]
        ids = [hash_of(text[start:end]) for start, end in spans]
        return {"input_ids": [1, *ids, 2] if add_special_tokens else ids, "offset_mapping": spans}


def hash_of(letters):
    return sum(ord(letter) * 300**place for place, letter in enumerate(letters)) + 10


def test_pieces_that_disagree_are_joined():
    pairs = Pairs()
    surroundings = surroundings_of(pairs, "sample")
    text = "".join(chr(97 + i % 26) for i in range(10_000))
    whole = surroundings.body(pairs(text)["input_ids"])
    pieces = list(token_pieces(pairs, [text], surroundings, 999, 100))
    assert list(itertools.chain(*pieces)) == whole


def test_a_tokenizer_without_places_sees_the_whole_document():
    class Slow(Letters):
        is_fast = False

    slow = Slow()
    pieces = list(token_pieces(slow, ["ab " * 400, "cd " * 400], surroundings_of(slow, "ab"), 100, 20))
    assert pieces == [list(map(ord, "ab " * 400 + "cd " * 400))]


def test_special_tokens_that_are_not_there_are_not_taken_off():
    assert Surroundings((1,), (2,)).body([1, 5, 2]) == [5]
    assert Surroundings((1,), (2,)).body([5, 2]) == [5, 2]
    assert Surroundings((1,), (2,)).body([1]) == [1]
    assert Surroundings().body([1, 2]) == [1, 2]


class OneWord(Letters):
    """The whole text is one token, as a word that is too long is for some tokenizers: pieces never agree."""

    def __call__(self, text, *, add_special_tokens=True, return_offsets_mapping=False):
        self.longest = max(self.longest, len(text))
        ids = [hash_of(text)] if text else []
        whole = [1, *ids, 2] if add_special_tokens else ids
        return {"input_ids": whole, "offset_mapping": [(0, len(text))] * len(ids)}


@pytest.mark.parametrize(
    ("is_fast", "says"),
    [(True, "finds no place to cut in"), (False, "does not say where its tokens are")],
)
def test_what_cannot_be_cut_is_refused(monkeypatch, is_fast, says):
    monkeypatch.setattr(module, "LONGEST", 20_000)
    one_word = OneWord()
    one_word.is_fast = is_fast
    surroundings = surroundings_of(one_word, "sample")
    chunks = ["x" * 500] * 30
    assert [len(piece) for piece in token_pieces(one_word, chunks, surroundings, PIECE, OVERLAP)] == [1]
    endless = itertools.repeat("x" * 500)
    with pytest.raises(UsageError, match=says):
        list(token_pieces(one_word, endless, surroundings, PIECE, OVERLAP))
    assert one_word.longest <= 20_000
