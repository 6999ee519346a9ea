import { expect, test } from "vitest";
import { cell, count, decimals, linearTicks, logTick, number, visible } from "../../src/drawing/numbers";
import cases from "../number_formats.json";

// `tests/report/test_frontend.py` holds the same file against headscope/core/numbers.py.
const value = (text: number | string): number => Number(text);

test.each(cases.number as [number | string, string][])("%s is written %s", (input, output) => {
  expect(number(value(input))).toBe(output);
});

test.each(cases.cell as [number | string, number | null, string][])("%s with %s decimals is written %s", (input, digits, output) => {
  expect(cell(value(input), digits)).toBe(output);
});

test.each(cases.decimals as [(number | string)[], number | null][])("%j have %s decimals", (input, output) => {
  expect(decimals(input.map(value))).toBe(output);
});

test("a missing value is a dash", () => {
  expect([number(null), cell(null, 2)]).toEqual(["–", "–"]);
});

test("thousands are apart from five digits on", () => {
  expect([9999, 10_000, -1_234_567].map(count)).toEqual(["9999", "10\u202f000", "−1\u202f234\u202f567"]);
});

test("ticks of a logarithmic axis", () => {
  expect([1e-5, 2e-4, 0.001, 0.3, 300, 1000, 1e4, 5e7].map(logTick)).toEqual(
    ["10⁻⁵", "2×10⁻⁴", "0.001", "0.3", "300", "1000", "10⁴", "5×10⁷"],
  );
});

test("ticks of a linear axis have the decimals that tell them apart", () => {
  expect(linearTicks([0, 0.1, 0.2, 0.30000000000000004])).toEqual(["0.0", "0.1", "0.2", "0.3"]);
  expect(linearTicks([-0.05, 0, 0.05])).toEqual(["−0.05", "0.00", "0.05"]);
  expect(linearTicks([0, 20000, 40000])).toEqual(["0", "20\u202f000", "40\u202f000"]);
  expect(linearTicks([0, 2e-5, 4e-5])).toEqual(["0", "2×10⁻⁵", "4×10⁻⁵"]);
  expect(linearTicks([9e6, 1e7, 1.1e7])).toEqual(["9.0×10⁶", "1.0×10⁷", "1.1×10⁷"]);
  expect(linearTicks([])).toEqual([]);
});

test("what cannot be seen is replaced", () => {
  expect(visible("a\n\u0000\u007f\u0080\ud800b🙂")).toBe("a␊␀␡��b🙂");
});
