/** A panel with two axes: drawn by Observable Plot, with values under the pointer and zoom by dragging. */

import { axisX, axisY, gridX, gridY, type Markish, plot } from "@observablehq/plot";
import { linearTicks, logTick } from "../drawing/numbers";
import { fitted, FONT_SIZE, pointIn, short, svg, text, textWidth, TRANSIENT } from "../drawing/svg";
import { linearPlaces, logPlaces } from "../drawing/ticks";
import { hideTip, showTip } from "../drawing/tooltip";

export type Range = readonly [number, number];

export interface Axis {
  readonly label: string;
  readonly range: Range;
  readonly log: boolean;
  readonly whole?: boolean; // ticks at whole numbers only
}

/** A point that the pointer can find, in the units of the axes. */
export interface Spot {
  readonly x: number;
  readonly y: number;
  readonly words: string;
  readonly colour: string;
}

/** A position of the horizontal axis with a name, which is written above the panel. */
export interface Flag {
  readonly label: string;
  readonly x: number;
}

export interface Chart {
  readonly x: Axis;
  readonly y: Axis;
  readonly marks: readonly Markish[];
  readonly spots: readonly Spot[];
  readonly flags?: readonly Flag[];
}

export interface Box {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
}

const TICK = 4;
const FLAG_LINE = 14;
const FLAG_SIZE = FONT_SIZE - 0.5;
const SMALLEST_DRAG = 6; // pixels; less is a click

/**
 * Draws a chart into a box of a sheet and draws it again for the part that is dragged over.
 *
 * `chartOf` gives the chart of a range of the horizontal axis; null stands for everything.
 */
export function drawChart(sheet: SVGSVGElement, box: Box, chartOf: (range: Range | null) => Chart): void {
  const layer = svg("g");
  sheet.append(layer);
  const draw = (range: Range | null) => {
    const chart = chartOf(range);
    const panel = drawPanel(layer, box, chart);
    if (range !== null) layer.append(resetButton(panel.frame, () => draw(null)));
    watch(sheet, panel, chart, draw);
  };
  draw(null);
}

interface Panel {
  readonly layer: SVGGElement;
  readonly frame: Box; // the box of the panel without its labels
  readonly xOf: (value: number) => number;
  readonly yOf: (value: number) => number;
  readonly xAt: (pixel: number) => number;
}

function drawPanel(layer: SVGGElement, box: Box, { x, y, marks, flags = [] }: Chart): Panel {
  const yPlaces = placesOf(y, (box.bottom - box.top) / 42);
  const yLabels = labelsOf(y, yPlaces);
  const left = Math.max(...yLabels.map((label) => textWidth(label)), 8) + TICK + FONT_SIZE + 14;
  const right = rightMargin(x, box.right - box.left - left);
  const placed = placedFlags(flags, x, box.left + left, box.right - right, box.right);
  const top = placed.reduce((most, flag) => Math.max(most, flag.row + 1), 0) * FLAG_LINE + 5;
  const bottom = FONT_SIZE * 2 + 18;
  const xPlaces = placesOf(x, (box.right - box.left - left) / 52);
  const xLabels = labelsOf(x, xPlaces);
  const style = { tickSize: TICK, color: "var(--hs-muted)", textStroke: "none" };
  const chart = plot({
    width: box.right - box.left, height: box.bottom - box.top,
    marginLeft: left, marginBottom: bottom, marginTop: top, marginRight: right,
    x: { type: x.log ? "log" : "linear", domain: [...x.range], label: null },
    y: { type: y.log ? "log" : "linear", domain: [...y.range], label: null },
    marks: [
      gridX(xPlaces, { stroke: "var(--hs-grid)", strokeOpacity: 1 }),
      gridY(yPlaces, { stroke: "var(--hs-grid)", strokeOpacity: 1 }),
      ...marks,
      axisX(xPlaces, { ...style, text: labelled(xPlaces, xLabels) }),
      axisY(yPlaces, { ...style, text: labelled(yPlaces, yLabels) }),
    ],
  }) as SVGSVGElement & { scale: (name: "x" | "y") => { apply: (value: number) => number; invert: (pixel: number) => number } };
  const frame = { left: box.left + left, top: box.top + top, right: box.right - right, bottom: box.bottom - bottom };
  layer.replaceChildren(adopted(chart, box), frameOf(frame), ...titlesOf(box, frame, x, y), ...placed.flatMap((flag) => flagOf(flag, frame)));
  const [xs, ys] = [chart.scale("x"), chart.scale("y")];
  return {
    layer, frame,
    xOf: (value) => box.left + xs.apply(value),
    yOf: (value) => box.top + ys.apply(value),
    xAt: (pixel) => xs.invert(pixel - box.left),
  };
}

