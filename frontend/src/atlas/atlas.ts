/** The atlas: every head of the model as a cell of a grid, coloured by any quantity of any lens. */

import type { Atlas, Quantity } from "../data";
import { LEVELS, onColourChange, rgbTable } from "../drawing/colour";
import { number } from "../drawing/numbers";
import { tipOver } from "../drawing/tooltip";
import { quantityMenu } from "../heads/quantity_menu";
import { roleMenu } from "../heads/role_menu";
import { nullOf, quantityOf, withUnit } from "../heads/quantities";
import { element } from "../navigation/element";
import type { View } from "../navigation/view";
import { passes } from "../tables/filters";
import { headAt, layouts, neighbour, type PanelLayout } from "./grid_layout";
import { type HeadColours, headColours } from "./head_colours";

const TALLEST = 520; // pixels: with the title and five findings it fits a laptop's screen
const FADED = 0.18;
const ROOM_FOR_NUMBERS = { width: 38, height: 20 } as const;

const FAINT = 0.45;

/** What an atlas says in its own way; an atlas of one model says what a number is and what its null is. */
export interface AtlasManner {
  readonly words: (quantity: Quantity, head: number) => string; // of the head under the pointer
  readonly isFaint: (quantity: Quantity, head: number) => boolean;
  readonly reference: (quantity: Quantity) => string; // what the colours say
}

/** Builds the atlas in its place on the page. */
export function buildAtlas(place: HTMLElement, atlas: Atlas, view: View, manner: AtlasManner | null = null): void {
  const first = telling(atlas.quantities);
  if (first === undefined) return;
  const picture = new AtlasPicture(place, atlas, view, first, manner);
  picture.draw();
}

/** The quantity that says most at first sight: one with a name for both ends, or the first. */
function telling(quantities: readonly Quantity[]): Quantity | undefined {
  return quantities.find(({ ends }) => ends[0] !== "" && ends[1] !== "") ?? quantities[0];
}

class AtlasPicture {
  private readonly grids = element("div", { class: "atlas-panels", tabindex: 0, role: "group", "aria-label": "Atlas of heads: arrow keys move, Enter opens a head" });
  private readonly bar = element("div", { class: "atlas-bar" });
  private readonly readout = element("p", { class: "atlas-readout", "aria-live": "polite" });
  private readonly menu: HTMLSelectElement;
  private panels: PanelLayout[] = [];
  private canvases: HTMLCanvasElement[] = [];
  private current: number | null = null; // the head that keys have chosen
  private pointed: number | null = null; // the head under the pointer, here or elsewhere

  constructor(private readonly place: HTMLElement, private readonly atlas: Atlas, private readonly view: View, private readonly first: Quantity, private readonly manner: AtlasManner | null) {
    this.menu = quantityMenu(atlas.quantities, "Colour of the atlas", this.quantity.key, (key) => view.change({ colour: key }));
    const tools = element("p", { class: "tools" }, element("label", {}, "Colour ", this.menu), ...roleMenu(atlas, view));
    place.querySelector(".no-script")?.remove();
    place.append(tools, this.grids, this.bar, this.readout);
    this.grids.addEventListener("keydown", (event) => this.onKey(event));
    this.grids.addEventListener("blur", () => this.choose(null));
    view.listen(() => this.paint());
    view.onPoint((head) => {
      this.pointed = head;
      this.paintCells();
    });
    onColourChange(() => this.paint());
    new ResizeObserver(() => this.draw()).observe(place);
  }

  private get quantity(): Quantity {
    return quantityOf(this.atlas, this.view.current.colour) ?? this.first;
  }

  /** Lays out the cells for the room that there is, and paints them. */
  draw(): void {
    const width = this.place.clientWidth;
    if (width === 0) return; // not shown
    this.panels = layouts(this.atlas.panels, this.atlas.heads, width, TALLEST);
    this.canvases = this.panels.map((layout) => this.canvasOf(layout));
    const titled = this.panels.map((layout, index) => {
      const title = this.atlas.panels.length > 1 ? [element("h3", {}, layout.panel.title)] : [];
      return element("div", {}, ...title, this.canvases[index]!);
    });
    this.grids.replaceChildren(...titled);
    this.paint();
  }

