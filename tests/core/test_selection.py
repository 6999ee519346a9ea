"""The grammar of selections."""

import pytest

from headscope.core import Selection, Site
from headscope.errors import UsageError


def site(layer: int, stack: str = "only", kind: str = "self", heads: int = 4) -> Site:
    return Site(stack, kind, layer, heads, heads, 8, 8, causal=True)  # type: ignore[arg-type]


DECODER_ONLY = tuple(site(layer) for layer in range(4))
ENCODER = (site(0, "enc"), site(1, "enc"))
TWO_STACKS = (*ENCODER, *(site(layer, "dec", kind) for layer in (0, 1) for kind in ("self", "cross")))


def selected_heads(text: str, sites: tuple[Site, ...]) -> dict[str, tuple[int, ...]]:
    return {s.label: heads for s, heads in Selection.parse(text).resolve(sites).items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("L1-2", {"L1": (0, 1, 2, 3), "L2": (0, 1, 2, 3)}),
        ("L3.H1", {"L3": (1,)}),
        ("L0.H0-2", {"L0": (0, 1, 2)}),
        ("H3", {f"L{n}": (3,) for n in range(4)}),
        ("L0.H1, L0.H3,L2", {"L0": (1, 3), "L2": (0, 1, 2, 3)}),
        ("L3-9", {"L3": (0, 1, 2, 3)}),
        ("all", {f"L{n}": (0, 1, 2, 3) for n in range(4)}),
    ],
)
def test_decoder_only(text: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert selected_heads(text, DECODER_ONLY) == expected


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("dec.cross", ["dec.L0.cross", "dec.L1.cross"]),
        ("enc", ["enc.L0", "enc.L1"]),
        ("enc.L0.H1", ["enc.L0"]),
        ("dec.L1.cross.H2", ["dec.L1.cross"]),
        ("L0", ["enc.L0", "dec.L0", "dec.L0.cross"]),
        ("self", ["enc.L0", "enc.L1", "dec.L0", "dec.L1"]),
    ],
)
def test_two_stacks(text: str, labels: list[str]) -> None:
    assert list(selected_heads(text, TWO_STACKS)) == labels


@pytest.mark.parametrize("each", [*DECODER_ONLY, *TWO_STACKS], ids=lambda s: s.label)
def test_every_label_selects_itself(each: Site) -> None:
    sites = DECODER_ONLY if each in DECODER_ONLY else TWO_STACKS
    assert Selection.parse(each.head_label(2)).heads_of(each) == (2,)
    assert [s for s, _ in Selection.of(each).resolve(sites).items()] == [each]


@pytest.mark.parametrize("text", ["", "layer3", "L", "L3H", "3.7", "L1..H2", "L1-", "L0,,L1", "dec.H-1", "cross.enc"])
def test_nonsense_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read") as caught:
        Selection.parse(text)
    assert "L10-19" in caught.value.hint


@pytest.mark.parametrize(("selector", "hint"), [(2, 'write "L2"'), (2.5, ""), (["L2"], "")])
def test_other_selectors_are_refused(selector: object, hint: str) -> None:
    with pytest.raises(UsageError, match=r"by a text like L3\.H7 or by a Selection, got ") as refusal:
        Selection.of(selector)
    assert refusal.value.hint == hint


def test_a_backward_range() -> None:
    with pytest.raises(UsageError, match="runs backwards") as caught:
        Selection.parse("L9-3")
    assert caught.value.hint == "write 3-9"


def test_python_ranges_are_pythons() -> None:
    assert list(Selection.at(layers=range(1, 3)).resolve(DECODER_ONLY)) == list(DECODER_ONLY[1:3])
    assert Selection.at(layers=[0], heads=2).resolve(DECODER_ONLY) == {DECODER_ONLY[0]: (2,)}