interface PlacedFlag extends Flag {
  readonly left: number;
  readonly middle: number; // of its name
  readonly row: number;
}

/** The flags within the range, in rows in which no two names overlap. */
export function placedFlags(flags: readonly Flag[], axis: Axis, left: number, right: number, edge: number): PlacedFlag[] {
  const measure = axis.log ? Math.log : (value: number) => value;
  const [low, high] = axis.range.map(measure) as [number, number];
  const ends: number[] = []; // where the last name of each row ends
  return flags
    .filter(({ x }) => x >= axis.range[0] && x <= axis.range[1])
    .sort((a, b) => a.x - b.x)
    .map((flag) => {
      const place = left + ((measure(flag.x) - low) / (high - low)) * (right - left);
      const half = textWidth(flag.label, FLAG_SIZE) / 2;
      const middle = Math.max(half, Math.min(edge - half, place));
      const free = ends.findIndex((end) => middle - half > end + 6);
      const row = free < 0 ? ends.length : free;
      ends[row] = middle + half;
      return { ...flag, left: place, middle, row };
    });
}

function flagOf({ label, left, middle, row }: PlacedFlag, frame: Box): SVGElement[] {
  return [
    svg("path", { d: `M${short(left)},${short(frame.top)}V${short(frame.bottom)}`, stroke: "var(--hs-ink)", "stroke-dasharray": "1.5 2" }),
    text(label, { x: middle, y: frame.top - 4 - row * FLAG_LINE, "text-anchor": "middle", "font-size": FLAG_SIZE, fill: "var(--hs-ink)" }),
  ];
}

/** The content of Plot's drawing as a group: its own style sheet would not survive in a saved file. */
function adopted(chart: SVGSVGElement, box: Box): SVGGElement {
  chart.querySelector("style")?.remove();
  const group = svg("g", { transform: `translate(${short(box.left)},${short(box.top)})`, "text-anchor": "middle" });
  group.append(...chart.childNodes);
  for (const label of group.querySelectorAll("[aria-label$='tick label']")) {
    label.setAttribute("fill", "var(--hs-ink)");
    label.setAttribute("font-size", String(FONT_SIZE));
    label.removeAttribute("font-variant");
  }
  return group;
}

function frameOf({ left, top, right, bottom }: Box): SVGElement {
  return svg("path", { d: `M${short(left)},${short(top)}V${short(bottom)}H${short(right)}`, fill: "none", stroke: "var(--hs-muted)" });
}

