/** A flow: boxes in columns from left to right, and bands between them as wide as their numbers. */

import type { Flow } from "../data";
import { number, visible } from "../drawing/numbers";
import { fitted, FONT_SIZE, short, svg, text, textWidth } from "../drawing/svg";
import { tipOver } from "../drawing/tooltip";
import { type Band, flowLayout, LINE } from "./flow_layout";
import { kindColours } from "./mosaic";

const HEADING = 30;
const [SIDE, NARROWEST, BOLD] = [9, 44, 1.08];

export function drawFlow(figure: Flow, sheet: SVGSVGElement): void {
  const layout = flowLayout(figure);
  const colours = kindColours(figure.kinds.length, false);
  const columns = columnPlaces(figure);
  const columnOf = (box: number) => columns[figure.columns[box] ?? 0]!;
  const body = svg("g", { transform: `translate(0,${short(HEADING + Math.max(0, (figure.height - HEADING - layout.height) / 2))})` });
  for (const band of layout.bands) {
    const colour = colours[band.kind - 1] ?? "var(--hs-muted)";
    const look = band.value < 0
      ? { fill: "transparent", stroke: colour, "stroke-dasharray": "4 3" }
      : { fill: colour, "fill-opacity": 0.75 };
    const shape = svg("path", { d: outline(band, columnOf(band.from).right, columnOf(band.to).left), ...look });
    tipOver(shape, () => wordsOf(figure, band));
    body.append(shape);
  }
  figure.boxes.forEach((name, box) => {
    const { top, height } = layout.boxes[box]!;
    const { left, right } = columnOf(box);
    const lines = [name, ...(figure.notes[box] ?? [])];
    const group = svg("g");
    group.append(svg("rect", { x: left, y: top, width: right - left, height, rx: 3, fill: "var(--hs-grid)", "fill-opacity": 0.6, stroke: "var(--hs-muted)", "stroke-width": 0.7 }));
    lines.forEach((line, index) => {
      const y = top + height / 2 + LINE * (index - (lines.length - 1) / 2) + FONT_SIZE * 0.36;
      const style = index === 0 ? { "font-weight": 600, "font-size": FONT_SIZE + 1 } : { "font-size": FONT_SIZE };
      group.append(text(fitted(line, right - left - SIDE, FONT_SIZE + 1), { x: (left + right) / 2, y, "text-anchor": "middle", ...style }));
    });
    tipOver(group, () => lines.map(visible).join("\n"));
    body.append(group);
  });
  sheet.append(body);
  figure.headings.forEach((heading, column) => {
    const { left, right } = columns[column]!;
    const isFirst = column === 0;
    const isLast = column === figure.headings.length - 1;
    const [x, anchor] = isFirst ? [left, "start"] : isLast ? [right, "end"] : [(left + right) / 2, "middle"];
    sheet.append(text(heading, { x, y: FONT_SIZE + 4, "text-anchor": anchor, fill: "var(--hs-muted)" }));
  });
}

/** The ends of each column: as wide as its longest line, with equal gaps between the columns. */
function columnPlaces(figure: Flow): { left: number; right: number }[] {
  const most = (figure.width * 0.8) / Math.max(figure.headings.length, 1);
  const widths = figure.headings.map((_, column) => {
    const lines = figure.boxes.flatMap((name, box) => (figure.columns[box] === column ? [name, ...(figure.notes[box] ?? [])] : []));
    return Math.min(most, Math.max(NARROWEST, ...lines.map((line) => textWidth(line, FONT_SIZE + 1) * BOLD + 2 * SIDE)));
  });
  const room = figure.width - 2 - widths.reduce((sum, width) => sum + width, 0);
  const gap = room / Math.max(widths.length - 1, 1);
  let left = 1;
  return widths.map((width) => {
    const place = { left, right: left + width };
    left += width + gap;
    return place;
  });
}

/** A band between two columns. */
export function outline({ start, end, width }: Pick<Band, "start" | "end" | "width">, left: number, right: number): string {
  const middle = short((left + right) / 2);
  const [a, b, c, d] = [start, end, end + width, start + width].map(short);
  return `M${short(left)},${a}C${middle},${a} ${middle},${b} ${short(right)},${b}V${c}C${middle},${c} ${middle},${d} ${short(left)},${d}Z`;
}

/** What the pointer is told about a band. */
export function wordsOf(figure: Flow, band: Pick<Band, "from" | "to" | "kind" | "value">): string {
  const unit = figure.units[band.kind - 1];
  const names = `${visible(figure.boxes[band.from] ?? "")} → ${visible(figure.boxes[band.to] ?? "")}`;
  return `${names}\n${visible(figure.kinds[band.kind - 1] ?? "")}: ${number(band.value)}${unit ? ` ${visible(unit)}` : ""}`;
}
