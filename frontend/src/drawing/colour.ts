/**
 * Colour scales whose colours are variables of the style sheet, so that one drawing serves light, dark and print.
 *
 * `--hs-v0` to `--hs-v63` run from low to high, `--hs-d0` to `--hs-d63` away from a reference in the middle. People
 * with any colour vision can tell them apart. A canvas cannot use variables: it asks `rgbTable` for their values.
 */

export const LEVELS = 64;
export const STEPS = 32; // `--hs-s0` …: colours of many curves in their order
export const SERIES = 6; // `--hs-c0` …: colours of few curves

export type Family = "v" | "d"; // sequential, diverging

export interface ColourScale {
  readonly family: Family;
  readonly low: number; // the ends of the colour bar
  readonly high: number;
  readonly reference: number | null;
  /** The index of a value's colour; null where the value is missing or cannot be placed. */
  level(value: number | null): number | null;
  /** A value's colour as CSS; transparent where it is missing. */
  colour(value: number | null): string;
  /** The smallest value of a colour; `bound(LEVELS)` ends the last one. */
  bound(level: number): number;
}

interface Measure {
  readonly to: (value: number) => number;
  readonly back: (value: number) => number;
}

const LINEAR: Measure = { to: (value) => value, back: (value) => value };
const LOG: Measure = { to: Math.log10, back: (value) => 10 ** value };

/** Colours from low to high; with `log` in equal steps of the logarithm. */
export function sequentialScale(low: number, high: number, { log = false } = {}): ColourScale {
  const measure = log ? LOG : LINEAR;
  const [start, end] = widened(measure.to(low), measure.to(high));
  return scale("v", measure, start, end, [start, end], null);
}

/**
 * Colours away from `reference`, which has the colour in the middle.
 *
 * Equal steps of colour mean equal steps of value on both sides, so that the farther end uses the full scale.
 */
export function divergingScale(low: number, high: number, reference: number, { log = false } = {}): ColourScale {
  const measure = log ? LOG : LINEAR;
  const middle = measure.to(reference);
  const [start, end] = widened(Math.min(measure.to(low), middle), Math.max(measure.to(high), middle));
  const reach = Math.max(end - middle, middle - start);
  return scale("d", measure, middle - reach, middle + reach, [start, end], reference);
}

/** The scale of the finite values, diverging where there is a reference; null where no value can be placed. */
export function scaleOf(
  values: Iterable<number | null>,
  { reference = null, limits = null, log = false }: ScaleOptions = {},
): ColourScale | null {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (limits) [low, high] = limits;
  const canPlace = reference !== null && Number.isFinite(reference) && !(log && reference <= 0);
  return canPlace ? divergingScale(low, high, reference, { log }) : sequentialScale(low, high, { log });
}

export interface ScaleOptions {
  readonly reference?: number | null;
  readonly limits?: readonly [number, number] | null;
  readonly log?: boolean;
}

function scale(
  family: Family,
  measure: Measure,
  start: number,
  end: number,
  ends: readonly [number, number],
  reference: number | null,
): ColourScale {
  const level = (value: number | null): number | null => {
    if (value === null) return null;
    const place = Math.floor(((measure.to(value) - start) / (end - start)) * LEVELS);
    return Number.isNaN(place) ? null : Math.min(LEVELS - 1, Math.max(0, place));
  };
  return {
    family,
    low: measure.back(ends[0]),
    high: measure.back(ends[1]),
    reference,
    level,
    colour: (value) => variable(family, level(value)),
    bound: (index) => measure.back(start + ((end - start) * index) / LEVELS),
  };
}

/** Room around a single value, so that it gets a colour too. */
function widened(low: number, high: number): [number, number] {
  if (high > low) return [low, high];
  const room = Math.abs(low) * 1e-3 || 1e-3;
  return [low - room, high + room];
}

function variable(family: Family, level: number | null): string {
  return level === null ? "transparent" : `var(--hs-${family}${level})`;
}

/** The colour of one of few curves. */
export function seriesColour(index: number): string {
  return `var(--hs-c${index % SERIES})`;
}

/** The colour of one of many curves, in their order. */
export function stepColour(index: number, amount: number): string {
  return `var(--hs-s${amount > 1 ? Math.round((index * (STEPS - 1)) / (amount - 1)) : 0})`;
}

/** Red, green and blue of each colour of a family as the style sheet has them at this element, for a canvas. */
export function rgbTable(element: Element, family: Family): Uint8ClampedArray {
  const style = getComputedStyle(element);
  const table = new Uint8ClampedArray(LEVELS * 3);
  for (let level = 0; level < LEVELS; level++) {
    const hex = Number.parseInt(style.getPropertyValue(`--hs-${family}${level}`).trim().slice(1), 16);
    table.set([(hex >> 16) & 255, (hex >> 8) & 255, hex & 255], level * 3);
  }
  return table;
}

/** Calls `redraw` whenever the colours of the page change: another scheme, or the colours of paper for a print. */
export function onColourChange(redraw: () => void): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
}
