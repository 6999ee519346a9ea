/** A figure as small as a line of text: its shape without axes. */

import type { Curves, Figure, Flow, HeatMap, Histogram, Mosaic, Numbers, Series } from "../data";
import { rgbTable, scaleOf, onColourChange, SERIES } from "../drawing/colour";
import { short, svg } from "../drawing/svg";
import { outline } from "../figures/flow";
import { flowLayout } from "../figures/flow_layout";
import { heatRows, kindRows } from "../figures/map_values";
import { element } from "../navigation/element";

const WIDTH = 120;
const HEIGHT = 46;
const MOST_CURVES = 12;

/** The small picture of a figure; null where a figure has no shape of its own. */
export function spark(figure: Figure): Element | null {
  switch (figure.type) {
    case "Curves":
      return curvesSpark(figure);
    case "Histogram":
      return histogramSpark(figure);
    case "HeatMap":
      return mapSpark(figure);
    case "Mosaic":
      return mosaicSpark(figure);
    case "Flow":
      return flowSpark(figure);
    case "Network":
      return null;
  }
}

type Point = readonly [number, number];

function curvesSpark(figure: Curves): Element {
  const series = evenly(figure.series, MOST_CURVES);
  const curves = series.map((curve) => ({ curve, points: pointsOf(curve, figure.series, figure.log_x, figure.log_y) }));
  const place = placer(curves.flatMap(({ points }) => points));
  const paths = curves.map(({ curve, points }, index) => path(points.map(place), curve, index, series.length));
  return sheet(...paths);
}

/** The finite points of a curve, in the measure of its axes. */
export function pointsOf(curve: Series, all: readonly Series[], logX: boolean, logY: boolean): Point[] {
  const places = typeof curve.x === "number" ? (all[curve.x]?.x as Numbers) : curve.x;
  const measured = (value: number | null, log: boolean) => (value === null ? NaN : log ? Math.log10(value) : value);
  return places
    .map((x, index): Point => [measured(x, logX), measured(curve.y[index] ?? null, logY)])
    .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
}

function histogramSpark(figure: Histogram): Element {
  const edges = figure.edges.map((edge) => edge ?? NaN);
  const tops = figure.density.map((density) => density ?? 0);
  const outline = tops.flatMap((top, bin): Point[] => [[edges[bin]!, top], [edges[bin + 1]!, top]]);
  const laws = figure.laws.map((law) => ({ law, points: pointsOf(law, figure.laws, false, false) }));
  const inRange = ([x]: Point) => x >= edges[0]! && x <= edges[edges.length - 1]!;
  const place = placer([...outline, [edges[0]!, 0], ...laws.flatMap(({ points }) => points.filter(inRange))]);
  const [left, right] = [place([edges[0]!, 0]), place([edges[edges.length - 1]!, 0])];
  const area = svg("path", { d: `${line([left, ...outline.map(place), right])}z`, fill: "var(--hs-c0)", opacity: 0.55 });
  return sheet(area, ...laws.map(({ law, points }, index) => path(points.filter(inRange).map(place), law, index + 1, 2)));
}

/** Places points in the sheet, so that all of them fit. */
function placer(points: readonly Point[]): (point: Point) => Point {
  const ends = (values: readonly number[]): Point => values.reduce<Point>(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  const [x, y] = [ends(points.map(([first]) => first)), ends(points.map(([, second]) => second))];
  const share = (value: number, [low, high]: Point) => (high > low ? (value - low) / (high - low) : 0.5);
  return (point) => [2 + share(point[0], x) * (WIDTH - 4), HEIGHT - 3 - share(point[1], y) * (HEIGHT - 6)];
}

function path(points: readonly Point[], { role, points: asPoints }: Series, index: number, amount: number): SVGElement {
  const colour = role === "null" ? "var(--hs-muted)" : amount > SERIES ? `var(--hs-s${Math.round((index * 31) / Math.max(1, amount - 1))})` : `var(--hs-c${index % SERIES})`;
  if (asPoints) return svg("g", { fill: colour }, ...points.map(([cx, cy]) => svg("circle", { cx, cy, r: 1.3 })));
  const dashes = role === "theory" ? "4 3" : role === "null" ? "1.5 2.5" : undefined;
  return svg("path", { d: line(points), fill: "none", stroke: colour, "stroke-width": amount > SERIES ? 0.9 : 1.4, "stroke-dasharray": dashes });
}

function line(points: readonly Point[]): string {
  return points.map(([x, y], index) => `${index ? "L" : "M"}${short(x)},${short(y)}`).join("");
}

function sheet(...children: SVGElement[]): SVGSVGElement {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "spark", "aria-hidden": "true" }, ...children);
}

