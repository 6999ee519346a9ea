/** An attention map of bytes on a canvas: one pixel for each weight, enlarged by the browser without smoothing. */

import { LEVELS, onColourChange, rgbTable } from "./colour";
import { number, visible } from "./numbers";
import { tipOver } from "./tooltip";

export interface AttentionMap {
  readonly bytes: Uint8Array; // row by row; 255 is the largest weight of the map
  readonly power?: number; // a byte means the share (byte / 255) ** power of the largest weight; 1 where it is missing
  readonly queries: number;
  readonly keys: number;
  readonly causal: boolean; // then row q holds its first q + 1 keys and no more
  readonly largest: number; // the weight that byte 255 means
  readonly weights?: Float32Array; // the exact weights, in the order of the bytes
}

export interface Place {
  readonly query: number;
  readonly key: number;
}

export interface AttentionMapOptions {
  readonly queryTokens?: readonly string[];
  readonly keyTokens?: readonly string[];
  /** A variable of the style sheet: weights are shades of its colour, over whatever lies below. */
  readonly ink?: `--${string}`;
  /** What a weight's share of the largest becomes before it is coloured; the square root shows small weights better. */
  readonly tone?: (share: number) => number;
  /** Called with the cell under the pointer, and with null when the pointer leaves. */
  readonly onHover?: (place: Place | null) => void;
  readonly onPick?: (place: Place) => void;
}

/** The bytes of base64 text. */
export function bytesOf(base64: string): Uint8Array {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
  return bytes;
}

/** Where a weight is among the bytes; null where the map is masked. */
export function byteIndex(map: AttentionMap, query: number, key: number): number | null {
  if (!map.causal) return query * map.keys + key;
  if (key > query) return null;
  const full = Math.max(0, query - map.keys + 1); // rows beyond the last key are full
  return (query * (query + 1)) / 2 - (full * (full - 1)) / 2 + key;
}

/** The weight of a cell; null where the map is masked. */
export function weightAt(map: AttentionMap, query: number, key: number): number | null {
  const index = byteIndex(map, query, key);
  if (index === null) return null;
  return map.weights?.[index] ?? ((map.bytes[index] ?? 0) / 255) ** (map.power ?? 1) * map.largest;
}

/** A new canvas with the map; its size on the page is up to the style sheet (`canvas.attention-map`). */
export function attentionMap(map: AttentionMap, options: AttentionMapOptions = {}): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.className = "attention-map";
  canvas.width = map.keys;
  canvas.height = map.queries;
  canvas.setAttribute("role", "img");
  const paint = () => paintMap(canvas, map, options.tone ?? ((share) => share), options.ink);
  // Colours are known once the canvas is part of the page.
  requestAnimationFrame(paint);
  onColourChange(paint);
  tipOver(canvas, (event) => {
    const place = placeAt(canvas, map, event);
    options.onHover?.(place);
    return place === null ? null : wordsOf(map, place, options);
  });
  canvas.addEventListener("pointerleave", () => options.onHover?.(null));
  canvas.addEventListener("click", (event) => {
    const place = placeAt(canvas, map, event);
    if (place !== null) options.onPick?.(place);
  });
  return canvas;
}

function paintMap(canvas: HTMLCanvasElement, map: AttentionMap, tone: (share: number) => number, ink: string | undefined): void {
  const brush = canvas.getContext("2d");
  if (brush === null) return;
  const colours = byteColours(canvas, (byte) => tone((byte / 255) ** (map.power ?? 1)), ink);
  const picture = brush.createImageData(map.keys, map.queries);
  const pixels = new Uint32Array(picture.data.buffer);
  for (let query = 0; query < map.queries; query++) {
    for (let key = 0; key < map.keys; key++) {
      const index = byteIndex(map, query, key);
      if (index === null) break; // the rest of the row is masked and stays transparent
      pixels[query * map.keys + key] = colours[map.bytes[index] ?? 0]!;
    }
  }
  brush.putImageData(picture, 0, 0);
}

/** The pixel of each byte: a colour of the scale, or a shade of one colour. */
function byteColours(canvas: HTMLCanvasElement, tone: (byte: number) => number, ink: string | undefined): Uint32Array {
  const pixels = new Uint8ClampedArray(256 * 4);
  const scale = ink === undefined ? rgbTable(canvas, "v") : null;
  const hex = ink === undefined ? 0 : Number.parseInt(getComputedStyle(canvas).getPropertyValue(ink).trim().slice(1), 16);
  for (let byte = 0; byte < 256; byte++) {
    const level = Math.floor(Math.min(LEVELS - 1, tone(byte) * LEVELS));
    const colour = scale === null ? [hex >> 16, (hex >> 8) & 255, hex & 255, 255 * tone(byte)] : [...scale.slice(level * 3, level * 3 + 3), 255];
    pixels.set(colour, byte * 4);
  }
  return new Uint32Array(pixels.buffer);
}

/** The cell under the pointer; null outside and where the map is masked. */
function placeAt(canvas: HTMLCanvasElement, map: AttentionMap, pointer: MouseEvent): Place | null {
  const box = canvas.getBoundingClientRect();
  const key = Math.floor(((pointer.clientX - box.left) / box.width) * map.keys);
  const query = Math.floor(((pointer.clientY - box.top) / box.height) * map.queries);
  const isInside = key >= 0 && key < map.keys && query >= 0 && query < map.queries;
  return isInside && byteIndex(map, query, key) !== null ? { query, key } : null;
}

function wordsOf(map: AttentionMap, { query, key }: Place, options: AttentionMapOptions): string {
  const from = named(query, options.queryTokens);
  const to = named(key, options.keyTokens);
  return `${from} → ${to}: ${number(weightAt(map, query, key))}`;
}

function named(index: number, tokens: readonly string[] | undefined): string {
  const token = tokens?.[index];
  return token === undefined ? String(index) : `${index} “${visible(token)}”`;
}
