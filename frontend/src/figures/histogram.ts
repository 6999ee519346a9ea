/** A histogram with its predicted laws and the positions that theory marks. */

import { areaY, type Markish } from "@observablehq/plot";
import type { Histogram } from "../data";
import { seriesColour } from "../drawing/colour";
import { drawLegend } from "../drawing/legend";
import { number } from "../drawing/numbers";
import { drawChart, type Range, type Spot } from "./chart";
import { curvesOf, legendOf, marksOf, padded, spotsOf } from "./curves";

interface Bar {
  readonly left: number;
  readonly right: number;
  readonly density: number;
}

export function drawHistogram(figure: Histogram, sheet: SVGSVGElement): void {
  const bars = barsOf(figure);
  if (bars.length === 0) throw new Error(`the histogram ${figure.name} has no bar that can be drawn`);
  const laws = curvesOf(figure.laws, false, figure.log_y);
  const points = laws.flatMap((law) => law.points);
  const flags = figure.marks.flatMap(([label, x]) => (x !== null && Number.isFinite(x) ? [{ label, x }] : []));
  const top = drawLegend(sheet, legendOf(laws), 40, figure.width - 4);
  const places = [...bars.flatMap((bar) => [bar.left, bar.right]), ...points.map((point) => point.x), ...flags.map((flag) => flag.x)];
  const everything = padded(places, false, 0.02);
  const heights = heightsOf(bars, points.map((point) => point.y), figure.log_y);
  drawChart(sheet, { left: 0, top, right: figure.width, bottom: figure.height }, (range) => ({
    x: { label: figure.x_axis, log: false, range: range ?? everything },
    y: { label: "density", log: figure.log_y, range: heights },
    marks: [barMark(bars, heights[0]), ...laws.flatMap(marksOf)],
    spots: [...spotsOfBars(bars, figure.x_axis, heights, range), ...laws.flatMap((law) => spotsOf(law, figure.x_axis, range))],
    flags,
  }));
}

/** The bars that are there; on a logarithmic axis only those of positive height. */
function barsOf({ edges, density, log_y }: Histogram): Bar[] {
  return density.flatMap((height, index) => {
    const [left, right] = [edges[index] ?? NaN, edges[index + 1] ?? NaN];
    const isThere = height !== null && Number.isFinite(height) && (!log_y || height > 0);
    return isThere && Number.isFinite(left) && Number.isFinite(right) ? [{ left, right, density: height }] : [];
  });
}

/** The ends of the vertical axis: from zero, or from half the smallest to twice the largest bar on a logarithmic one. */
export function heightsOf(bars: readonly Bar[], laws: readonly number[], log: boolean): Range {
  const heights = bars.map((bar) => bar.density);
  if (log) return [Math.min(...heights) / 2, Math.max(...heights) * 2];
  const most = Math.max(...heights, ...laws.filter(Number.isFinite), 0);
  return [0, most > 0 ? most * 1.05 : 1];
}

/** The bars as one outline: separate rectangles would show lines where they meet. */
function barMark(bars: readonly Bar[], bottom: number): Markish {
  const corners = bars.flatMap((bar, index) => {
    const isFirst = bars[index - 1]?.right !== bar.left;
    const isLast = bars[index + 1]?.left !== bar.right;
    return [
      ...(isFirst ? [{ x: bar.left, y: bottom }] : []),
      { x: bar.left, y: bar.density }, { x: bar.right, y: bar.density },
      ...(isLast ? [{ x: bar.right, y: bottom }] : []),
    ];
  });
  return areaY(corners, { x: "x", y1: () => bottom, y2: "y", fill: seriesColour(0), fillOpacity: 0.45, clip: true });
}

function spotsOfBars(bars: readonly Bar[], xAxis: string, [bottom, top]: Range, range: Range | null): Spot[] {
  return bars
    .map((bar) => ({
      x: (bar.left + bar.right) / 2,
      y: Math.min(top, Math.max(bottom, bar.density)),
      colour: seriesColour(0),
      words: `${xAxis} ${number(bar.left)} to ${number(bar.right)}\ndensity ${number(bar.density)}`,
    }))
    .filter(({ x }) => range === null || (x >= range[0] && x <= range[1]));
}
