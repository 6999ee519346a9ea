import { describe, expect, test } from "vitest";
import type { Range } from "../../src/navigation/address";
import { passes } from "../../src/tables/filters";
import { ATLAS } from "../example";

const shown = (role: string | null, filters: readonly Range[]) => ATLAS.heads.flatMap((_, head) => (passes(ATLAS, { role, filters }, head) ? [head] : []));
const passing = (...filters: readonly Range[]) => shown(null, filters);

describe("filters of heads", () => {
  test("a range has both ends in it", () => expect(passing({ key: "focus.first", low: 0.2, high: 0.4 })).toEqual([1, 2, 3]));
  test("a head without the number does not pass", () => expect(passing({ key: "focus.first", low: 0, high: null })).not.toContain(5));
  test("an empty range and an unknown quantity let everything pass", () => {
    expect(passing({ key: "focus.first", low: null, high: null })).toHaveLength(8);
    expect(passing({ key: "gone", low: 1, high: 2 })).toHaveLength(8);
  });
  test("a role leaves the heads that have it", () => {
    expect(shown("induction head", [])).toEqual([4, 5]);
    expect(shown("induction head", [{ key: "focus.first", low: 0, high: 1 }])).toEqual([4]);
    expect(shown("no role of this model", [])).toEqual([]);
  });
  test("all filters hold", () => expect(passing({ key: "focus.first", low: 0.2, high: null }, { key: "focus.distance", low: null, high: 4 })).toEqual([1, 2]));
});
