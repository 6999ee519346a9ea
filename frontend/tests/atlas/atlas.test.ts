import { describe, expect, test } from "vitest";
import { headAt, layouts, neighbour } from "../../src/atlas/grid_layout";
import { headColours, innerRange } from "../../src/atlas/head_colours";
import { pointsOf } from "../../src/atlas/spark";
import { LEVELS } from "../../src/drawing/colour";
import { ATLAS, quantity } from "../example";

const PANELS = layouts(ATLAS.panels, ATLAS.heads, 500, 400);

describe("the grid", () => {
  test("every head has one cell, and is found there", () => {
    const heads = PANELS.flatMap((layout) => layout.cells.map((cell) => {
      const [x, y] = [layout.left + (cell.column + 0.5) * layout.width, layout.top + (cell.row + 0.5) * layout.height];
      expect(headAt(layout, x, y)).toBe(cell.head);
      return cell.head;
    }));
    expect(heads).toEqual(ATLAS.heads.map((_, head) => head));
  });
  test("labels are no heads", () => expect(headAt(PANELS[0]!, 3, 3)).toBeNull());
  test("panels fit the width", () => {
    for (const width of [300, 500, 1200]) {
      const total = layouts(ATLAS.panels, ATLAS.heads, width, 400).reduce((sum, { left, width: cell, panel }) => sum + left + cell * panel.columns + 8, 0);
      expect(total).toBeLessThanOrEqual(width);
    }
  });
  test("a deep model fits the height", () => {
    const panel = { title: "", layers: Array.from({ length: 80 }, (_, layer) => layer), columns: 64, causal: true };
    const [layout] = layouts([panel], [], 600, 520);
    expect(layout!.height * 80).toBeLessThanOrEqual(520);
    expect(layout!.width * 64 + layout!.left).toBeLessThanOrEqual(600);
  });
  test.each([[0, "ArrowRight", 1], [0, "ArrowDown", 3], [3, "ArrowUp", 0], [0, "ArrowLeft", 0], [2, "ArrowRight", 6], [6, "ArrowLeft", 2], [5, "ArrowDown", 5], [0, "Tab", 0]])(
    "from head %i %s leads to %i", (head, key, expected) => expect(neighbour(PANELS, head, key)).toBe(expected));
});

describe("colours of heads", () => {
  test("the null has the colour in the middle", () => {
    const { scale } = headColours(quantity())!;
    expect(scale.family).toBe("d");
    expect(Math.abs(scale.level(0.2)! - LEVELS / 2)).toBeLessThanOrEqual(1);
  });
  test("without a null colours run from low to high", () => expect(headColours(quantity({ nulls: null }))!.scale.family).toBe("v"));
  test("heads with nulls of their own are compared with these", () => {
    const relative = headColours(quantity({ values: [1, 2, 3], nulls: [1, 1, 4] }))!;
    expect(relative.isRelative).toBe(true);
    expect(relative.shades).toEqual([0, 1, -1]);
    const ratio = headColours(quantity({ values: [1, 2, 3], nulls: [1, 4, 3], scale: "log" }))!;
    expect(ratio.shades).toEqual([1, 0.5, 1]);
  });
  test("no number, no colours", () => expect(headColours(quantity({ values: [null, null] }))).toBeNull());
  test("a few extreme heads leave the scale, and the bar says so", () => {
    const values = [...Array.from({ length: 99 }, (_, index) => index / 100), 1000];
    const colours = headColours(quantity({ values, nulls: null }))!;
    expect(colours.scale.high).toBeLessThan(1);
    expect(colours.isCut).toEqual([true, true]);
    expect(innerRange([1, 2, 1000])).toBeNull();
  });
});

test("points of a curve share places and leave out what cannot be placed", () => {
  const curve = (more: object) => ({ label: "", x: [1, 10, 100], y: [1, null, 100], low: null, high: null, role: "measured" as const, points: false, ...more });
  expect(pointsOf(curve({}), [], true, true)).toEqual([[0, 0], [2, 2]]);
  expect(pointsOf(curve({ x: 0, y: [0, 2, 3] }), [curve({})], false, true)).toEqual([[10, Math.log10(2)], [100, Math.log10(3)]]);
});
