import { describe, expect, test } from "vitest";
import { passes } from "../../src/tables/filters";
import { ATLAS } from "../example";

const passing = (...filters: Parameters<typeof passes>[1]) => ATLAS.heads.flatMap((_, head) => (passes(ATLAS, filters, head) ? [head] : []));

describe("filters of heads", () => {
  test("a range has both ends in it", () => expect(passing({ key: "focus.first", low: 0.2, high: 0.4 })).toEqual([1, 2, 3]));
  test("a head without the number does not pass", () => expect(passing({ key: "focus.first", low: 0, high: null })).not.toContain(5));
  test("an empty range and an unknown quantity let everything pass", () => {
    expect(passing({ key: "focus.first", low: null, high: null })).toHaveLength(8);
    expect(passing({ key: "gone", low: 1, high: 2 })).toHaveLength(8);
  });
  test("all filters hold", () => expect(passing({ key: "focus.first", low: 0.2, high: null }, { key: "focus.distance", low: null, high: 4 })).toEqual([1, 2]));
});
