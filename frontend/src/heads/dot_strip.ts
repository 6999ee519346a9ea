/** One quantity of all heads as dots on a line, one head among them marked, and the null. */

import type { Quantity } from "../data";
import { onColourChange } from "../drawing/colour";
import { element } from "../navigation/element";
import { nullOf } from "./quantities";

const WIDTH = 260;
const HEIGHT = 20;
const MARGIN = 6;

export function dotStrip(quantity: Quantity, head: number): HTMLCanvasElement {
  const canvas = element("canvas", { class: "dot-strip", width: WIDTH * 2, height: HEIGHT * 2, role: "img" });
  const paint = () => paintStrip(canvas, quantity, head);
  requestAnimationFrame(paint);
  onColourChange(paint);
  return canvas;
}

/** Where values lie between 0 and 1; null where a value cannot be placed. */
export function strip(values: readonly (number | null)[], log: boolean): (value: number | null) => number | null {
  const measured = (value: number | null) => (value === null || (log && value <= 0) ? NaN : log ? Math.log(value) : value);
  const known = values.map(measured).filter(Number.isFinite);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return (value) => {
    const place = measured(value);
    if (!Number.isFinite(place) || known.length === 0) return null;
    return high > low ? Math.min(1, Math.max(0, (place - low) / (high - low))) : 0.5;
  };
}

function paintStrip(canvas: HTMLCanvasElement, quantity: Quantity, head: number): void {
  const brush = canvas.getContext("2d");
  if (brush === null) return;
  const style = getComputedStyle(canvas);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const reference = nullOf(quantity, head);
  const place = strip([...quantity.values, reference], quantity.scale === "log");
  const x = (share: number) => MARGIN + share * (WIDTH - 2 * MARGIN);
  brush.setTransform(2, 0, 0, 2, 0, 0);
  brush.clearRect(0, 0, WIDTH, HEIGHT);
  brush.strokeStyle = colour("--hs-grid");
  brush.strokeRect(MARGIN, HEIGHT / 2, WIDTH - 2 * MARGIN, 0);
  const dot = (value: number | null, radius: number) => {
    const share = place(value);
    if (share === null) return;
    brush.beginPath();
    brush.arc(x(share), HEIGHT / 2, radius, 0, 7);
    brush.fill();
  };
  brush.fillStyle = colour("--hs-muted");
  brush.globalAlpha = 0.35;
  for (const value of quantity.values) dot(value, 2.2);
  brush.globalAlpha = 1;
  const middle = place(reference);
  if (middle !== null) {
    brush.strokeStyle = colour("--hs-ink");
    brush.setLineDash([2, 2]);
    brush.beginPath();
    brush.moveTo(x(middle), 1);
    brush.lineTo(x(middle), HEIGHT - 1);
    brush.stroke();
    brush.setLineDash([]);
  }
  brush.fillStyle = colour("--hs-c1");
  dot(quantity.values[head] ?? null, 4.5);
}
