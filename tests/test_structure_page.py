"""The code of docs/structure.md runs on maps of a file, and the fit of Conti's own maps is what the page says."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from headscope.maths.linear_algebra.structured_maps import rare_token_head, syntactic_head, with_sparse_error

PAGE = (Path(__file__).parents[1] / "docs" / "structure.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
# Arrays of a file: as many as there are maps, or one that holds them all.
FORMS = ("npz of maps", "npz of one array", "npy")


def maps_like_contis() -> list[np.ndarray]:
    """Eight maps of 16 tokens, bands and rare tokens with a sparse error; dropout takes some weights away."""
    generator = torch.Generator().manual_seed(16)
    heads = [syntactic_head(16, 2, 0.3, generator) for _ in range(6)]
    heads += [rare_token_head(16, 3, 2, generator) for _ in range(2)]
    noisy = [with_sparse_error(head, 12, 0.3, generator) for head in heads]
    stays = [torch.rand(16, 16, generator=generator, dtype=torch.float64) > 0.1 for _ in noisy]
    return [(head * stay / 0.9).numpy().astype(np.float32) for head, stay in zip(noisy, stays, strict=True)]


@pytest.mark.parametrize("form", FORMS)
def test_maps_of_a_file_are_fitted(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    maps, path = maps_like_contis(), tmp_path / ("maps.npy" if form == "npy" else "maps.npz")
    if form == "npy":
        np.save(path, np.stack(maps))
    else:
        np.savez(path, **({"all": np.stack(maps)} if form == FORMS[1] else {f"map{k}": p for k, p in enumerate(maps)}))
    distances = fitted_distances(path, monkeypatch)
    assert distances["half-width 3, 16 entries"] < 0.06 * distances["zero"]
    widths = [distances[f"half-width {width}, 16 entries"] for width in range(4)]
    assert widths == sorted(widths, reverse=True)
    assert capsys.readouterr().out.startswith("zero: ")


def fitted_distances(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What the code of the page gives for a file."""
    monkeypatch.chdir(path.parent)
    namespace: dict[str, object] = {}
    exec(CODE.replace('"maps.npz"', repr(str(path))), namespace)
    distances = namespace["distances"]
    assert isinstance(distances, dict)
    return distances


@pytest.mark.skipif(
    "HEADSCOPE_CONTI_DATA" not in os.environ, reason="HEADSCOPE_CONTI_DATA does not name the file of Conti's maps"
)
def test_the_page_has_the_distances_of_contis_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(os.environ["HEADSCOPE_CONTI_DATA"]).resolve()
    distances = fitted_distances(path, monkeypatch)
    rows = {
        "the zero matrix": "zero",
        "band of half-width 3": "half-width 3, 0 entries",
        "band of half-width 2 and 16 entries": "half-width 2, 16 entries",
        "band of half-width 3 and 16 entries": "half-width 3, 16 entries",
    }
    for said, name in rows.items():
        assert f"| {said} | {distances[name]:.2f} |" in PAGE
    assert distances["half-width 3, 16 entries"] <= 0.9
