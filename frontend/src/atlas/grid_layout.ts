/** Where the cells of heads lie in the atlas. */

import type { Head, Panel } from "../data";

export interface Cell {
  readonly head: number; // its place in the atlas
  readonly row: number;
  readonly column: number;
}

export interface PanelLayout {
  readonly panel: Panel;
  readonly cells: readonly Cell[];
  readonly width: number; // of a cell, in pixels
  readonly height: number;
  readonly left: number; // the room for the labels of layers
  readonly top: number; // and of heads
}

const WIDEST = 62;
const TALLEST = 58;
const LEFT = 34;
const TOP = 18;

/** The panels, in cells as large as fit: side by side in the width, one below the other where they would be too small. */
export function layouts(panels: readonly Panel[], heads: readonly Head[], width: number, height: number): PanelLayout[] {
  const columns = panels.reduce((total, panel) => total + panel.columns, 0);
  const room = width - panels.length * (LEFT + 8);
  const isSideBySide = panels.length === 1 || room / columns >= 14;
  const cellWidth = Math.floor(Math.min(WIDEST, isSideBySide ? room / columns : Math.min(...panels.map((panel) => (width - LEFT) / panel.columns))));
  return panels.map((panel, place) => {
    const rows = panel.layers.length;
    return {
      panel,
      cells: cellsOf(panel, place, heads),
      width: Math.max(5, cellWidth),
      height: Math.max(6, Math.floor(Math.min(TALLEST, (height - TOP) / rows))),
      left: LEFT,
      top: TOP,
    };
  });
}

function cellsOf(panel: Panel, place: number, heads: readonly Head[]): Cell[] {
  const rows = new Map(panel.layers.map((layer, row) => [layer, row]));
  return heads.flatMap((head, index) => (head.panel === place ? [{ head: index, row: rows.get(head.layer) ?? 0, column: head.head }] : []));
}

/** The head at a point of a panel; null where there is none. */
export function headAt(layout: PanelLayout, x: number, y: number): number | null {
  const [column, row] = [Math.floor((x - layout.left) / layout.width), Math.floor((y - layout.top) / layout.height)];
  return layout.cells.find((cell) => cell.row === row && cell.column === column)?.head ?? null;
}

/** The next head in a direction; the same head at the edge. */
export function neighbour(panels: readonly PanelLayout[], head: number, key: string): number {
  const cells = panels.flatMap((layout, panel) => layout.cells.map((cell) => ({ ...cell, panel })));
  const here = cells.find((cell) => cell.head === head);
  if (here === undefined) return cells[0]?.head ?? head;
  const steps: Record<string, readonly [number, number]> = {
    ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
  };
  const step = steps[key];
  if (step === undefined) return head;
  const at = (panel: number, row: number, column: number) =>
    cells.find((cell) => cell.panel === panel && cell.row === row && cell.column === column)?.head;
  const inside = at(here.panel, here.row + step[0], here.column + step[1]);
  if (inside !== undefined || step[1] === 0) return inside ?? head;
  // Beyond the edge of a panel lies the next one.
  const beside = here.panel + step[1];
  const last = panels[beside]?.panel.columns;
  return last === undefined ? head : (at(beside, here.row, step[1] > 0 ? 0 : last - 1) ?? head);
}