function titlesOf(box: Box, frame: Box, x: Axis, y: Axis): SVGElement[] {
  const [middle, centre] = [(frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2];
  const style = { "text-anchor": "middle", fill: "var(--hs-ink)" };
  return [
    text(fitted(x.label, 2 * Math.min(middle - box.left, box.right - middle)), { ...style, x: middle, y: box.bottom - 5 }),
    text(fitted(y.label, box.bottom - box.top), {
      ...style, transform: `translate(${short(box.left + FONT_SIZE)},${short(centre)})rotate(-90)`,
    }),
  ];
}

function placesOf({ range: [low, high], log, whole = false }: Axis, amount: number): number[] {
  return log ? logPlaces(low, high, amount) : linearPlaces(low, high, amount, { whole });
}

function labelsOf({ log }: Axis, places: readonly number[]): string[] {
  return log ? places.map(logTick) : linearTicks(places);
}

/** Room for the half of the last label that reaches beyond the panel. */
function rightMargin(axis: Axis, room: number): number {
  const last = labelsOf(axis, placesOf(axis, room / 52)).at(-1) ?? "";
  return Math.max(10, textWidth(last) / 2 + 2);
}

function labelled(places: readonly number[], labels: readonly string[]): (place: number) => string {
  const names = new Map(places.map((place, index) => [place, labels[index] ?? ""]));
  return (place) => names.get(place) ?? "";
}

function resetButton(frame: Box, reset: () => void): SVGElement {
  const words = "show all";
  const button = svg("g", { class: `${TRANSIENT} reset-zoom`, role: "button", tabindex: 0 });
  const width = textWidth(words) + 12;
  button.append(
    svg("rect", { x: frame.right - width, y: frame.top + 1, width, height: 18, rx: 3, fill: "var(--hs-raised)" }),
    text(words, { x: frame.right - width + 6, y: frame.top + 14, fill: "var(--hs-link)" }),
  );
  button.addEventListener("click", reset);
  button.addEventListener("keydown", (event) => event.key === "Enter" && reset());
  return button;
}

/** Shows the value under the pointer, and draws again the part that is dragged over; a double click shows all. */
function watch(sheet: SVGSVGElement, panel: Panel, chart: Chart, draw: (range: Range | null) => void): void {
  const { frame } = panel;
  const spots = chart.spots.map((spot) => ({ ...spot, left: panel.xOf(spot.x), top: panel.yOf(spot.y) }));
  const ring = svg("circle", { class: TRANSIENT, r: 4.5, fill: "none", "stroke-width": 2, visibility: "hidden", "pointer-events": "none" });
  const shade = svg("rect", { class: TRANSIENT, y: frame.top, height: frame.bottom - frame.top, fill: "var(--hs-ink)", opacity: 0.1, "pointer-events": "none" });
  const cover = svg("rect", { class: `${TRANSIENT} chart-cover`, x: frame.left, y: frame.top, width: frame.right - frame.left, height: frame.bottom - frame.top, fill: "transparent" });
  const reset = panel.layer.querySelector(".reset-zoom");
  if (reset) panel.layer.insertBefore(cover, reset);
  else panel.layer.append(cover);
  panel.layer.append(shade, ring);
  let start: number | null = null;

  const show = (event: PointerEvent) => {
    const spot = nearest(spots, pointIn(sheet, event));
    if (spot === null) return;
    for (const [key, value] of Object.entries({ cx: short(spot.left), cy: short(spot.top), stroke: spot.colour, visibility: "visible" })) ring.setAttribute(key, value);
    showTip(spot.words, event);
  };
  const hide = () => {
    ring.setAttribute("visibility", "hidden");
    hideTip();
  };
  const edges = (event: PointerEvent): Range => {
    const [place] = pointIn(sheet, event);
    const end = Math.min(frame.right, Math.max(frame.left, place));
    return start === null || end > start ? [start ?? end, end] : [end, start];
  };
  cover.addEventListener("pointerdown", (event) => {
    show(event);
    if (event.pointerType !== "mouse" || event.button !== 0) return; // a finger scrolls the page
    [start] = pointIn(sheet, event);
    cover.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  cover.addEventListener("pointermove", (event) => {
    if (start === null) return show(event);
    hide();
    const [low, high] = edges(event);
    shade.setAttribute("x", short(low));
    shade.setAttribute("width", short(high - low));
  });
  cover.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [low, high] = edges(event);
    start = null;
    shade.removeAttribute("width");
    if (high - low >= SMALLEST_DRAG) draw([panel.xAt(low), panel.xAt(high)]);
  });
  cover.addEventListener("pointercancel", () => {
    start = null;
    shade.removeAttribute("width");
  });
  cover.addEventListener("pointerleave", hide);
  cover.addEventListener("dblclick", () => draw(null));
}

interface Placed extends Spot {
  readonly left: number;
  readonly top: number;
}

/** The nearest spot; sideways distance counts double, so that it is mostly one above or below the pointer. */
function nearest(spots: readonly Placed[], [x, y]: readonly [number, number]): Placed | null {
  let [best, least]: [Placed | null, number] = [null, Infinity];
  for (const spot of spots) {
    const distance = 4 * (spot.left - x) ** 2 + (spot.top - y) ** 2;
    if (distance < least) [best, least] = [spot, distance];
  }
  return best;
}
