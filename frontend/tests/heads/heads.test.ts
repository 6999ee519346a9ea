import { describe, expect, test } from "vitest";
import { byteIndex, weightAt } from "../../src/drawing/attention_map";
import { strip } from "../../src/heads/dot_strip";
import { curveFigure, quantile } from "../../src/heads/head_curves";
import { cardMap, halved, quantileOf, smallMap } from "../../src/heads/head_map";
import { nextHead } from "../../src/heads/head_page";
import { strongest, strongestPairs } from "../../src/heads/pattern_view";
import { byLens, mainQuantities, nullOf, rankOf, withUnit } from "../../src/heads/quantities";
import { displayed } from "../../src/heads/token_text";
import { ATLAS, quantity } from "../example";

describe("numbers of heads", () => {
  test("shares are percentages", () => {
    expect(withUnit(0.882, "share")).toBe("88.2 %");
    expect(withUnit(14.2, "directions")).toBe("14.2 directions");
    expect(withUnit(2, "")).toBe("2");
    expect(withUnit(null, "share")).toBe("–");
  });
  test("the largest number has rank 1; no number has no rank", () => {
    expect(rankOf(quantity(), 7)).toBe(1);
    expect(rankOf(quantity(), 0)).toBe(7);
    expect(rankOf(quantity(), 5)).toBeNull();
  });
  test("nulls are of all heads or of each", () => {
    expect(nullOf(quantity(), 3)).toBe(0.2);
    expect(nullOf(quantity({ nulls: [1, null] }), 0)).toBe(1);
    expect(nullOf(quantity({ nulls: [1, null] }), 1)).toBeNull();
    expect(nullOf(quantity({ nulls: null }), 0)).toBeNull();
  });
  test("lenses keep their order", () => {
    const quantities = [quantity({ lens: "b", key: "1" }), quantity({ lens: "a", key: "2" }), quantity({ lens: "b", key: "3" })];
    expect([...byLens(quantities).keys()]).toEqual(["b", "a"]);
    expect(mainQuantities(quantities).map(({ key }) => key)).toEqual(["1", "2"]);
  });
});

describe("arrow keys", () => {
  test.each([[0, "ArrowRight", 1], [2, "ArrowRight", 3], [0, "ArrowLeft", null], [1, "ArrowDown", 4], [4, "ArrowUp", 1], [4, "ArrowDown", null], [6, "ArrowDown", null], [7, "ArrowRight", null], [0, "x", null]])(
    "from head %i %s leads to %s", (head, key, expected) => expect(nextHead(ATLAS, head, key)).toBe(expected));
});

const base64 = (bytes: number[]) => btoa(String.fromCharCode(...bytes));
const PATTERNS = {
  size: 64,
  tokens: [
    { queries: ["a", "b", "c"], keys: ["a", "b", "c"], n_queries: 4, n_keys: 4 },
    { queries: ["a", "b"], keys: ["x", "y", "z"], n_queries: 2, n_keys: 3 },
  ],
  largest: [0.5, null, 1, 1, 1, 1, 1, 1],
  maps: [base64([255, 0, 128, 10, 20, 255]), null, null, null, null, null, base64([1, 2, 3, 4, 5, 6]), null],
  cards: { "0": base64([255, 1, 9, 2, 3, 8, 4, 5, 6, 7]) },
};

