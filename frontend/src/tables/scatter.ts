/** Any two quantities of all heads as a picture: a dot for each head. */

import type { Atlas, Quantity } from "../data";
import { onColourChange } from "../drawing/colour";
import { linearTicks, logTick } from "../drawing/numbers";
import { linearPlaces, logPlaces } from "../drawing/ticks";
import { tipOver } from "../drawing/tooltip";
import { withUnit } from "../heads/quantities";
import { element } from "../navigation/element";
import type { View } from "../navigation/view";
import { passes } from "./filters";

const HEIGHT = 340;
const MARGIN = { left: 58, right: 12, top: 10, bottom: 40 } as const;
const NEAR = 14; // pixels

interface Axis {
  readonly quantity: Quantity;
  readonly low: number;
  readonly high: number;
  readonly log: boolean;
}

/** A canvas with the dots; `choose` gives the two quantities. */
export class Scatter {
  readonly canvas = element("canvas", { class: "scatter", role: "img" });
  private pointed: number | null = null;

  constructor(private readonly atlas: Atlas, private readonly view: View, private readonly choose: () => readonly [Quantity, Quantity]) {
    tipOver(this.canvas, (event) => {
      const head = this.headAt(event);
      if (head !== this.pointed) view.point(head);
      return head === null ? null : this.wordsOf(head);
    });
    this.canvas.addEventListener("pointerleave", () => view.point(null));
    this.canvas.addEventListener("click", (event) => {
      const head = this.headAt(event);
      if (head !== null) view.go(atlas.heads[head]!.label);
    });
    view.onPoint((head) => {
      this.pointed = head;
      this.draw();
    });
    onColourChange(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  draw(): void {
    const width = this.canvas.clientWidth;
    const brush = this.canvas.getContext("2d");
    if (brush === null || width === 0) return;
    const sharp = Math.max(2, devicePixelRatio);
    if (this.canvas.width !== Math.round(width * sharp)) [this.canvas.width, this.canvas.height] = [Math.round(width * sharp), HEIGHT * sharp];
    const style = getComputedStyle(this.canvas);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    brush.setTransform(sharp, 0, 0, sharp, 0, 0);
    brush.clearRect(0, 0, width, HEIGHT);
    brush.font = `11px ${style.getPropertyValue("--hs-sans")}`;
    const [x, y] = this.axes();
    paintAxes(brush, x, y, width, colour("--hs-grid"), colour("--hs-ink"));
    this.atlas.heads.forEach((_, head) => {
      const place = this.place(head, x, y, width);
      if (place === null) return;
      const isIn = passes(this.atlas, this.view.current, head);
      brush.globalAlpha = isIn ? 0.75 : 0.15;
      brush.fillStyle = colour(isIn ? "--hs-c0" : "--hs-muted");
      dot(brush, place, 3.6);
    });
    brush.globalAlpha = 1;
    const marked = this.pointed === null ? null : this.place(this.pointed, x, y, width);
    if (marked !== null) {
      brush.fillStyle = colour("--hs-c1");
      dot(brush, marked, 6);
      brush.fillStyle = colour("--hs-ink");
      brush.textAlign = marked[0] > width / 2 ? "right" : "left";
      brush.fillText(this.atlas.heads[this.pointed!]!.label, marked[0] + (marked[0] > width / 2 ? -9 : 9), marked[1] - 8);
    }
  }

  private axes(): [Axis, Axis] {
    const [first, second] = this.choose();
    return [axisOf(first), axisOf(second)];
  }

  private place(head: number, x: Axis, y: Axis, width: number): readonly [number, number] | null {
    const [across, up] = [share(x, x.quantity.values[head] ?? null), share(y, y.quantity.values[head] ?? null)];
    if (across === null || up === null) return null;
    return [MARGIN.left + across * (width - MARGIN.left - MARGIN.right), HEIGHT - MARGIN.bottom - up * (HEIGHT - MARGIN.top - MARGIN.bottom)];
  }

  private headAt(pointer: MouseEvent): number | null {
    const box = this.canvas.getBoundingClientRect();
    const [left, top] = [pointer.clientX - box.left, pointer.clientY - box.top];
    const [x, y] = this.axes();
    let [best, least]: [number | null, number] = [null, NEAR ** 2];
    this.atlas.heads.forEach((_, head) => {
      const place = this.place(head, x, y, box.width);
      const distance = place === null ? Infinity : (place[0] - left) ** 2 + (place[1] - top) ** 2;
      if (distance < least) [best, least] = [head, distance];
    });
    return best;
  }

  private wordsOf(head: number): string {
    const lines = this.choose().map((quantity) => `${quantity.label}: ${withUnit(quantity.values[head] ?? null, quantity.unit)}`);
    return [this.atlas.heads[head]!.label, ...lines].join("\n");
  }
}

function dot(brush: CanvasRenderingContext2D, [x, y]: readonly [number, number], radius: number): void {
  brush.beginPath();
  brush.arc(x, y, radius, 0, 7);
  brush.fill();
}

function axisOf(quantity: Quantity): Axis {
  const log = quantity.scale === "log";
  const known = quantity.values.filter((value): value is number => value !== null && Number.isFinite(value) && (!log || value > 0));
  const [low, high] = known.length > 0 ? [Math.min(...known), Math.max(...known)] : [0, 1];
  if (log) return { quantity, low: low / 1.1, high: high * 1.1, log };
  const room = (high - low) * 0.04 || Math.abs(low) * 0.1 || 1;
  return { quantity, low: low - room, high: high + room, log };
}

function share({ low, high, log }: Axis, value: number | null): number | null {
  if (value === null || (log && value <= 0)) return null;
  return log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
}

function paintAxes(brush: CanvasRenderingContext2D, x: Axis, y: Axis, width: number, grid: string, ink: string): void {
  const [right, bottom] = [width - MARGIN.right, HEIGHT - MARGIN.bottom];
  brush.strokeStyle = grid;
  brush.fillStyle = ink;
  brush.lineWidth = 1;
  brush.textAlign = "center";
  ticks(x, (right - MARGIN.left) / 70).forEach(([value, label]) => {
    const at = MARGIN.left + (share(x, value) ?? 0) * (right - MARGIN.left);
    brush.beginPath();
    brush.moveTo(at, MARGIN.top);
    brush.lineTo(at, bottom);
    brush.stroke();
    brush.fillText(label, at, bottom + 14);
  });
  brush.fillText(x.quantity.label, (MARGIN.left + right) / 2, HEIGHT - 6, right - MARGIN.left);
  brush.textAlign = "right";
  ticks(y, (bottom - MARGIN.top) / 45).forEach(([value, label]) => {
    const at = bottom - (share(y, value) ?? 0) * (bottom - MARGIN.top);
    brush.beginPath();
    brush.moveTo(MARGIN.left, at);
    brush.lineTo(right, at);
    brush.stroke();
    brush.fillText(label, MARGIN.left - 6, at + 4);
  });
  brush.save();
  brush.translate(12, (MARGIN.top + bottom) / 2);
  brush.rotate(-Math.PI / 2);
  brush.textAlign = "center";
  brush.fillText(y.quantity.label, 0, 0, bottom - MARGIN.top);
  brush.restore();
}

function ticks({ quantity, low, high, log }: Axis, amount: number): [number, string][] {
  const factor = quantity.unit === "share" ? 100 : 1;
  const places = log ? logPlaces(low * factor, high * factor, amount) : linearPlaces(low * factor, high * factor, amount);
  const labels = log ? places.map(logTick) : linearTicks(places);
  return places.map((place, index) => [place / factor, `${labels[index]}${quantity.unit === "share" ? " %" : ""}`]);
}
