/** Curves: measured solid, theory dashed, null dotted grey. Many curves are coloured in their order. */

import { areaY, dot, line, type Markish } from "@observablehq/plot";
import type { Curves, Numbers, Series } from "../data";
import { seriesColour, SERIES, stepColour } from "../drawing/colour";
import { drawLegend, type LegendEntry } from "../drawing/legend";
import { number } from "../drawing/numbers";
import { fitted, FONT_SIZE, svg, text, textWidth } from "../drawing/svg";
import { type Chart, drawChart, type Range, type Spot } from "./chart";

const DASHES = { measured: "none", theory: "6 3", null: "1.5 2.5" } as const;
const PADDING = { x: 0.02, y: 0.05 } as const;

/** A point of a curve that can be drawn on the axes; y is NaN where the curve has a gap. */
export interface Point {
  readonly x: number;
  readonly y: number;
  readonly low: number;
  readonly high: number;
}

export interface Curve {
  readonly label: string;
  readonly role: Series["role"];
  readonly colour: string;
  readonly hasLine: boolean;
  readonly hasPoints: boolean;
  readonly hasInterval: boolean;
  readonly points: readonly Point[];
}

export function drawCurves(figure: Curves, sheet: SVGSVGElement): void {
  const curves = curvesOf(figure.series, figure.log_x, figure.log_y);
  const places = curves.flatMap((curve) => curve.points.filter((point) => Number.isFinite(point.y)));
  if (places.length === 0) {
    const log = figure.log_x || figure.log_y ? " on logarithmic axes" : "";
    throw new Error(`none of the ${curves.length} curves has a point that can be drawn${log}`);
  }
  const measured = curves.filter((curve) => curve.role === "measured");
  const inOrder = measured.length > SERIES;
  const legend = legendOf(curves, inOrder);
  const top = drawLegend(sheet, legend, 40, figure.width - 4);
  const right = inOrder ? drawOrder(sheet, measured, figure.width, top, figure.height) : figure.width;
  const whole = !figure.log_x && places.every((point) => Number.isInteger(point.x));
  const chartOf = (range: Range | null): Chart => {
    const inside = range === null ? places : curves.flatMap((curve) => reaching(curve.points, range));
    const heights = (inside.length > 0 ? inside : places).flatMap((point) => [point.y, point.low, point.high]);
    return {
      x: { label: figure.x_axis, log: figure.log_x, whole, range: range ?? padded(places.map((point) => point.x), figure.log_x, PADDING.x) },
      y: { label: figure.y_axis, log: figure.log_y, range: padded(heights, figure.log_y, PADDING.y) },
      marks: curves.flatMap(marksOf),
      spots: curves.flatMap((curve) => spotsOf(curve, figure.x_axis, range)),
    };
  };
  drawChart(sheet, { left: 0, top, right, bottom: figure.height }, chartOf);
}

/** The curves with their colours, and what of them can be drawn. */
export function curvesOf(series: readonly Series[], logX: boolean, logY: boolean): Curve[] {
  const colours = coloursOf(series);
  return series.map((curve, index) => {
    const points = pointsOf(curve, xOf(series, curve), logX, logY);
    const isSingle = points.filter((point) => Number.isFinite(point.y)).length === 1;
    return {
      label: curve.label,
      role: curve.role,
      colour: colours[index]!,
      hasLine: !curve.points,
      hasPoints: curve.points || isSingle, // a curve of one point would be invisible
      hasInterval: curve.low !== null && curve.high !== null,
      points,
    };
  });
}

function xOf(series: readonly Series[], curve: Series): Numbers {
  const owner = typeof curve.x === "number" ? series[curve.x] : curve;
  return owner === undefined || typeof owner.x === "number" ? [] : owner.x;
}

function pointsOf(curve: Series, xs: Numbers, logX: boolean, logY: boolean): Point[] {
  const canPlace = (value: number | null | undefined, log: boolean) => typeof value === "number" && Number.isFinite(value) && (!log || value > 0);
  return xs.map((x, index) => {
    const y = curve.y[index];
    const isThere = canPlace(x, logX) && canPlace(y, logY);
    const [low, high] = [curve.low?.[index] ?? NaN, curve.high?.[index] ?? NaN];
    return {
      x: canPlace(x, logX) ? x! : NaN,
      y: isThere ? y! : NaN,
      low: isThere && Number.isFinite(low) ? low : NaN,
      high: isThere && canPlace(high, logY) ? high : NaN,
    };
  });
}

/** Distinct colours for few curves, along a scale for many; theory in ink, or in the colour of what it explains. */
function coloursOf(series: readonly Series[]): string[] {
  const amount = (role: Series["role"]) => series.filter((curve) => curve.role === role).length;
  const [measured, theory] = [amount("measured"), amount("theory")];
  const colour = (index: number) => (measured <= SERIES ? seriesColour(index) : stepColour(index, measured));
  const counts = { measured: 0, theory: 0, null: 0 };
  return series.map(({ role }) => {
    const index = counts[role]++;
    if (role === "null") return "var(--hs-muted)";
    return role === "measured" || (theory === measured && measured > 1) ? colour(index) : "var(--hs-ink)";
  });
}

