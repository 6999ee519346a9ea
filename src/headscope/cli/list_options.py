"""Options that take several values: one rule for all of them.

Such an option may be repeated, and one value may hold several, separated by commas: `--lens spectra --lens focus` and
`--lens spectra,focus` mean the same. A comma between brackets belongs to the value: `'window(left=8, right=8)'`.
"""

from collections.abc import Sequence

SEVERAL = "Several: repeat it, or use commas."
_OPENING, _CLOSING = "([{", ")]}"


def listed(values: Sequence[str]) -> list[str]:
    """The single values of a repeated option, without blanks around them.

    Properties:
        - repeating and commas give the same  (tested: test_repeating_and_commas_mean_the_same)
        - commas between brackets are left alone  (tested: test_commas_between_brackets_belong_to_the_value)
        - an empty value stays one, for whoever reads it to refuse  (tested: test_an_empty_value_is_not_dropped)
    """
    return [part for value in values for part in _parts(value)]


def _parts(value: str) -> list[str]:
    parts, depth = [""], 0
    for character in value:
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()] or [""]
