/** A small model for tests: two layers of three heads, and a cross-attention of one layer. */

import type { Atlas, Quantity } from "../src/data";

export function quantity(more: Partial<Quantity> = {}): Quantity {
  return {
    key: "focus.first", lens: "focus", lens_title: "Focus", label: "mass on the first token", unit: "share", meaning: "Where?",
    scale: "linear", notable: "high", ends: ["", ""], values: [0.1, 0.2, 0.3, 0.4, 0.5, null, 0.7, 0.8], nulls: 0.2, ...more,
  };
}

export const ATLAS: Atlas = {
  model: "example",
  panels: [
    { title: "Decoder", layers: [0, 1], columns: 3, causal: true },
    { title: "Cross-attention", layers: [1], columns: 2, causal: false },
  ],
  heads: [
    ...[0, 1].flatMap((layer) => [0, 1, 2].map((head) => ({ label: `dec.L${layer}.H${head}`, panel: 0, layer, head, roles: layer === 1 && head > 0 ? ["induction head"] : [] }))),
    ...[0, 1].map((head) => ({ label: `dec.L1.cross.H${head}`, panel: 1, layer: 1, head, roles: [] })),
  ],
  quantities: [quantity(), quantity({ key: "focus.distance", label: "mean distance", unit: "tokens", scale: "log", values: [1, 2, 4, 8, 16, 32, 64, 128], nulls: null })],
  curves: [],
};