describe("maps of heads", () => {
  test("a byte is the root of a share of the largest weight", () => {
    const map = smallMap(ATLAS, PATTERNS, 0)!;
    expect(weightAt(map, 0, 0)).toBe(0.5);
    expect(weightAt(map, 1, 1)).toBeCloseTo(0.5 * (128 / 255) ** 2, 12);
    expect(weightAt(map, 0, 1)).toBeNull();
  });
  test("cross-attention has no mask", () => {
    const map = smallMap(ATLAS, PATTERNS, 6)!;
    expect([map.queries, map.keys, map.causal]).toEqual([2, 3, false]);
    expect(map.bytes[byteIndex(map, 1, 2)!]).toBe(6);
  });
  test("a head without a map has none", () => {
    expect(smallMap(ATLAS, PATTERNS, 1)).toBeNull();
    expect(cardMap(ATLAS, PATTERNS, 2)).toBeNull();
  });
  test("half the size keeps the largest of four", () => {
    const half = halved(cardMap(ATLAS, PATTERNS, 0)!);
    expect([half.queries, half.keys]).toEqual([2, 2]);
    expect([...half.bytes]).toEqual([255, 5, 8]);
    expect([...halved(smallMap(ATLAS, PATTERNS, 6)!).bytes]).toEqual([5, 6]);
  });
  test("the quantile of bytes", () => {
    const bytes = Uint8Array.from({ length: 100 }, (_, index) => index);
    expect(quantileOf(bytes, 0.5)).toBe(49);
    expect(quantileOf(bytes, 1)).toBe(99);
    expect(quantileOf(new Uint8Array(0), 0.5)).toBe(0);
  });
});

test("the strongest keys come first, and none without weight", () => {
  expect(strongest([0.1, null, 0.4, 0, 0.4], 3)).toEqual([[2, 0.4], [4, 0.4], [0, 0.1]]);
});

test("tokens show what cannot be seen", () => {
  expect(displayed(" a")).toBe(" a");
  expect(displayed("\n")).toBe("␊");
  expect(displayed("")).toBe("∅");
});

describe("dots", () => {
  test("lie between the smallest and the largest value", () => {
    const place = strip([1, 10, 100, null], true);
    expect([place(1), place(10), place(100), place(null), place(0)]).toEqual([0, 0.5, 1, null, null]);
    expect(strip([3, 3], false)(3)).toBe(0.5);
    expect(strip([null], false)(null)).toBeNull();
  });
});

describe("curves of heads", () => {
  const curve = {
    lens: "spectra", label: "singular values", x_axis: "index", y_axis: "σ", x: [1, 2], values: [[1, 2], [3, null], null, [5, 6], [7, 8]],
    law: [[1, 1]], law_label: "random", log_x: false, log_y: false,
  };
  test("a head has its curve, those of all heads and the law", () => {
    const figure = curveFigure(curve, "L0.H0", 0)!;
    expect(figure.series.map(({ role }) => role)).toEqual(["measured", "null", "theory"]);
    expect(figure.series[0]!.y).toEqual([1, 2]);
    expect(figure.title).toBe("L0.H0: singular values");
  });
  test("a head without one has none", () => expect(curveFigure(curve, "L0.H2", 2)).toBeNull());
  test("a law of each head is its own", () => {
    const own = { ...curve, law: [[1, 1], [2, 2], null, null, null] };
    expect(curveFigure(own, "L0.H1", 1)!.series.at(-1)!.y).toEqual([2, 2]);
  });
  test("quantiles leave out what is missing", () => expect(quantile([[1, 5], [3, null], [9, 7]], 0.5)).toEqual([3, 7]));
});

describe("exact weights", () => {
  const floats = (weights: number[]) => btoa(String.fromCharCode(...new Uint8Array(Float32Array.from(weights).buffer)));
  const exact = { ...PATTERNS, weights: [floats([0.5, 0.125, 0.375, 0.01, 0.3, 0.19]), null, null, null, null, null, null, null] };

  test("numbers are exact, colours are bytes", () => {
    const map = smallMap(ATLAS, exact, 0)!;
    expect(weightAt(map, 1, 0)).toBe(0.125);
    expect(weightAt(map, 2, 0)).toBe(Math.fround(0.01));
    expect([...map.bytes]).toEqual([255, 128, 221, 36, 198, 157]);
  });
  test("a head without exact weights has its bytes", () => {
    expect([...smallMap(ATLAS, exact, 6)!.bytes]).toEqual([1, 2, 3, 4, 5, 6]);
  });
  test("the largest weights leave the first key out", () => {
    expect(strongestPairs(smallMap(ATLAS, exact, 0)!, 2)).toEqual([[1, 1, 0.375], [2, 1, Math.fround(0.3)]]);
    expect(strongestPairs(smallMap(ATLAS, exact, 0)!).length).toBe(3);
  });
});
