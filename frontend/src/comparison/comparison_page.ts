/** The page of a comparison: one pair of models at a time, its atlas, its cards, and a page for each head. */

import { buildAtlas } from "../atlas/atlas";
import { attentionMap } from "../drawing/attention_map";
import { lookOf, smallMap } from "../heads/head_map";
import { showHeads } from "../heads/head_page";
import { element, whenNear } from "../navigation/element";
import { equipSearch } from "../navigation/search";
import type { View } from "../navigation/view";
import type { Transport } from "../transport";
import { atlasOf, type ComparedPair, type Comparison, hasMoved, MOVEMENT } from "./comparison_data";
import { tipWords } from "./difference_words";
import { headContent } from "./head_pair";

/** Brings a comparison to life; does nothing on other pages. */
export async function buildComparison(page: Document, view: View, transport: Transport): Promise<void> {
  const [comparison, lenses] = await Promise.all([transport.comparison(), transport.lenses()]);
  const first = comparison?.pairs[0];
  if (comparison === null || first === undefined) return;
  let current = first;
  const choose = (pair: ComparedPair) => {
    current = pair;
    for (const part of page.querySelectorAll<HTMLElement>("[data-pair]")) part.hidden = Number(part.dataset["pair"]) !== pair.pair;
  };
  drawAtlases(page, comparison, view);
  addPairMenu(page, comparison, choose);
  choose(first);
  equipSearch(page, view, atlasOf(comparison, first), lenses);
  drawPairCards(page, comparison);
  showHeads(page, view, atlasOf(comparison, first), (head) => headContent(comparison, current, head, view));
}

function drawAtlases(page: Document, comparison: Comparison, view: View): void {
  page.querySelector("#atlas .no-script")?.remove();
  for (const pair of comparison.pairs) {
    const place = page.querySelector<HTMLElement>(`.atlas-of[data-pair="${pair.pair}"]`);
    if (place === null) continue;
    buildAtlas(place, atlasOf(comparison, pair), view, {
      words: ({ key }, head) => tipWords(comparison.heads[head]!.label, pair, key, head),
      isFaint: ({ key }, head) => !hasMoved(pair, key, head),
      reference: ({ key }) => (key === MOVEMENT ? "0: nothing moved; 1: across the range of all heads" : "no difference in the middle; faint: not moved"),
    });
  }
}

/** A menu of the pairs, where there are several. */
function addPairMenu(page: Document, { pairs }: Comparison, choose: (pair: ComparedPair) => void): void {
  if (pairs.length < 2) return;
  const menu = element("select", { "aria-label": "Models that are compared" }, ...pairs.map(({ title }, index) => element("option", { value: index }, title)));
  menu.addEventListener("change", () => choose(pairs[Number(menu.value)]!));
  page.querySelector("#atlas > h2")?.after(element("p", { class: "tools pair-menu" }, element("label", {}, "Difference ", menu)));
}

/** Puts the patterns of both models into each card. */
function drawPairCards(page: Document, comparison: Comparison): void {
  whenNear(page.querySelectorAll<HTMLElement>(".pair-card"), (card) => {
    const pair = comparison.pairs.find((candidate) => candidate.pair === Number(card.dataset["of"]));
    if (pair === undefined) return;
    const atlas = atlasOf(comparison, pair);
    const maps = [0, pair.model].map((model) => {
      const patterns = comparison.patterns[model] ?? null;
      const map = patterns === null ? null : smallMap(atlas, patterns, Number(card.dataset["head"]));
      const name = element("small", {}, comparison.models[model]!.slice(0, 1));
      return element("span", { class: "pattern" }, ...(map === null ? ["no pattern"] : [attentionMap(map, lookOf(map))]), name);
    });
    card.prepend(element("span", { class: "pair-patterns" }, ...maps));
  });
}
