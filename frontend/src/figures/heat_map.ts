/** A heat map: one cell for each number, colours that diverge from the null. */

import type { HeatMap, Numbers } from "../data";
import { drawColourBar, nullRoom } from "../drawing/colour_bar";
import { type ColourScale, scaleOf } from "../drawing/colour";
import { number, visible } from "../drawing/numbers";
import { fitted, FONT_SIZE, pointIn, setAttributes, short, svg, text, textWidth, TRANSIENT } from "../drawing/svg";
import { tipOver } from "../drawing/tooltip";
import { cellPaths, heatRows } from "./map_values";

const LONGEST_LABEL = 150; // pixels
const BAR_LABELS = 62; // room for the ticks and the unit of the colour bar
const AIRY = 1.4;
const STEPS = [1, 2, 4, 5, 10, 20, 50, 100, 200, 500, 1000];

interface Frame {
  readonly left: number;
  readonly top: number;
  readonly width: number; // of a cell
  readonly height: number;
  readonly rows: number;
  readonly columns: number;
}

export function drawHeatMap(figure: HeatMap, sheet: SVGSVGElement): void {
  const rows = heatRows(figure);
  const scale = scaleOf(rows.flat(), figure);
  const frame = frameOf(figure, scale);
  const cells = svg("g", { transform: `translate(${short(frame.left)},${short(frame.top)})` });
  const size = { width: frame.width * frame.columns, height: frame.height * frame.rows };
  cells.append(svg("rect", { ...size, fill: "none", stroke: "var(--hs-grid)" }));
  sheet.append(cells);
  if (scale === null) {
    cells.append(text("no value", { x: size.width / 2, y: size.height / 2, "text-anchor": "middle", fill: "var(--hs-muted)" }));
  } else {
    cells.append(paint(rows, scale, frame));
    const place = { x: frame.left + size.width + nullRoom(scale), y: 8, height: Math.max(size.height, figure.height - 18) };
    sheet.append(drawColourBar(scale, place, figure.unit, singleValue(figure, rows)));
  }
  if (figure.panels === null) drawLabels(sheet, figure, frame);
  else drawPanelNames(sheet, figure.panels, frame);
  drawAxisNames(sheet, figure, frame);
  showValues(sheet, cells, figure, rows, frame);
}

/** The place of the cells in the sheet: what the labels and the colour bar leave. */
function frameOf(figure: HeatMap, scale: ColourScale | null): Frame {
  const [rows, columns] = [figure.row_labels.length, figure.column_labels.length];
  const names = figure.panels === null ? figure.row_labels : figure.panels[0];
  const left = FONT_SIZE + 12 + Math.min(LONGEST_LABEL, Math.max(...names.map((label) => textWidth(label)), 0));
  const right = scale === null ? 10 : nullRoom(scale) + 9 + BAR_LABELS;
  const [top, below] = figure.panels === null ? [6, 0] : [FONT_SIZE + 10, FONT_SIZE + 10];
  const room = figure.width - left - right;
  if (figure.panels !== null) {
    const side = Math.min(room / columns, (figure.height - top - below) / rows);
    return { left, top, width: side, height: side, rows, columns };
  }
  const width = room / columns;
  const labels = isUpright(figure.column_labels, width) ? Math.min(LONGEST_LABEL, longest(figure.column_labels)) : FONT_SIZE;
  return { left, top, width, height: (figure.height - top - labels - FONT_SIZE - 14) / rows, rows, columns };
}

function longest(labels: readonly string[]): number {
  return Math.max(...labels.map((label) => textWidth(label)), 0);
}

function isUpright(labels: readonly string[], width: number): boolean {
  return labels.some((label) => label.length > 3) && longest(labels) + 4 > width;
}

function paint(rows: readonly Numbers[], scale: ColourScale, frame: Frame): SVGGElement {
  const group = svg("g", { "shape-rendering": "crispEdges" });
  // Infinite numbers have no place on the scale and stay empty, like missing ones.
  const level = (value: number | null) => (value === null || !Number.isFinite(value) ? null : scale.level(value));
  for (const [colour, d] of cellPaths(rows, level, frame.width, frame.height)) {
    group.append(svg("path", { d, fill: `var(--hs-${scale.family}${colour})` }));
  }
  return group;
}

/** The value of a map whose cells are all the same and that has no other scale. */
function singleValue(figure: HeatMap, rows: readonly Numbers[]): number | null {
  if (figure.limits !== null || figure.reference !== null) return null;
  const values = new Set(rows.flat().filter((value) => value !== null && Number.isFinite(value)));
  return values.size === 1 ? ([...values][0] ?? null) : null;
}

function drawLabels(sheet: SVGSVGElement, figure: HeatMap, frame: Frame): void {
  const upright = isUpright(figure.column_labels, frame.width);
  const bottom = frame.top + frame.height * frame.rows;
  for (const row of everySome(frame.rows, frame.height, FONT_SIZE + 1)) {
    const y = frame.top + (row + 0.5) * frame.height + FONT_SIZE * 0.36;
    sheet.append(text(fitted(figure.row_labels[row]!, LONGEST_LABEL), { x: frame.left - 5, y, "text-anchor": "end" }));
  }
  const across = upright ? FONT_SIZE + 1 : longest(figure.column_labels) + 5;
  for (const column of everySome(frame.columns, frame.width, across)) {
    const x = frame.left + (column + 0.5) * frame.width;
    const place = upright
      ? { transform: `translate(${short(x + FONT_SIZE * 0.36)},${short(bottom + 5)})rotate(-90)`, "text-anchor": "end" }
      : { x, y: bottom + FONT_SIZE + 4, "text-anchor": "middle" };
    sheet.append(text(fitted(figure.column_labels[column]!, LONGEST_LABEL), place));
  }
}

