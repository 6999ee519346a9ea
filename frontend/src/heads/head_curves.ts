/** The curves of one head among those of all heads, with their law. */

import type { Atlas, Curves, HeadCurve, Numbers, Series } from "../data";
import { drawingOf } from "../figures/figures";
import { element, withSymbols } from "../navigation/element";

/** One drawing for each curve that lenses offer of this head. */
export function curveFigures(atlas: Atlas, head: number): HTMLElement[] {
  return atlas.curves.flatMap((curve) => {
    const figure = curveFigure(curve, atlas.heads[head]!.label, head);
    if (figure === null) return [];
    const drawing = element("div", { class: "drawing" }, drawingOf(figure));
    return [element("figure", { class: "half" }, drawing, element("figcaption", {}, element("b", {}, ...withSymbols(figure.title)), ` (${curve.lens}).`))];
  });
}

/** The curve of a head, its law, and the middle half of all heads; null where the head has none. */
export function curveFigure(curve: HeadCurve, label: string, head: number): Curves | null {
  const values = curve.values[head] ?? null;
  if (values === null || values.every((value) => value === null)) return null;
  const law = curve.law === null ? null : (curve.law.length === 1 ? curve.law[0] : curve.law[head]) ?? null;
  const known = curve.values.filter((row): row is Numbers => row !== null);
  const series: Series[] = [
    measured(label, curve.x, values, {}),
    ...(known.length > 3 ? [measured("median of all heads, with the middle half", curve.x, quantile(known, 0.5), { low: quantile(known, 0.25), high: quantile(known, 0.75), role: "null" })] : []),
    ...(law === null ? [] : [measured(curve.law_label || "law", curve.x, law, { role: "theory" })]),
  ];
  return {
    type: "Curves", name: curve.label, title: `${label}: ${curve.label}`, width: 430, height: 300,
    x_axis: curve.x_axis, y_axis: curve.y_axis, series, log_x: curve.log_x, log_y: curve.log_y,
  };
}

function measured(label: string, x: Numbers, y: Numbers, more: Partial<Series>): Series {
  return { label, x, y, low: null, high: null, role: "measured", points: false, ...more };
}

/** The quantile of each column over rows, without missing values. */
export function quantile(rows: readonly Numbers[], share: number): Numbers {
  const columns = rows[0]?.length ?? 0;
  return Array.from({ length: columns }, (_, column) => {
    const known = rows.map((row) => row[column] ?? null).filter((value): value is number => value !== null).sort((a, b) => a - b);
    return known[Math.round(share * (known.length - 1))] ?? null;
  });
}