function mapSpark(figure: HeatMap): Element | null {
  const rows = heatRows(figure);
  const scale = scaleOf(rows.flat(), { reference: figure.reference, limits: figure.limits });
  if (scale === null) return null;
  return pixels(rows.length, rows[0]?.length ?? 0, (canvas) => {
    const rgb = rgbTable(canvas, scale.family);
    return (row, column) => {
      const level = scale.level(rows[row]![column] ?? null);
      return level === null ? null : [rgb[level * 3]!, rgb[level * 3 + 1]!, rgb[level * 3 + 2]!];
    };
  });
}

/** The bands of a flow between bars that stand for its boxes. */
function flowSpark(figure: Flow): Element {
  const layout = flowLayout(figure);
  const scale = (HEIGHT - 2) / layout.height;
  const bar = 6;
  const step = (WIDTH - bar) / Math.max(figure.headings.length - 1, 1);
  const left = (box: number) => (figure.columns[box] ?? 0) * step;
  const bands = layout.bands.filter((band) => band.value >= 0).map((band) => {
    const place = { start: 1 + band.start * scale, end: 1 + band.end * scale, width: Math.max(band.width * scale, 0.4) };
    const d = outline(place, left(band.from) + bar, left(band.to));
    return svg("path", { d, fill: `var(--hs-c${(band.kind - 1) % SERIES})`, "fill-opacity": 0.75 });
  });
  const bars = layout.boxes.map((box, index) =>
    svg("rect", { x: left(index), y: 1 + box.top * scale, width: bar, height: box.height * scale, fill: "var(--hs-muted)" }));
  return sheet(...bands, ...bars);
}

function mosaicSpark(figure: Mosaic): Element {
  const rows = kindRows(figure);
  return pixels(rows.length, rows[0]?.length ?? 0, (canvas) => {
    const style = getComputedStyle(canvas);
    const colours = Array.from({ length: SERIES }, (_, index) => hex(style.getPropertyValue(`--hs-c${index}`)));
    return (row, column) => {
      const kind = rows[row]![column] ?? 0;
      return kind === 0 ? null : colours[(kind - 1) % SERIES]!;
    };
  });
}

type Rgb = readonly [number, number, number];

/** A canvas with one pixel per cell, painted once it is part of the page and when its colours change. */
function pixels(rows: number, columns: number, colours: (canvas: HTMLCanvasElement) => (row: number, column: number) => Rgb | null): HTMLCanvasElement {
  const canvas = element("canvas", { class: "spark", width: columns, height: rows, "aria-hidden": "true" });
  const paint = () => {
    const brush = canvas.getContext("2d");
    if (brush === null) return;
    const [picture, colourAt] = [brush.createImageData(columns, rows), colours(canvas)];
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const colour = colourAt(row, column);
        if (colour !== null) picture.data.set([...colour, 255], (row * columns + column) * 4);
      }
    }
    brush.putImageData(picture, 0, 0);
  };
  requestAnimationFrame(paint);
  onColourChange(paint);
  return canvas;
}

function hex(colour: string): Rgb {
  const value = Number.parseInt(colour.trim().slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}

/** Some of many, the first and the last among them. */
function evenly<T>(entries: readonly T[], most: number): T[] {
  if (entries.length <= most) return [...entries];
  return Array.from({ length: most }, (_, index) => entries[Math.round((index * (entries.length - 1)) / (most - 1))]!);
}
