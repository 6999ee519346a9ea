/** SVG elements, and text with subscripts for symbols such as W_QK. */

import { visible } from "./numbers";

export const NAMESPACE = "http://www.w3.org/2000/svg";
export const FONT_SIZE = 11;
/** What only helps the reader of the page and is left out of saved files. */
export const TRANSIENT = "transient";

// A letter with a short index, such as W_QK, is a symbol; d_model is the name of a variable and stays as it is.
const SYMBOL = /(?<![\p{L}\p{N}_])([A-Za-zσΣ])_([A-Z]{1,2}|[ij]{2}|[a-z0-9])(?![\p{L}\p{N}_])/gu;

type Value = string | number | undefined;

/** A new element with its attributes and children. */
export function svg<K extends keyof SVGElementTagNameMap>(
  name: K,
  attributes: Readonly<Record<string, Value>> = {},
  ...children: readonly (Node | string)[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(NAMESPACE, name);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

export function setAttributes(element: Element, attributes: Readonly<Record<string, Value>>): void {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined) element.setAttribute(key, typeof value === "number" ? short(value) : value);
  }
}

/** Text with its symbols set in italics with a subscript. */
export function text(words: string, attributes: Readonly<Record<string, Value>> = {}): SVGTextElement {
  const element = svg("text", attributes);
  let end = 0;
  let isLowered = false;
  const append = (part: string, style: Readonly<Record<string, Value>>, shift: number) => {
    if (part) element.append(svg("tspan", shift === 0 ? style : { ...style, dy: `${shift}em` }, part));
  };
  const shown = visible(words);
  for (const match of shown.matchAll(SYMBOL)) {
    const before = shown.slice(end, match.index);
    if (before) {
      append(before, {}, isLowered ? -0.2 : 0);
      isLowered = false;
    }
    append(match[1]!, { "font-style": "italic" }, isLowered ? -0.2 : 0);
    append(match[2]!, { "font-size": "75%" }, 0.2 / 0.75);
    isLowered = true;
    end = match.index + match[0].length;
  }
  append(shown.slice(end), {}, isLowered ? -0.2 : 0);
  return element;
}

let ruler: CanvasRenderingContext2D | null | undefined;
let family: string | undefined;

/** The width of words in the font of the figures, in pixels. */
export function textWidth(words: string, size = FONT_SIZE): number {
  ruler ??= document.createElement("canvas").getContext("2d");
  if (!ruler) return words.length * size * 0.56; // without a canvas: the mean width of a character
  family ??= getComputedStyle(document.querySelector(".headscope") ?? document.body).getPropertyValue("--hs-sans").trim();
  ruler.font = `${size}px ${family || "sans-serif"}`;
  return ruler.measureText(visible(words)).width;
}

/** The words, cut at the end where they are wider than `room` pixels. */
export function fitted(words: string, room: number, size = FONT_SIZE): string {
  if (textWidth(words, size) <= room) return words;
  let letters = [...words];
  while (letters.length > 1 && textWidth(`${letters.join("")}…`, size) > room) letters = letters.slice(0, -1);
  return `${letters.join("")}…`;
}

/** A coordinate with at most two decimals. */
export function short(value: number): string {
  return String(Math.round(value * 100) / 100);
}

/** Where a pointer is, in the units of a drawing. */
export function pointIn(drawing: SVGSVGElement, pointer: { readonly clientX: number; readonly clientY: number }): [number, number] {
  const box = drawing.getBoundingClientRect();
  const { width, height } = drawing.viewBox.baseVal;
  return [((pointer.clientX - box.left) / box.width) * width, ((pointer.clientY - box.top) / box.height) * height];
}
