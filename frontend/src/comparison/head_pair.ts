/** The page of one head in two models: both patterns side by side, and every number in both. */

import { headTitle } from "../heads/head_page";
import { patternView } from "../heads/pattern_view";
import { withUnit } from "../heads/quantities";
import { element, withSymbols } from "../navigation/element";
import type { View } from "../navigation/view";
import { atlasOf, type ComparedPair, type ComparedQuantity, type Comparison } from "./comparison_data";
import { intervalWords, movedWords, signedNumber } from "./difference_words";

export function headContent(comparison: Comparison, pair: ComparedPair, head: number, view: View): Node[] {
  const atlas = atlasOf(comparison, pair);
  const patterns = [0, pair.model].map((model) => patternOf(comparison, pair, model, head));
  return [
    headTitle(atlas, head, view, "← Comparison"),
    element("div", { class: "pattern-pair" }, ...patterns),
    element("h2", {}, "Every quantity in both"),
    numbersOf(comparison, pair, head),
  ];
}

function patternOf(comparison: Comparison, pair: ComparedPair, model: number, head: number): HTMLElement {
  const patterns = comparison.patterns[model] ?? null;
  const view = patterns === null ? null : patternView(atlasOf(comparison, pair), patterns, head);
  return element("div", {}, element("h2", {}, comparison.models[model]!), view ?? element("p", { class: "quiet" }, "This run keeps no pattern of this head."));
}

/** The numbers of one head, in groups by lens. */
function numbersOf(comparison: Comparison, pair: ComparedPair, head: number): HTMLElement {
  const letters = [0, pair.model].map((model) => comparison.models[model]!.slice(0, 1));
  const names = ["Quantity", ...letters, "Difference", "95 % interval", "Effect", "Moved"];
  const headings = names.map((words, index) => element("th", { scope: "col", class: index > 0 && index < 6 ? "n" : undefined }, words));
  const groups = new Map<string, HTMLElement[]>();
  for (const quantity of pair.quantities) groups.set(quantity.lens, [...(groups.get(quantity.lens) ?? []), rowOf(quantity, head)]);
  const bodies = [...groups].map(([lens, rows]) => {
    const title = pair.quantities.find((quantity) => quantity.lens === lens)!.lens_title;
    const group = element("th", { scope: "rowgroup", colspan: names.length }, element("a", { href: `#lens-${lens}` }, title));
    return element("tbody", {}, element("tr", { class: "group" }, group), ...rows);
  });
  return element("div", { class: "scroll" }, element("table", { class: "head-numbers" }, element("thead", {}, element("tr", {}, ...headings)), ...bodies));
}

function rowOf(quantity: ComparedQuantity, head: number): HTMLTableRowElement {
  const effect = quantity.effect[head] ?? null;
  const unit = quantity.unit === "points" ? " points" : "";
  const difference = quantity.values[head] ?? null;
  const cells = [
    withUnit(quantity.base[head] ?? null, quantity.value_unit),
    withUnit(quantity.other[head] ?? null, quantity.value_unit),
    difference === null ? "–" : `${signedNumber(difference)}${unit}`,
    intervalWords(quantity, head),
    effect === null ? "–" : effect.toFixed(2),
  ].map((words) => element("td", { class: "n" }, words));
  const words = movedWords(quantity, head);
  return element(
    "tr", {}, element("th", { scope: "row" }, ...withSymbols(quantity.label)), ...cells,
    element("td", { class: words === "moved" ? "has-moved" : "quiet" }, words),
  );
}
