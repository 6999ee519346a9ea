/** The bar that explains the colours of a map, with the null marked on it. */

import { type ColourScale, LEVELS } from "./colour";
import { linearTicks, number } from "./numbers";
import { fitted, FONT_SIZE, short, svg, text, textWidth } from "./svg";
import { linearPlaces } from "./ticks";

const WIDTH = 9;
const TALLEST = 190;
const BEFORE_UNIT = 4;

export interface BarPlace {
  readonly x: number; // of the left side of the colours
  readonly y: number;
  readonly height: number;
}

/** Draws the bar. `single` is the value of a map whose cells are all the same: the only tick. */
export function drawColourBar(scale: ColourScale, place: BarPlace, unit: string, single: number | null = null): SVGGElement {
  const bar = svg("g", { class: "colour-bar" });
  const height = Math.min(TALLEST, place.height);
  const [first, last] = [scale.level(scale.low)!, lastLevel(scale)];
  const [low, high] = [scale.bound(first), scale.bound(last + 1)];
  const y = (value: number) => place.y + height * (1 - (value - low) / (high - low));
  for (let level = first; level <= last; level++) {
    const [top, bottom] = [y(scale.bound(level + 1)), y(scale.bound(level))];
    // Each reaches a little under the next one, so that no hairline of the background shows.
    const under = level > first ? 0.6 : 0;
    bar.append(svg("rect", { x: place.x, y: top, width: WIDTH, height: bottom - top + under, fill: `var(--hs-${scale.family}${level})` }));
  }
  const ticks = single === null ? linearPlaces(low, high, Math.max(3, height / 30)) : [single];
  const labels = single === null ? linearTicks(ticks) : [number(single)];
  const right = drawTicks(bar, ticks, labels, place.x + WIDTH, y);
  if (unit) bar.append(unitOf(unit, right, place.y + height / 2, Math.max(height, 120)));
  if (scale.reference !== null) drawNull(bar, place.x, y(scale.reference));
  return bar;
}

/** The room that the bar needs to its left for the word null. */
export function nullRoom(scale: ColourScale): number {
  return scale.reference === null ? 12 : 16 + textWidth("null", FONT_SIZE - 1);
}

function lastLevel(scale: ColourScale): number {
  const level = scale.level(scale.high)!;
  return level > 0 && scale.bound(level) >= scale.high - (scale.high - scale.low) * 1e-9 && level < LEVELS - 1 ? level - 1 : level;
}

/** Draws the ticks and returns where their labels end. */
function drawTicks(bar: SVGGElement, ticks: readonly number[], labels: readonly string[], x: number, y: (value: number) => number): number {
  ticks.forEach((tick, index) => {
    bar.append(
      svg("path", { d: `M${short(x)},${short(y(tick))}h3`, stroke: "var(--hs-muted)" }),
      text(labels[index]!, { x: x + 6, y: y(tick) + FONT_SIZE * 0.35, fill: "var(--hs-ink)" }),
    );
  });
  return x + 6 + Math.max(...labels.map((label) => textWidth(label)), 0);
}

/** The unit, written upwards to the right of the ticks. */
function unitOf(unit: string, left: number, middle: number, room: number): SVGTextElement {
  const across = left + BEFORE_UNIT + FONT_SIZE * 0.8;
  return text(fitted(unit, room), {
    "text-anchor": "middle", transform: `translate(${short(across)},${short(middle)})rotate(-90)`, fill: "var(--hs-ink)",
  });
}

function drawNull(bar: SVGGElement, x: number, y: number): void {
  bar.append(
    svg("path", { d: `M${short(x - 2)},${short(y)}h${WIDTH + 4}`, stroke: "var(--hs-ink)", "stroke-width": 1.6 }),
    text("null", { x: x - 5, y: y + 3.5, "text-anchor": "end", "font-size": FONT_SIZE - 1, fill: "var(--hs-ink)" }),
  );
}
