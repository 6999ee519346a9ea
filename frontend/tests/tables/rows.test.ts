import { describe, expect, test } from "vitest";
import type { NumberColumn, TextColumn } from "../../src/data";
import { cellText, cellTip, csv, matches, sorted } from "../../src/tables/rows";
import { barRange } from "../../src/tables/table";

const numbers: NumberColumn = { label: "entropy", number: true, digits: 2, values: [0.5, null, 2, 0.5, -1], low: [0.4, null, 1, 0.4, -2], high: [0.6, null, 3, 0.6, 0], null: 1 };
const words: TextColumn = { label: "token", number: false, values: ["b", "</td>", 'say "a", b', null, "\n"] };

describe("sorting", () => {
  test("missing values come last either way, equal ones keep their order", () => {
    expect(sorted([0, 1, 2, 3, 4], numbers, true)).toEqual([2, 0, 3, 4, 1]);
    expect(sorted([0, 1, 2, 3, 4], numbers, false)).toEqual([4, 0, 3, 2, 1]);
  });
  test("words are sorted as words", () => expect(sorted([0, 1, 2, 3], words, false)).toEqual([1, 0, 2, 3]));
  test("the rows that were given are left alone", () => {
    const rows = [0, 1, 2];
    sorted(rows, numbers, true);
    expect(rows).toEqual([0, 1, 2]);
  });
});

describe("filtering", () => {
  const none = () => [];
  test.each([["l3", "L3.H7", true], ["l3", "L30.H7", false], ["l3.h7", "L3.H7", true], ["l3.h7", "L3.H70", false], ["l3", "dec.L3.cross.H1", true], ["dec.l3", "dec.L3.H1", true], ["l3.cross", "dec.L3.cross.H1", true]])(
    "%s in %s: %s", (word, label, expected) => expect(matches([word], label, none)).toBe(expected));
  test("all words must be there", () => {
    expect(matches(["ab", "cd"], "", () => ["xaby", "cd"])).toBe(true);
    expect(matches(["ab", "ef"], "", () => ["xaby", "cd"])).toBe(false);
  });
});

describe("cells", () => {
  test("a missing number is a dash, an invisible character is shown", () => {
    expect(cellText(numbers, 1)).toBe("–");
    expect(cellText(words, 3)).toBe("–");
    expect(cellText(words, 4)).toBe("␊");
  });
  test("a tip has the interval and the null", () => {
    expect(cellTip(numbers, 0)).toBe("entropy: 0.50\n95 % interval 0.40 to 0.60\nnull 1.00");
    expect(cellTip({ ...numbers, nulls: [7, 7, 7, 7, 7] }, 0)).toContain("null 7.00");
  });
  test("bars begin at 0 and need something to compare", () => {
    expect(barRange({ ...numbers, values: [0, 1, 4] })).toEqual([0, 4]);
    expect(barRange(numbers)).toBeNull();
    expect(barRange({ ...numbers, values: [2, 2, 2] })).toBeNull();
    expect(barRange(words)).toBeNull();
  });
});

test("CSV quotes what it must and keeps intervals", () => {
  const text = csv(["L0", "L1", "L2", "L3", "L4"], [numbers, words]);
  const lines = text.split("\r\n");
  expect(lines[0]).toBe("place,entropy,entropy (low),entropy (high),token");
  expect(lines[2]).toBe("L1,,,,</td>");
  expect(lines[3]).toBe('L2,2,1,3,"say ""a"", b"');
  expect(lines[5]).toBe("L4,-1,-2,0,\"\n\"");
});
