import { expect, test } from "vitest";
import type { HeatMap, Mosaic } from "../../src/data";
import { cellPaths, heatRows, kindRows } from "../../src/figures/map_values";

test("a packed map gives its values and its gaps back", () => {
  const codes = Uint16Array.from([0, 65534, 32767, 65535]);
  const packed = { rows: 2, columns: 2, low: -1, high: 3, codes: btoa(String.fromCharCode(...new Uint8Array(codes.buffer))) };
  expect(heatRows({ values: packed } as unknown as HeatMap)).toEqual([[-1, 3], [1, null]]);
});

test("a small map is as it is written", () => {
  expect(heatRows({ values: [[1, null]] } as unknown as HeatMap)).toEqual([[1, null]]);
});

test("kinds are read from characters", () => {
  expect(kindRows({ values: ["012", "<;0"] } as unknown as Mosaic)).toEqual([[0, 1, 2], [12, 11, 0]]);
});

test("neighbouring cells of one colour are one outline, and empty ones have none", () => {
  const rows = [[1, 1, 2], [0, 2, 2]];
  const paths = cellPaths(rows, (kind) => kind || null, 10, 5);
  expect([...paths]).toEqual([[1, "M0,0H20V5H0z"], [2, "M20,0H30V5H20zM10,5H30V10H10z"]]);
  expect(cellPaths(rows, (kind) => kind || null, 10, 5, false).get(1)).toBe("M0,0H10V5H0zM10,0H20V5H10z");
});
