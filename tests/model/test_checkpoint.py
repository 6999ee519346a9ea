"""Reading safetensors: the same tensors as the official reader, one at a time, no file left open."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headscope.errors import CheckpointError
from headscope.model.formats.safetensors_folder import open_checkpoint
from tests.hostile.broken import save_llama

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 4), (0,), (3, 0, 2)], ids=str)
def test_reads_what_the_official_writer_wrote(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    tensors = {"a": torch.randn(7), "x": (100 * torch.rand(shape)).to(dtype), "z": torch.randn(2, 2)}
    save_file(tensors, tmp_path / "model.safetensors")
    read = open_checkpoint(tmp_path).read("x", None)
    assert read.dtype == dtype
    assert read.shape == shape
    assert torch.equal(read, tensors["x"])


def test_floats_come_as_float32_and_integers_as_they_are(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2).half(), "ids": torch.arange(3)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.read("w").dtype == torch.float32
    assert checkpoint.read("w", torch.float64).dtype == torch.float64
    assert checkpoint.read("ids").dtype == torch.int64
    assert checkpoint.dtypes == ("F16",)
    assert checkpoint.n_numbers == 5


def test_shards_hold_every_tensor_once(tmp_path: Path) -> None:
    model = save_llama(tmp_path, shard_size="20KB")
    checkpoint = open_checkpoint(tmp_path)
    state = model.state_dict()
    assert len(checkpoint.files) > 3
    assert checkpoint.tensors.keys() == state.keys()
    assert all(torch.equal(checkpoint.read(name), value) for name, value in state.items())


def test_entries_point_at_the_bytes(tmp_path: Path) -> None:
    model = save_llama(tmp_path)
    name = "model.norm.weight"
    entry = open_checkpoint(tmp_path).tensors[name]
    content = entry.file.read_bytes()[entry.begin : entry.end]
    assert content == model.state_dict()[name].numpy().tobytes()
    assert (entry.dtype, entry.shape) == ("F32", (32,))


def test_a_single_file_goes_before_an_index(tmp_path: Path) -> None:
    save_llama(tmp_path, shard_size="20KB")
    save_file({"only": torch.ones(1)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).tensors.keys() == {"only"}


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    save_llama(tmp_path)
    with pytest.raises(CheckpointError, match="holds no tensor 'nope'"):
        open_checkpoint(tmp_path).read("nope")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_no_file_stays_open(tmp_path: Path) -> None:
    save_llama(tmp_path, shard_size="20KB")
    checkpoint = open_checkpoint(tmp_path)
    kept = [checkpoint.read(name) for name in checkpoint.tensors]
    # By their names: other threads, and garbage of other tests, open and close files of their own.
    still_open = [target for file in Path("/proc/self/fd").iterdir() if (target := link_target(file))]
    assert [target for target in still_open if Path(target).is_relative_to(tmp_path)] == []
    assert len(kept) == len(checkpoint.tensors)


def link_target(link: Path) -> str:
    """Where a link points to; nothing where it has gone meanwhile."""
    try:
        return os.readlink(link)  # noqa: PTH115  a name such as "pipe:[1]" is no path
    except OSError:
        return ""


def test_what_was_read_is_not_a_view_of_the_file(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.read("w").zero_()
    assert torch.equal(load_file(tmp_path / "model.safetensors")["w"], torch.ones(3))
    assert torch.equal(checkpoint.read("w"), torch.ones(3))


def test_the_hash_of_one_file_is_the_files(tmp_path: Path) -> None:
    save_llama(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    assert open_checkpoint(tmp_path).sha256() == hashlib.sha256(content).hexdigest()


def test_the_hash_of_shards_is_of_their_hashes(tmp_path: Path) -> None:
    save_llama(tmp_path, shard_size="20KB")
    checkpoint = open_checkpoint(tmp_path)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in checkpoint.files]
    before = checkpoint.sha256()
    assert before == hashlib.sha256("".join(lines).encode()).hexdigest()
    content = bytearray(checkpoint.files[0].read_bytes())
    content[-1] ^= 1
    checkpoint.files[0].write_bytes(content)
    assert checkpoint.sha256() != before


def test_links_into_a_store_are_followed(tmp_path: Path) -> None:
    """The cache of a hub is made of such links."""
    save_llama(tmp_path / "store")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for file in (tmp_path / "store").iterdir():
        (folder / file.name).symlink_to(Path("..") / "store" / file.name)
    assert len(open_checkpoint(folder).tensors) == 21
