import { describe, expect, test } from "vitest";
import type { LensEntry } from "../../src/data";
import { results } from "../../src/navigation/search";
import { ATLAS } from "../example";

const LENSES: LensEntry[] = [
  { lens: "focus", title: "Focus of the attention heads", question: "Where does each head look?", anchor: "lens-focus" },
  { lens: "first-aid", title: "Another", question: "None", anchor: "lens-first-aid" },
];
const titles = (words: string) => results(words, ATLAS, LENSES).map(({ title }) => title);

describe("the search", () => {
  test.each([["dec.L1.H2"], ["l1h2"], ["1.2"], ["1 2"]])("%s finds the head", (words) => {
    expect(titles(words)[0]).toBe("dec.L1.H2");
  });
  test("cross-attention is asked for by its name", () => {
    expect(titles("l1 cross 1")).toEqual(["dec.L1.cross.H1"]);
    expect(titles("1.1")).toEqual(["dec.L1.H1", "dec.L1.cross.H1"]);
  });
  test("a layer gives its heads", () => expect(titles("L0")).toEqual(["dec.L0.H0", "dec.L0.H1", "dec.L0.H2"]));
  test("names that begin with the words come first", () => {
    expect(titles("first")[0]).toBe("first-aid: Another");
    expect(titles("first")).toContain("mass on the first token (focus)");
  });
  test("a quantity colours the atlas", () => {
    expect(results("mean dist", ATLAS, LENSES)[0]).toEqual({ title: "mean distance (focus)", kind: "quantity", place: "overview", colour: "focus.distance" });
  });
  test("signs of regular expressions are letters", () => expect(titles("(.*")).toEqual([]));
  test("nothing finds nothing", () => expect(titles("  ")).toEqual([]));
  test("a page without heads still finds lenses", () => expect(results("focus", null, LENSES)).toHaveLength(1));
});