  private canvasOf(layout: PanelLayout): HTMLCanvasElement {
    const canvas = element("canvas", { class: "atlas-grid" });
    const { width, height } = sizeOf(layout);
    const sharp = Math.max(2, devicePixelRatio);
    [canvas.width, canvas.height] = [width * sharp, height * sharp];
    canvas.style.cssText = `width:${width}px;height:${height}px`;
    const at = (event: MouseEvent) => {
      const box = canvas.getBoundingClientRect();
      return headAt(layout, ((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height);
    };
    tipOver(canvas, (event) => {
      const head = at(event);
      this.view.point(head);
      return head === null ? null : this.wordsOf(head);
    });
    canvas.addEventListener("pointerleave", () => this.view.point(null));
    canvas.addEventListener("click", (event) => this.open(at(event)));
    return canvas;
  }

  private open(head: number | null): void {
    const label = head === null ? undefined : this.atlas.heads[head]?.label;
    if (label !== undefined) this.view.go(label);
  }

  private onKey(event: KeyboardEvent): void {
    if (event.key === "Enter") return this.open(this.current);
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    this.choose(this.current === null ? (this.panels[0]?.cells[0]?.head ?? null) : neighbour(this.panels, this.current, event.key));
  }

  private choose(head: number | null): void {
    this.current = head;
    this.readout.textContent = head === null ? "" : this.wordsOf(head).replaceAll("\n", "; ");
    this.paintCells();
  }

  private wordsOf(head: number): string {
    const { quantity, manner } = this;
    if (manner !== null) return manner.words(quantity, head);
    const reference = nullOf(quantity, head);
    const value = `${quantity.label}: ${withUnit(quantity.values[head] ?? null, quantity.unit)}`;
    const { label, roles } = this.atlas.heads[head]!;
    return [label, ...(roles.length > 0 ? [roles.join(", ")] : []), value, ...(reference === null ? [] : [`null ${withUnit(reference, quantity.unit)}`])].join("\n");
  }

  private paint(): void {
    if (this.panels.length === 0) return;
    this.menu.value = this.quantity.key;
    this.paintCells();
    this.bar.replaceChildren(...colourBar(this.quantity, headColours(this.quantity), this.manner?.reference(this.quantity) ?? null));
  }

  private paintCells(): void {
    const colours = headColours(this.quantity);
    this.panels.forEach((layout, index) => this.paintPanel(this.canvases[index]!, layout, colours));
  }

  private paintPanel(canvas: HTMLCanvasElement, layout: PanelLayout, colours: HeadColours | null): void {
    const brush = canvas.getContext("2d");
    if (brush === null) return;
    const style = getComputedStyle(canvas);
    const [ink, muted] = ["--hs-ink", "--hs-muted"].map((name) => style.getPropertyValue(name).trim()) as [string, string];
    const sharp = canvas.width / sizeOf(layout).width; // on paper the canvas may be shown smaller than it was drawn
    brush.setTransform(sharp, 0, 0, sharp, 0, 0);
    brush.clearRect(0, 0, canvas.width, canvas.height);
    brush.font = `10.5px ${style.getPropertyValue("--hs-sans")}`;
    paintLabels(brush, layout, muted);
    const rgb = colours === null ? null : rgbTable(canvas, colours.scale.family);
    for (const cell of layout.cells) {
      const [x, y] = [layout.left + cell.column * layout.width, layout.top + cell.row * layout.height];
      const isFaint = this.manner?.isFaint(this.quantity, cell.head) ?? false;
      brush.globalAlpha = !passes(this.atlas, this.view.current, cell.head) ? FADED : isFaint ? FAINT : 1;
      const level = colours === null ? null : colours.scale.level(colours.shades[cell.head] ?? null);
      if (level === null || rgb === null) {
        brush.strokeStyle = muted;
        brush.strokeRect(x + 1.5, y + 1.5, layout.width - 4, layout.height - 4);
      } else {
        brush.fillStyle = `rgb(${rgb[level * 3]},${rgb[level * 3 + 1]},${rgb[level * 3 + 2]})`;
        brush.fillRect(x, y, layout.width - 1, layout.height - 1);
        if (layout.width >= ROOM_FOR_NUMBERS.width && layout.height >= ROOM_FOR_NUMBERS.height) {
          brush.fillStyle = readableOn(rgb, level);
          brush.textAlign = "center";
          brush.fillText(this.shortNumber(cell.head), x + layout.width / 2, y + layout.height / 2 + 3.5, layout.width - 4);
        }
      }
      brush.globalAlpha = 1;
      if (cell.head === this.current || cell.head === this.pointed) {
        brush.strokeStyle = ink;
        brush.lineWidth = 2;
        brush.strokeRect(x, y, layout.width - 1, layout.height - 1);
        brush.lineWidth = 1;
      }
    }
  }

  private shortNumber(head: number): string {
    const value = this.quantity.values[head] ?? null;
    if (value === null) return "";
    return this.quantity.unit === "share" ? `${number(100 * value, 2)} %` : number(value, 2);
  }
}

/** The size of a panel in pixels of the page. */
function sizeOf(layout: PanelLayout): { width: number; height: number } {
  return { width: layout.left + layout.width * layout.panel.columns + 1, height: layout.top + layout.height * layout.panel.layers.length + 1 };
}

/** Names of layers and heads, as many as there is room for. */
function paintLabels(brush: CanvasRenderingContext2D, layout: PanelLayout, colour: string): void {
  const { layers, columns } = layout.panel;
  brush.fillStyle = colour;
  brush.textAlign = "right";
  const everyRow = Math.ceil(13 / layout.height);
  layers.forEach((layer, row) => {
    if (row % everyRow === 0) brush.fillText(`L${layer}`, layout.left - 6, layout.top + (row + 0.5) * layout.height + 3);
  });
  brush.textAlign = "center";
  const everyColumn = Math.ceil(22 / layout.width);
  for (let column = 0; column < columns; column += everyColumn) {
    brush.fillText(`H${column}`, layout.left + (column + 0.5) * layout.width, layout.top - 6);
  }
}

/** Black or white, whichever is easier to read on a colour. */
function readableOn(rgb: Uint8ClampedArray, level: number): string {
  const [red, green, blue] = [rgb[level * 3]!, rgb[level * 3 + 1]!, rgb[level * 3 + 2]!];
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111" : "#fff";
}

/** The bar under the grid: colours from low to high, with the null marked. */
function colourBar(quantity: Quantity, colours: HeadColours | null, words: string | null): Node[] {
  if (colours === null) return ["No head has this number."].map((words) => element("span", {}, words));
  const { scale, isRelative, isCut } = colours;
  const [first, last] = [scale.level(scale.low) ?? 0, scale.level(scale.high) ?? LEVELS - 1];
  const strip = element("span", { class: "strip" });
  const steps = Array.from({ length: last - first + 1 }, (_, index) => `var(--hs-${scale.family}${first + index})`);
  strip.style.background = `linear-gradient(90deg, ${steps.join(",")})`;
  if (scale.reference !== null) {
    const middle = (scale.level(scale.reference) ?? 0) - first + 0.5;
    const mark = element("i", { "data-tip": words !== null ? "no difference" : isRelative ? "the null of each head" : `null ${withUnit(scale.reference, quantity.unit)}` });
    mark.style.left = `${(100 * middle) / (last - first + 1)}%`;
    strip.append(mark);
  }
  const written = (value: number) => (isRelative && quantity.scale === "log" ? `${number(value)} × null` : isRelative ? signed(value, quantity.unit) : withUnit(value, quantity.unit));
  const reference = words !== null ? words : isRelative ? "null of each head in the middle" : scale.reference === null ? "no null" : `null ${withUnit(scale.reference, quantity.unit)}`;
  return [
    element("span", {}, `${isCut[0] ? "≤ " : ""}${written(scale.low)}`),
    strip,
    element("span", {}, `${isCut[1] ? "≥ " : ""}${written(scale.high)}`),
    element("span", { class: "quiet" }, reference),
  ];
}

function signed(value: number, unit: string): string {
  return `${value > 0 ? "+" : ""}${unit === "share" ? `${number(100 * value)} points` : withUnit(value, unit)}`;
}