/** The labelled positions: all where they fit, or every 2nd, 4th, 5th … with air between them. */
export function everySome(amount: number, size: number, spacing: number): number[] {
  if (size >= spacing) return Array.from({ length: amount }, (_, index) => index);
  const step = STEPS.find((candidate) => candidate * size >= spacing * AIRY) ?? amount;
  return Array.from({ length: Math.ceil(amount / step) }, (_, index) => index * step);
}

/** The name of each map of a grid at the middle of its side; those of the columns are above. */
function drawPanelNames(sheet: SVGSVGElement, panels: readonly [readonly string[], readonly string[]], frame: Frame): void {
  const [rowNames, columnNames] = panels;
  const side = (amount: number, names: readonly string[]) => (amount - names.length + 1) / names.length;
  const [high, wide] = [side(frame.rows, rowNames), side(frame.columns, columnNames)];
  rowNames.forEach((name, index) => {
    const y = frame.top + (index * (high + 1) + high / 2) * frame.height + FONT_SIZE * 0.36;
    sheet.append(text(fitted(name, LONGEST_LABEL), { x: frame.left - 5, y, "text-anchor": "end" }));
  });
  columnNames.forEach((name, index) => {
    const x = frame.left + (index * (wide + 1) + wide / 2) * frame.width;
    sheet.append(text(fitted(name, wide * frame.width + 4), { x, y: frame.top - 5, "text-anchor": "middle" }));
  });
}

function drawAxisNames(sheet: SVGSVGElement, figure: HeatMap, frame: Frame): void {
  const [wide, high] = [frame.width * frame.columns, frame.height * frame.rows];
  const y = frame.top + high / 2;
  const below = figure.panels === null ? figure.height - 4 : frame.top + high + FONT_SIZE + 5;
  sheet.append(
    text(fitted(figure.column_axis, wide + 80), { x: frame.left + wide / 2, y: below, "text-anchor": "middle" }),
    text(fitted(figure.row_axis, Math.max(high, 60)), { "text-anchor": "middle", transform: `translate(${FONT_SIZE},${short(y)})rotate(-90)` }),
  );
}

/** Shows the value of the cell under the pointer. */
function showValues(sheet: SVGSVGElement, cells: SVGGElement, figure: HeatMap, rows: readonly Numbers[], frame: Frame): void {
  const size = { width: frame.width * frame.columns, height: frame.height * frame.rows };
  const outline = svg("rect", { class: TRANSIENT, width: frame.width, height: frame.height, fill: "none", stroke: "var(--hs-ink)", "stroke-width": 1.4, visibility: "hidden", "pointer-events": "none" });
  const cover = svg("rect", { class: TRANSIENT, ...size, fill: "transparent" });
  cells.append(outline, cover);
  tipOver(cover, (event) => {
    const [x, y] = pointIn(sheet, event);
    const column = Math.min(frame.columns - 1, Math.max(0, Math.floor((x - frame.left) / frame.width)));
    const row = Math.min(frame.rows - 1, Math.max(0, Math.floor((y - frame.top) / frame.height)));
    const words = wordsOf(figure, row, column, rows[row]?.[column] ?? null);
    setAttributes(outline, { x: column * frame.width, y: row * frame.height, visibility: words === null ? "hidden" : "visible" });
    return words;
  });
  cover.addEventListener("pointerleave", () => outline.setAttribute("visibility", "hidden"));
}

/** A cell in words: `L3.H7: 0.42 nats`; nothing between the maps of a grid. */
export function wordsOf(figure: HeatMap, row: number, column: number, value: number | null): string | null {
  const [first, second] = [visible(figure.row_labels[row] ?? ""), visible(figure.column_labels[column] ?? "")];
  if (figure.panels !== null && (first === "" || second === "") && value === null) return null;
  const unit = figure.unit && value !== null ? ` ${visible(figure.unit)}` : "";
  return `${panelName(figure, row, column)}${cellName(figure, first, second)}: ${value === null ? "no value" : number(value)}${unit}`;
}

function cellName(figure: HeatMap, first: string, second: string): string {
  if (figure.row_axis === "layer" && figure.column_axis === "head") {
    const named = (letter: string, label: string) => (/^\d+$/.test(label) ? letter + label : label);
    return `${named("L", first)}.${named("H", second)}`;
  }
  return `${figure.row_axis} ${first}, ${figure.column_axis} ${second}`;
}

function panelName(figure: HeatMap, row: number, column: number): string {
  if (figure.panels === null) return "";
  const index = (place: number, amount: number, names: readonly string[]) => Math.floor((place * names.length) / (amount + 1));
  const [rowNames, columnNames] = figure.panels;
  const names = [rowNames[index(row, figure.row_labels.length, rowNames)], columnNames[index(column, figure.column_labels.length, columnNames)]];
  const name = names.filter(Boolean).join(" ");
  return name ? `${visible(name)}\n` : "";
}
