"""Byte-pair tokenizers: nothing is lost, the same text gives the same file, bad files and sizes are refused."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.corpora import shipped_text
from headscope.corpora.byte_pair_tokenizer import (
    EOS,
    EOS_ID,
    PAD_ID,
    SMALLEST,
    SPECIAL_TOKENS,
    load_tokenizer,
    save_tokenizer,
    trained_tokenizer,
)
from headscope.errors import CheckpointError, ResourceError, UsageError

SENTENCES = [line for document in shipped_text().documents for line in document.splitlines() if line]
TOKENIZER = trained_tokenizer(SENTENCES, 600)


@given(
    st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: not any(t in text for t in SPECIAL_TOKENS))
)
def test_any_sentence_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_special_tokens_and_size():
    assert [TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert TOKENIZER.get_vocab_size() == 600
    ids = TOKENIZER.encode("Attention.").ids
    assert min(ids) > EOS_ID
    assert TOKENIZER.decode([PAD_ID, *ids, EOS_ID]) == "Attention."
    assert EOS not in TOKENIZER.encode("a sentence").tokens


def test_frequent_words_become_tokens():
    text = " ".join(SENTENCES)
    assert len(TOKENIZER.encode(text).ids) < 0.6 * len(text.encode())
    assert "Ġthe" in TOKENIZER.encode("of the").tokens


def test_the_same_sentences_give_the_same_file(tmp_path):
    """Also in another process, whose hashes have another seed."""
    path = save_tokenizer(TOKENIZER, tmp_path)
    code = (
        "from headscope.corpora import shipped_text\n"
        "from headscope.corpora.byte_pair_tokenizer import trained_tokenizer\n"
        "lines = [line for text in shipped_text().documents for line in text.splitlines() if line]\n"
        "print(trained_tokenizer(lines, 600).to_str(pretty=True), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == path.read_bytes()
    assert load_tokenizer(path).to_str() == TOKENIZER.to_str()


@pytest.mark.parametrize(
    ("size", "sentences", "says"),
    [(100, ["a"], "no room for the 256 bytes"), (SMALLEST + 9, ["ab"], f"vocabulary of {SMALLEST + 1} tokens")],
)
def test_sizes_that_cannot_be_had(size, sentences, says):
    with pytest.raises(UsageError, match=says):
        trained_tokenizer(sentences, size)


@pytest.mark.parametrize("content", ["", "{}", "\ud800x", '{"model": {"type": "BPE"}}', "[1]"])
def test_files_that_are_no_tokenizers(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is no tokenizer"):
        load_tokenizer(path)


def test_a_tokenizer_of_somebody_else(tmp_path):
    path = save_tokenizer(TOKENIZER, tmp_path)
    data = json.loads(path.read_text())
    data["added_tokens"] = []
    data["model"]["vocab"] = {token if token != "<pad>" else "[PAD]": n for token, n in data["model"]["vocab"].items()}
    path.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=r"as \[None, 1, 2\], expected 0, 1, 2"):
        load_tokenizer(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tokenizer(tmp_path / "none.json")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot write"):
        save_tokenizer(TOKENIZER, tmp_path / "file")
