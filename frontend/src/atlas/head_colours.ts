/** The colours of heads by one quantity: the null has the colour in the middle. */

import type { Quantity } from "../data";
import { type ColourScale, scaleOf } from "../drawing/colour";
import { nullOf } from "../heads/quantities";

const MANY = 50; // from so many heads on a few extreme ones may leave the scale
const TAIL = 0.02;
const ROUNDING = 1e-9;

export interface HeadColours {
  readonly scale: ColourScale;
  readonly shades: readonly (number | null)[]; // the value of each head on the scale
  readonly isRelative: boolean; // whether the scale shows differences from nulls that differ between heads
  readonly isCut: readonly [boolean, boolean]; // whether values lie beyond its ends
}

/** The colours; null where no head has a number. */
export function headColours(quantity: Quantity): HeadColours | null {
  const log = quantity.scale === "log";
  const isRelative = Array.isArray(quantity.nulls) && quantity.nulls.some((value) => value !== null);
  const shades = isRelative ? quantity.values.map((value, head) => compared(value, nullOf(quantity, head), log)) : quantity.values;
  const reference = isRelative ? (log ? 1 : 0) : typeof quantity.nulls === "number" ? quantity.nulls : null;
  const limits = innerRange(shades);
  const scale = scaleOf(shades, { reference, limits, log });
  if (scale === null) return null;
  const known = shades.filter((value): value is number => value !== null);
  const rounding = ROUNDING * (scale.high - scale.low);
  const isCut = [known.some((value) => value < scale.low - rounding), known.some((value) => value > scale.high + rounding)] as const;
  return { scale, shades, isRelative, isCut };
}

/** A value beside its null: their ratio on a logarithmic scale, else their difference. */
function compared(value: number | null, reference: number | null, log: boolean): number | null {
  if (value === null || reference === null) return null;
  return log ? value / reference : value - reference;
}

/** The range without the few largest and smallest values, where there are many and they would hide the others. */
export function innerRange(values: readonly (number | null)[]): readonly [number, number] | null {
  const sorted = values.filter((value): value is number => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
  if (sorted.length < MANY) return null;
  const at = (share: number) => sorted[Math.round(share * (sorted.length - 1))]!;
  const [low, high] = [at(TAIL), at(1 - TAIL)];
  const [least, most] = [sorted[0]!, sorted[sorted.length - 1]!];
  return high > low && most - least > 1.5 * (high - low) ? [low, high] : null;
}
