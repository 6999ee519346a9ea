/** The data of a comparison, as `src/headscope/comparison/page_data.py` writes it. */

import type { Atlas, Head, Numbers, Panel, Patterns, Quantity } from "../data";

/** One quantity of all heads in two models; numbers are in the units in which they are shown. */
export interface ComparedQuantity {
  readonly key: string;
  readonly lens: string;
  readonly lens_title: string;
  readonly label: string;
  readonly unit: string; // of the difference: "points" for shares
  readonly value_unit: string;
  readonly meaning: string;
  readonly base: Numbers;
  readonly other: Numbers;
  readonly values: Numbers; // the differences
  readonly low: Numbers | null; // the interval of the difference; null where no error is known
  readonly high: Numbers | null;
  readonly effect: Numbers;
  readonly moved: string; // a character for each head: "1" where it moved
  readonly certainty: "interval" | "exact" | "unknown";
}

export interface ComparedPair {
  readonly pair: number; // the number of the parts of the page that belong to it
  readonly model: number; // the place of the other model
  readonly title: string;
  readonly movement: Numbers;
  readonly quantities: readonly ComparedQuantity[];
}

export interface Comparison {
  readonly models: readonly string[]; // "A: tiny"
  readonly panels: readonly Panel[];
  readonly heads: readonly Head[];
  readonly pairs: readonly ComparedPair[]; // those whose heads correspond
  readonly patterns: readonly (Patterns | null)[]; // by model
}

export const MOVEMENT = "movement";

/** The differences of a pair as the quantities of an atlas, with 0 in the middle of every scale. */
export function atlasOf(comparison: Comparison, pair: ComparedPair): Atlas {
  const common = { scale: "linear", notable: "both", ends: ["", ""], nulls: 0 } as const;
  const movement: Quantity = {
    ...common, key: MOVEMENT, lens: "all lenses", lens_title: "All lenses", label: "movement over all lenses", unit: "",
    meaning: "How far did a head move? The mean over lenses of its largest effect.", values: pair.movement,
  };
  const quantities = pair.quantities.map(({ key, lens, lens_title, label, unit, meaning, values }): Quantity => ({
    ...common, key, lens, lens_title, label, unit, meaning, values,
  }));
  return { model: pair.title, panels: comparison.panels, heads: comparison.heads, quantities: [movement, ...quantities], curves: [] };
}

/** Whether a head moved in a quantity; in the movement over all lenses, whether it moved at all. */
export function hasMoved(pair: ComparedPair, key: string, head: number): boolean {
  if (key === MOVEMENT) return (pair.movement[head] ?? 0) > 0;
  return pair.quantities.find((quantity) => quantity.key === key)?.moved[head] === "1";
}