export function marksOf(curve: Curve): Markish[] {
  const at = { x: "x", y: "y", clip: true } as const;
  const marks: Markish[] = [];
  if (curve.hasInterval) {
    const bands = curve.points.map((point) => ({ x: point.x, low: point.low, high: point.high }));
    marks.push(areaY(bands, { x: "x", y1: "low", y2: "high", fill: curve.colour, fillOpacity: 0.18, clip: true }));
  }
  if (curve.hasLine) {
    marks.push(line(curve.points, {
      ...at, stroke: curve.colour, strokeWidth: curve.role === "measured" ? 1.7 : 1.4, strokeLinejoin: "round",
      strokeDasharray: DASHES[curve.role],
    }));
  }
  if (curve.hasPoints) marks.push(dot(curve.points, { ...at, fill: curve.colour, r: 3.2 }));
  else marks.push(dot(lonely(curve.points), { ...at, fill: curve.colour, r: 1.8 }));
  return marks;
}

/** The points in a range, and those next to it: the lines to these cross the range. */
function reaching(points: readonly Point[], [low, high]: Range): Point[] {
  const isInside = (point: Point | undefined) => point !== undefined && point.x >= low && point.x <= high;
  return points.filter((point, index) => isInside(point) || isInside(points[index - 1]) || isInside(points[index + 1]));
}

/** The points between two gaps, which a line would not show. */
function lonely(points: readonly Point[]): Point[] {
  const isThere = (point: Point | undefined) => point !== undefined && Number.isFinite(point.y);
  return points.filter((point, index) => isThere(point) && !isThere(points[index - 1]) && !isThere(points[index + 1]));
}

/** The points of a curve for the pointer, within the range that is drawn. */
export function spotsOf(curve: Curve, xAxis: string, range: Range | null): Spot[] {
  return curve.points
    .filter(({ x, y }) => Number.isFinite(y) && (range === null || (x >= range[0] && x <= range[1])))
    .map((point) => {
      const interval = Number.isNaN(point.low) || Number.isNaN(point.high) ? "" : ` (${number(point.low)} to ${number(point.high)})`;
      const words = `${curve.label}\n${xAxis} ${number(point.x)}: ${number(point.y)}${interval}`;
      return { x: point.x, y: point.y, colour: curve.colour, words };
    });
}

/** Each name once; a single measured curve needs none, and many measured ones are named along a strip. */
export function legendOf(curves: readonly Curve[], inOrder = false): LegendEntry[] {
  if (curves.length === 1 && curves[0]!.role === "measured") return [];
  const entries = new Map<string, LegendEntry>();
  for (const curve of curves) {
    if (inOrder && curve.role === "measured") continue;
    const earlier = entries.get(curve.label);
    // Curves of one name and several colours are named in the colour of the text.
    const colour = earlier === undefined || earlier.colour === curve.colour ? curve.colour : "var(--hs-ink)";
    entries.set(curve.label, { label: curve.label, colour, form: curve.hasLine ? "line" : "point", dash: DASHES[curve.role] });
  }
  return [...entries.values()];
}

/** The ends of an axis: the finite values with a little room around them. */
export function padded(values: readonly number[], log: boolean, share: number): Range {
  const finite = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let [low, high] = [Infinity, -Infinity];
  for (const value of finite) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low > high) return log ? [0.5, 2] : [0, 1];
  if (log) {
    const room = high > low ? (high / low) ** share : 2;
    return [low / room, high * room];
  }
  const room = high > low ? (high - low) * share : Math.abs(low) * 0.05 || 0.5;
  return [low - room, high + room];
}

/** A strip of the curves' colours that names the first, the last and some between; returns where it begins. */
function drawOrder(sheet: SVGSVGElement, measured: readonly Curve[], width: number, top: number, height: number): number {
  const named = [...new Set([0, 1, 2, 3, 4].map((step) => Math.round((step * (measured.length - 1)) / 4)))];
  const labels = named.map((index) => fitted(measured[index]!.label, 90));
  const left = width - Math.max(...labels.map((label) => textWidth(label))) - 20;
  const [start, length] = [top + 8, (height - top) * 0.72];
  const step = length / measured.length;
  measured.forEach((curve, index) => {
    // Each reaches under the next one, so that there are no gaps.
    const y = start + length - (index + 1) * step;
    sheet.append(svg("rect", { x: left, y, width: 10, height: index > 0 ? step + 0.6 : step, fill: curve.colour }));
  });
  named.forEach((index, place) => {
    const y = start + length - (index + 0.5) * step + FONT_SIZE * 0.35;
    sheet.append(text(labels[place]!, { x: left + 15, y, fill: "var(--hs-ink)" }));
  });
  return left - 6;
}
