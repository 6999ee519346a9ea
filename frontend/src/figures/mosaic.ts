/** A map of kinds: one coloured cell for each pair, and a legend. */

import type { Mosaic } from "../data";
import { LEVELS, seriesColour } from "../drawing/colour";
import { drawLegend } from "../drawing/legend";
import { count } from "../drawing/numbers";
import { fitted, FONT_SIZE, pointIn, short, svg, text, textWidth, TRANSIENT } from "../drawing/svg";
import { linearPlaces } from "../drawing/ticks";
import { tipOver } from "../drawing/tooltip";
import { cellPaths, kindRows } from "./map_values";

const GRID_UP_TO = 64; // cells on a side; with more the lines would hide them

export function drawMosaic(figure: Mosaic, sheet: SVGSVGElement): void {
  const rows = kindRows(figure);
  const columns = rows[0]?.length ?? 0;
  const colours = kindColours(figure.kinds.length, figure.ordered);
  const top = drawKinds(sheet, figure.kinds, colours, figure.width) + 4;
  const left = FONT_SIZE + 14 + textWidth(count(rows.length));
  const bottom = 2 * FONT_SIZE + 12;
  const side = Math.min((figure.width - left - 8) / columns, (figure.height - top - bottom) / rows.length);
  const [wide, high] = [side * columns, side * rows.length];
  const cells = svg("g", { transform: `translate(${short(left)},${short(top)})` });
  const hasLines = Math.max(rows.length, columns) <= GRID_UP_TO;
  const line = hasLines ? { stroke: "var(--hs-grid)", "stroke-width": 0.5 } : { "shape-rendering": "crispEdges" };
  for (const [kind, d] of cellPaths(rows, (kind) => kind || null, side, side, !hasLines)) {
    cells.append(svg("path", { d, fill: colours[kind - 1] ?? "none", ...line }));
  }
  cells.append(svg("rect", { width: wide, height: high, fill: "none", stroke: "var(--hs-muted)" }));
  sheet.append(cells);
  drawAxes(sheet, figure, left, top, side, rows.length, columns);
  const cover = svg("rect", { class: TRANSIENT, width: wide, height: high, fill: "transparent" });
  cells.append(cover);
  tipOver(cover, (event) => {
    const [x, y] = pointIn(sheet, event);
    const [row, column] = [Math.floor((y - top) / side), Math.floor((x - left) / side)];
    const kind = rows[row]?.[column];
    if (kind === undefined) return null;
    return `${figure.row_axis} ${row}, ${figure.column_axis} ${column}: ${figure.kinds[kind - 1] ?? "nothing"}`;
  });
}

/** One colour for each kind: distinct ones, or evenly along a scale, dark first. */
export function kindColours(amount: number, ordered: boolean): string[] {
  return Array.from({ length: amount }, (_, index) => {
    if (!ordered) return seriesColour(index);
    return `var(--hs-v${Math.round((LEVELS - 1) * (0.12 + (0.8 * index) / Math.max(amount - 1, 1)))})`;
  });
}

/** Draws the names of the kinds above the panel and returns the height that they take. */
export function drawKinds(sheet: SVGSVGElement, kinds: readonly string[], colours: readonly string[], width: number): number {
  return drawLegend(sheet, kinds.map((label, index) => ({ label, colour: colours[index]!, form: "box" as const })), 4, width - 4);
}

function drawAxes(sheet: SVGSVGElement, figure: Mosaic, left: number, top: number, side: number, rows: number, columns: number): void {
  const [wide, high] = [side * columns, side * rows];
  const amount = (length: number) => Math.max(1, length / 45);
  for (const row of linearPlaces(0, rows - 1, amount(high), { whole: true })) {
    sheet.append(text(count(row), { x: left - 5, y: top + (row + 0.5) * side + FONT_SIZE * 0.36, "text-anchor": "end" }));
  }
  for (const column of linearPlaces(0, columns - 1, amount(wide), { whole: true })) {
    sheet.append(text(count(column), { x: left + (column + 0.5) * side, y: top + high + FONT_SIZE + 3, "text-anchor": "middle" }));
  }
  sheet.append(
    text(fitted(figure.column_axis, wide), { x: left + wide / 2, y: top + high + 2 * FONT_SIZE + 8, "text-anchor": "middle" }),
    text(fitted(figure.row_axis, Math.max(high, 60)), { "text-anchor": "middle", transform: `translate(${FONT_SIZE},${short(top + high / 2)})rotate(-90)` }),
  );
}
