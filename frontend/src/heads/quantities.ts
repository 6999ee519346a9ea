/** Numbers of heads: with their units, beside their nulls, in their ranks. */

import type { Atlas, Quantity } from "../data";
import { number } from "../drawing/numbers";

/** A number with its unit; shares in percent. */
export function withUnit(value: number | null, unit: string): string {
  if (value === null) return "–";
  if (unit === "share") return `${number(100 * value)} %`;
  return unit ? `${number(value)} ${unit}` : number(value);
}

/** The null of one head; null where there is none. */
export function nullOf({ nulls }: Quantity, head: number): number | null {
  return typeof nulls === "number" || nulls === null ? nulls : (nulls[head] ?? null);
}

/** How many heads have a larger number, plus one; null for a head without a number. */
export function rankOf({ values }: Quantity, head: number): number | null {
  const value = values[head] ?? null;
  return value === null ? null : 1 + values.filter((other) => other !== null && other > value).length;
}

export function quantityOf(atlas: Atlas, key: string | null): Quantity | null {
  return atlas.quantities.find((quantity) => quantity.key === key) ?? null;
}

/** The quantities by lens, in the order of the report. */
export function byLens(quantities: readonly Quantity[]): Map<string, Quantity[]> {
  const groups = new Map<string, Quantity[]>();
  for (const quantity of quantities) groups.set(quantity.lens, [...(groups.get(quantity.lens) ?? []), quantity]);
  return groups;
}

/** The first quantity of each lens. */
export function mainQuantities(quantities: readonly Quantity[]): Quantity[] {
  return [...byLens(quantities).values()].map((group) => group[0]!);
}
