import { expect, test } from "vitest";
import { LEVELS, divergingScale, scaleOf, sequentialScale, stepColour } from "../../src/drawing/colour";

test("a sequential scale runs from the first colour to the last", () => {
  const scale = sequentialScale(2, 4);
  expect([2, 3, 4].map(scale.level)).toEqual([0, LEVELS / 2, LEVELS - 1]);
  expect([1, 5, Infinity, -Infinity].map(scale.level)).toEqual([0, LEVELS - 1, LEVELS - 1, 0]);
  expect([null, NaN].map(scale.level)).toEqual([null, null]);
  expect(scale.colour(2)).toBe("var(--hs-v0)");
  expect(scale.colour(null)).toBe("transparent");
});

test("a diverging scale has the reference in the middle and the farther end at the end", () => {
  const scale = divergingScale(0, 4, 1);
  expect(scale.level(1)).toBe(LEVELS / 2);
  expect(scale.level(0.999)).toBe(LEVELS / 2 - 1);
  expect(scale.level(4)).toBe(LEVELS - 1);
  expect(scale.level(0)).toBe(Math.floor((2 / 6) * LEVELS));
  expect([scale.low, scale.high, scale.reference]).toEqual([0, 4, 1]);
});

test("a reference outside the values widens the scale", () => {
  const scale = divergingScale(2, 3, 1);
  expect([scale.low, scale.high]).toEqual([1, 3]);
  expect(scale.level(1)).toBe(LEVELS / 2);
});

test("bounds of colours are where the colour changes", () => {
  const scale = divergingScale(-1, 3, 0.5);
  for (let level = 1; level < LEVELS; level++) {
    expect(scale.level(scale.bound(level) + 1e-9)).toBe(level);
    expect(scale.level(scale.bound(level) - 1e-9)).toBe(level - 1);
  }
});

test("a logarithmic scale has equal steps of the logarithm", () => {
  const scale = sequentialScale(1, 100, { log: true });
  expect([1, 10, 100].map(scale.level)).toEqual([0, LEVELS / 2, LEVELS - 1]);
  expect(scale.level(-1)).toBe(null);
  expect(divergingScale(1, 100, 10, { log: true }).level(10)).toBe(LEVELS / 2);
});

test("the scale of values leaves out what is missing and gives a single value a colour", () => {
  expect(scaleOf([null, NaN, Infinity])).toBe(null);
  expect(scaleOf([])).toBe(null);
  const constant = scaleOf([3, 3, null])!;
  expect(constant.low).toBeLessThan(3);
  expect(constant.level(3)).toBe(LEVELS / 2);
  expect(scaleOf([1, 2], { limits: [0, 10] })!.high).toBe(10);
  expect(scaleOf([1, 2], { reference: 0 })!.family).toBe("d");
  expect(scaleOf([-1, 0, 1, 10], { log: true, reference: 0 })!.low).toBe(1);
});

test("many curves have colours in their order", () => {
  expect([0, 1, 2].map((index) => stepColour(index, 3))).toEqual(["var(--hs-s0)", "var(--hs-s16)", "var(--hs-s31)"]);
  expect(stepColour(0, 1)).toBe("var(--hs-s0)");
});
