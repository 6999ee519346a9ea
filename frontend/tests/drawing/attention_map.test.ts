import { expect, test } from "vitest";
import { type AttentionMap, byteIndex, bytesOf, weightAt } from "../../src/drawing/attention_map";

const map = (queries: number, keys: number, causal: boolean, bytes: number[]): AttentionMap => ({
  queries, keys, causal, bytes: Uint8Array.from(bytes), largest: 0.5,
});

test("base64 gives bytes back", () => {
  expect([...bytesOf(btoa("\u0000\u00ff\u0080"))]).toEqual([0, 255, 128]);
});

test("rows of a causal map end at the diagonal", () => {
  const causal = map(3, 3, true, [255, 0, 51, 10, 20, 30]);
  expect([byteIndex(causal, 0, 0), byteIndex(causal, 1, 0), byteIndex(causal, 2, 2)]).toEqual([0, 1, 5]);
  expect(weightAt(causal, 0, 1)).toBe(null);
  expect(weightAt(causal, 1, 1)).toBeCloseTo(0.1);
});

test("rows beyond the last key are full", () => {
  const tall = map(4, 2, true, []);
  const places = [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [3, 1]] as const;
  expect(places.map(([query, key]) => byteIndex(tall, query, key))).toEqual([0, 1, 2, 3, 4, 5, 6]);
});

test("a map without a mask has all its cells", () => {
  const full = map(2, 3, false, [0, 1, 2, 3, 4, 255]);
  expect(weightAt(full, 1, 2)).toBe(0.5);
  expect(byteIndex(full, 0, 2)).toBe(2);
});
