import { expect, test } from "vitest";
import { linearPlaces, logPlaces } from "../../src/drawing/ticks";

test("linear ticks are round and inside", () => {
  expect(linearPlaces(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
  expect(linearPlaces(-0.31, 0.27, 4)).toEqual([-0.2, 0, 0.2]);
  expect(linearPlaces(0, 3, 8, { whole: true })).toEqual([0, 1, 2, 3]);
  expect(linearPlaces(0, 29, 5, { whole: true })).toEqual([0, 10, 20]);
  expect(linearPlaces(2, 2, 5)).toEqual([2]);
  expect(linearPlaces(NaN, NaN, 5)).toEqual([]);
});

test("linear ticks are about as many as asked for", () => {
  for (const [low, high] of [[0, 1], [-3, 7e5], [1e-9, 3e-9], [99.9, 100.3]] as const) {
    for (const amount of [2, 4, 6, 9]) {
      const places = linearPlaces(low, high, amount);
      expect(places.length).toBeGreaterThanOrEqual(1);
      expect(places.length).toBeLessThanOrEqual(amount + 2);
      expect(places.every((place) => place >= low - 1e-9 * high && place <= high * (1 + 1e-9))).toBe(true);
    }
  }
});

test("logarithmic ticks are powers of ten, with others between them over a short range", () => {
  expect(logPlaces(0.5, 2000, 9)).toEqual([1, 10, 100, 1000]);
  expect(logPlaces(1, 100, 9)).toEqual([1, 3, 10, 30, 100]);
  expect(logPlaces(1, 20, 9)).toEqual([1, 2, 5, 10, 20]);
  expect(logPlaces(1e-30, 1, 5)).toEqual([1e-28, 1e-21, 1e-14, 1e-7, 1]);
  expect(logPlaces(-1, 1, 4)).toEqual([]);
});
