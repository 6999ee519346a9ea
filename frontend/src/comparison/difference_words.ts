/** A difference in words: its sign, its interval, and whether the head moved. */

import { number } from "../drawing/numbers";
import { withUnit } from "../heads/quantities";
import type { ComparedPair, ComparedQuantity } from "./comparison_data";
import { MOVEMENT } from "./comparison_data";

export function signedNumber(value: number | null): string {
  if (value === null) return "–";
  return `${value > 0 ? "+" : ""}${number(value)}`;
}

/** `+12 to +18`, or why there is no interval. */
export function intervalWords({ low, high, certainty }: ComparedQuantity, head: number): string {
  const [from, to] = [low?.[head] ?? null, high?.[head] ?? null];
  if (certainty === "exact") return "exact";
  return from === null || to === null ? "no stored error" : `${signedNumber(from)} to ${signedNumber(to)}`;
}

export function movedWords({ certainty, moved, values }: ComparedQuantity, head: number): string {
  if ((values[head] ?? null) === null) return "–";
  if (certainty === "unknown") return "not known";
  return moved[head] === "1" ? "moved" : "no";
}

/** What the atlas says about a head under the pointer. */
export function tipWords(label: string, pair: ComparedPair, key: string, head: number): string {
  if (key === MOVEMENT) return `${label}\nmovement over all lenses: ${number(pair.movement[head] ?? 0)}`;
  const quantity = pair.quantities.find((candidate) => candidate.key === key);
  if (quantity === undefined) return label;
  const unit = quantity.unit === "" ? "" : ` ${quantity.unit}`;
  const interval = intervalWords(quantity, head);
  return [
    label,
    `${quantity.label}: ${withUnit(quantity.base[head] ?? null, quantity.value_unit)} → ${withUnit(quantity.other[head] ?? null, quantity.value_unit)}`,
    `difference ${signedNumber(quantity.values[head] ?? null)}${unit}`,
    quantity.certainty === "interval" && interval !== "no stored error" ? `95 % interval ${interval}` : interval === "exact" ? "from the weights alone" : interval,
    ...(quantity.certainty === "unknown" ? [] : [quantity.moved[head] === "1" ? "moved" : "no movement detected"]),
  ].join("\n");
}
