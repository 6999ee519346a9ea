/** Draws the figures of a page from their data, and saves them. */

import type { Figure } from "../data";
import { savePng, saveSvg } from "../drawing/save";
import { FONT_SIZE, svg } from "../drawing/svg";
import type { Transport } from "../transport";
import { drawCurves } from "./curves";
import { drawFlow } from "./flow";
import { drawHeatMap } from "./heat_map";
import { drawHistogram } from "./histogram";
import { drawMosaic } from "./mosaic";
import { drawNetwork } from "./network";

const NEAR = "800px"; // how far below and above the view figures are drawn in advance

/** Draws every `<figure data-figure="ID">` when it comes near the view, and all of them before the page is printed. */
export function drawFigures(page: Document, transport: Pick<Transport, "figure">): void {
  const waiting = new Set(page.querySelectorAll<HTMLElement>("figure[data-figure]"));
  const draw = (element: HTMLElement) => {
    if (!waiting.delete(element)) return;
    observer.unobserve(element);
    void fill(element, transport);
  };
  const observer = new IntersectionObserver(
    (entries) => entries.forEach((entry) => entry.isIntersecting && draw(entry.target as HTMLElement)),
    { rootMargin: NEAR },
  );
  for (const element of waiting) observer.observe(element);
  addEventListener("beforeprint", () => [...waiting].forEach(draw));
}

/** Puts the drawing into its figure, or a note that says why there is none. */
export async function fill(element: HTMLElement, transport: Pick<Transport, "figure">): Promise<void> {
  const place = element.querySelector(".drawing");
  try {
    const figure = await transport.figure(element.dataset["figure"] ?? "");
    const drawing = drawingOf(figure);
    const content = place?.textContent?.trim();
    drawing.setAttribute("aria-label", content ? `${figure.title}. ${content}` : figure.title);
    place?.replaceChildren(drawing);
    equip(element, drawing, figure.title);
  } catch (error) {
    place?.replaceChildren(note(error));
    element.querySelector(".tools")?.remove();
  }
}

/** A figure as SVG. */
export function drawingOf(figure: Figure): SVGSVGElement {
  const sheet = svg("svg", {
    viewBox: `0 0 ${figure.width} ${figure.height}`, "font-size": FONT_SIZE, fill: "var(--hs-ink)",
    role: "img",
  });
  draw(figure, sheet);
  return sheet;
}

function draw(figure: Figure, sheet: SVGSVGElement): void {
  switch (figure.type) {
    case "Curves":
      return drawCurves(figure, sheet);
    case "Histogram":
      return drawHistogram(figure, sheet);
    case "HeatMap":
      return drawHeatMap(figure, sheet);
    case "Mosaic":
      return drawMosaic(figure, sheet);
    case "Network":
      return drawNetwork(figure, sheet);
    case "Flow":
      return drawFlow(figure, sheet);
  }
}

function equip(element: HTMLElement, drawing: SVGSVGElement, title: string): void {
  const file = element.dataset["file"] ?? "figure";
  const onClick = (button: string, save: () => void) => element.querySelector(`button.${button}`)?.addEventListener("click", save);
  onClick("svg", () => saveSvg(drawing, title, `${file}.svg`));
  onClick("png", () => void savePng(drawing, title, `${file}.png`));
}

function note(error: unknown): HTMLElement {
  const element = document.createElement("div");
  element.className = "status";
  element.setAttribute("role", "note");
  const summary = document.createElement("b");
  summary.textContent = "This figure could not be drawn.";
  element.append(summary, ` ${error instanceof Error ? error.message : String(error)}`);
  return element;
}
