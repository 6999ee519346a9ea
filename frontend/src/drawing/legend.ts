/** A legend above a panel: names one after the other, on as many lines as they need. */

import { fitted, FONT_SIZE, svg, text, textWidth } from "./svg";

export interface LegendEntry {
  readonly label: string;
  readonly colour: string;
  readonly form: "line" | "point" | "box";
  readonly dash?: string;
}

const LINE = 18;
const HANDLE = { line: 22, point: 10, box: 11 } as const;
const [GAP, BETWEEN] = [6, 14];

/** Draws a legend into the upper end of a sheet and returns its height. */
export function drawLegend(sheet: SVGSVGElement, entries: readonly LegendEntry[], left: number, right: number): number {
  let [x, line] = [left, 0];
  for (const entry of entries) {
    const handle = HANDLE[entry.form];
    const label = fitted(entry.label, right - left - handle - GAP);
    const width = handle + GAP + textWidth(label);
    if (x > left && x + width > right) [x, line] = [left, line + 1];
    const item = svg("g", { class: "legend-entry", transform: `translate(${Math.round(x)},${line * LINE + LINE / 2})` });
    item.append(symbol(entry), text(label, { x: handle + GAP, y: FONT_SIZE * 0.35, fill: "var(--hs-ink)" }));
    sheet.append(item);
    x += width + BETWEEN;
  }
  return entries.length > 0 ? (line + 1) * LINE + 4 : 0;
}

function symbol({ form, colour, dash }: LegendEntry): SVGElement {
  if (form === "line") {
    return svg("path", { d: `M0,0H${HANDLE.line}`, stroke: colour, "stroke-width": 1.7, "stroke-dasharray": dash, fill: "none" });
  }
  if (form === "point") return svg("circle", { cx: HANDLE.point / 2, r: 3, fill: colour });
  return svg("rect", { y: -HANDLE.box / 2, width: HANDLE.box, height: HANDLE.box, fill: colour });
}
