"""Mutations of sound inputs that keep most of their structure: bytes, JSON, and words of a grammar."""

import copy
import struct
from typing import Any

from hypothesis import strategies as st

EXTREME = (0, 1, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1)

# What a stranger may put in the place of any value.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, 1e-320, "", "x", "0", "../x",
    "/etc/passwd", "a\0b", "\ud800", "é", "x" * 1000, "F32", "Infinity", [], {}, [[]], [0, 0], [1, 2, 3], [-1], ["x"],
    [{}], {"a": 1}, {"array": "x"}, {"array": []}, {"number": "nan"}, {"number": "x"}, {"type": "Curves"},
    {"__float__": "Infinity"}, [[[[[[[[[[]]]]]]]]]],
)  # fmt: skip


@st.composite
def bytes_like(draw: st.DrawFn, seed: bytes, reach: int) -> bytes:
    """The bytes with some of their first `reach` changed, cut, put in, taken out, or read as an extreme number."""
    content = seed
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(min(len(content), reach) - 1, 0)))
        match draw(st.sampled_from(["cut", "set", "insert", "delete", "number", "small", "repeat"])):
            case "cut":
                content = content[:at]
            case "set":
                content = content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
            case "insert":
                content = content[:at] + draw(st.binary(min_size=1, max_size=9)) + content[at:]
            case "delete":
                content = content[:at] + content[at + draw(st.integers(1, 9)) :]
            case "number":
                content = content[:at] + struct.pack("<Q", draw(st.sampled_from(EXTREME))) + content[at + 8 :]
            case "small":
                number = draw(st.sampled_from(EXTREME)) % 2**32
                content = content[:at] + struct.pack("<I", number) + content[at + 4 :]
            case "repeat":
                content = content[:at] + content[at : at + draw(st.integers(1, 40))] * 2 + content[at:]
    return content


@st.composite
def json_like(draw: st.DrawFn, seed: Any) -> Any:
    """The object with some of its values replaced, taken out, exchanged or put in."""
    data = copy.deepcopy(seed)
    for _ in range(draw(st.integers(1, 3))):
        holders = _holders(data)
        if not holders:
            return data
        holder = draw(st.sampled_from(range(len(holders))).map(lambda i, found=holders: found[i]))
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        match draw(st.sampled_from(["replace", "replace", "remove", "add", "exchange"])):
            case "replace":
                holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
            case "remove":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(st.sampled_from(["x", "", "../x", "type", "__metadata__", "\ud800"]))] = holder[key]
            case "add":
                holder.append(copy.deepcopy(draw(st.sampled_from(ODD))))
            case "exchange":
                other = draw(st.sampled_from(keys))
                holder[key], holder[other] = holder[other], holder[key]
    return data


def text_like(grammar: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Words of a grammar one after the other, among them any text at all."""
    word = st.one_of(st.sampled_from(grammar), st.text(max_size=4), st.integers(-5, 10**30).map(str))
    return st.lists(word, max_size=12).map("".join)


def _holders(data: Any) -> list[Any]:
    """Every object and list of the data that holds something."""
    if not isinstance(data, (dict, list)) or not data:
        return []
    values = data.values() if isinstance(data, dict) else data
    return [data, *(holder for value in values for holder in _holders(value))]
