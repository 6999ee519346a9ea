import { describe, expect, it } from "vitest";
import { atlasOf, type ComparedPair, type Comparison, hasMoved, MOVEMENT } from "../../src/comparison/comparison_data";
import { intervalWords, movedWords, signedNumber, tipWords } from "../../src/comparison/difference_words";
import { ATLAS } from "../example";

const PAIR: ComparedPair = {
  pair: 0, model: 1, title: "b minus a", movement: [0.5, 0],
  quantities: [
    {
      key: "focus.first", lens: "focus", lens_title: "Focus", label: "mass on the first token", unit: "points", value_unit: "%", meaning: "Where?",
      base: [40, 10], other: [90, 11], values: [50, 1], low: [47, -2], high: [53, 4], effect: [0.6, 0.01], moved: "10", certainty: "interval",
    },
    {
      key: "likeness.score", lens: "likeness", lens_title: "Likeness", label: "score", unit: "", value_unit: "", meaning: "?",
      base: [1, null], other: [2, 1], values: [1, null], low: null, high: null, effect: [0.5, null], moved: "00", certainty: "unknown",
    },
  ],
};
const COMPARISON: Comparison = { models: ["A: a", "B: b"], panels: ATLAS.panels, heads: ATLAS.heads, pairs: [PAIR], patterns: [null, null] };

describe("the atlas of differences", () => {
  it("begins with the movement and has 0 in the middle of every quantity", () => {
    const { quantities } = atlasOf(COMPARISON, PAIR);
    expect(quantities.map(({ key }) => key)).toEqual([MOVEMENT, "focus.first", "likeness.score"]);
    expect(quantities.map(({ nulls }) => nulls)).toEqual([0, 0, 0]);
    expect(quantities[1]!.values).toEqual([50, 1]);
  });

  it("knows which heads moved", () => {
    expect([0, 1].map((head) => hasMoved(PAIR, "focus.first", head))).toEqual([true, false]);
    expect([0, 1].map((head) => hasMoved(PAIR, MOVEMENT, head))).toEqual([true, false]);
    expect(hasMoved(PAIR, "nothing", 0)).toBe(false);
  });
});

describe("words of a difference", () => {
  it("have signs, intervals and what is known of the error", () => {
    expect([50, -0.5, 0, null].map(signedNumber)).toEqual(["+50", "−0.500", "0", "–"]);
    expect(intervalWords(PAIR.quantities[0]!, 1)).toBe("−2 to +4");
    expect(intervalWords(PAIR.quantities[1]!, 0)).toBe("no stored error");
    expect([0, 1].map((head) => movedWords(PAIR.quantities[0]!, head))).toEqual(["moved", "no"]);
    expect([0, 1].map((head) => movedWords(PAIR.quantities[1]!, head))).toEqual(["not known", "–"]);
  });

  it("say both values under the pointer", () => {
    expect(tipWords("L0.H0", PAIR, "focus.first", 0)).toBe("L0.H0\nmass on the first token: 40 % → 90 %\ndifference +50 points\n95 % interval +47 to +53\nmoved");
    expect(tipWords("L0.H0", PAIR, "likeness.score", 0)).toBe("L0.H0\nscore: 1 → 2\ndifference +1\nno stored error");
    expect(tipWords("L0.H0", PAIR, MOVEMENT, 0)).toBe("L0.H0\nmovement over all lenses: 0.500");
  });
});
