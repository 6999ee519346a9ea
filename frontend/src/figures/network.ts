/** A network: nodes on a circle, edges as chords coloured by kind. */

import type { Network } from "../data";
import { counted, visible } from "../drawing/numbers";
import { fitted, FONT_SIZE, setAttributes, short, svg, text, textWidth, TRANSIENT } from "../drawing/svg";
import { tipOver } from "../drawing/tooltip";
import { drawKinds, kindColours } from "./mosaic";

const NAMED_UP_TO = 48; // nodes; with more their names would overlap
const LONGEST_NAME = 70;

interface Edge {
  readonly from: number;
  readonly to: number;
  readonly kind: number;
}

export function drawNetwork(figure: Network, sheet: SVGSVGElement): void {
  const colours = kindColours(figure.kinds.length, false);
  const top = drawKinds(sheet, figure.kinds, colours, figure.width);
  const edges = figure.edges.map(([from, to, kind]) => ({ from: from ?? 0, to: to ?? 0, kind: kind ?? 0 }));
  const isNamed = figure.nodes.length <= NAMED_UP_TO;
  const names = figure.nodes.map((name) => fitted(name, LONGEST_NAME));
  const margin = isNamed ? Math.max(...names.map((name) => textWidth(name)), 0) / 2 + 16 : 10;
  const radius = Math.min(figure.width / 2 - margin, (figure.height - top) / 2 - (isNamed ? FONT_SIZE + 10 : 10));
  const [x, y] = [figure.width / 2, top + (figure.height - top) / 2];
  const places = figure.nodes.map((_, index) => {
    const angle = Math.PI / 2 - (2 * Math.PI * index) / figure.nodes.length; // the first node on top, then clockwise
    return [x + radius * Math.cos(angle), y - radius * Math.sin(angle)] as const;
  });
  const width = Math.min(1.6, Math.max(0.35, 80 / Math.sqrt(Math.max(edges.length, 1))));
  colours.forEach((colour, index) => {
    const d = chords(edges.filter((edge) => edge.kind === index + 1), places);
    sheet.append(svg("path", { d, stroke: colour, "stroke-width": width, "stroke-opacity": 0.7, fill: "none" }));
  });
  const emphasis = svg("path", { class: TRANSIENT, stroke: "var(--hs-ink)", "stroke-width": 1.6, fill: "none", "pointer-events": "none" });
  sheet.append(emphasis);
  const size = Math.min(5, Math.max(1.5, 90 / figure.nodes.length));
  places.forEach(([left, down], index) => drawNode(left, down, index));

  function drawNode(left: number, down: number, index: number): void {
    const node = svg("g");
    node.append(svg("circle", { cx: left, cy: down, r: size, fill: "var(--hs-ink)" }));
    node.append(svg("circle", { class: TRANSIENT, cx: left, cy: down, r: Math.max(7, size), fill: "transparent" }));
    if (isNamed) node.append(text(names[index]!, nameAt([left, down], [x, y], radius)));
    sheet.append(node);
    const touching = edges.filter((edge) => edge.from === index || edge.to === index);
    tipOver(node, () => `${visible(figure.nodes[index] ?? "")}: ${counted(touching.length, "edge")}`);
    node.addEventListener("pointerenter", () => setAttributes(emphasis, { d: chords(touching, places) }));
    node.addEventListener("pointerleave", () => emphasis.removeAttribute("d"));
  }
}

type Place = readonly [number, number];

function chords(edges: readonly Edge[], places: readonly Place[]): string {
  return edges
    .map(({ from, to }) => [places[from], places[to]] as const)
    .flatMap(([start, end]) => (start && end ? [`M${short(start[0])},${short(start[1])}L${short(end[0])},${short(end[1])}`] : []))
    .join("");
}

/** Where a name is: outside the circle, on the side of its node. */
function nameAt([left, down]: Place, [x, y]: Place, radius: number): Record<string, string | number> {
  const [across, up] = [(left - x) / radius, (down - y) / radius];
  const anchor = Math.abs(across) < 0.2 ? "middle" : across > 0 ? "start" : "end";
  return { x: left + 9 * across, y: down + 11 * up + FONT_SIZE * 0.36, "text-anchor": anchor, "font-size": FONT_SIZE - 1 };
}
