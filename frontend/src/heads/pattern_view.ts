/** The pattern of one head on real tokens: a map, and the text that each of its rows is about. */

import type { Atlas, Patterns } from "../data";
import { attentionMap, type AttentionMap, weightAt } from "../drawing/attention_map";
import { number, visible } from "../drawing/numbers";
import { element } from "../navigation/element";
import { lookOf, smallMap, tokensOf } from "./head_map";
import { TokenText } from "./token_text";

const STRONGEST = 6; // keys that are listed

/** The view; null where the page has no map of the head. */
export function patternView(atlas: Atlas, patterns: Patterns, head: number): HTMLElement | null {
  const map = smallMap(atlas, patterns, head);
  if (map === null) return null;
  const { queries, keys } = tokensOf(atlas, patterns, head);
  return new PatternView(map, queries, keys).place;
}

class PatternView {
  readonly place = element("div", { class: "pattern-view" });
  private readonly marker = element("div", { class: "row-marker", hidden: true });
  private readonly state = element("p", { class: "quiet", "aria-live": "polite" });
  private readonly list = element("ol", { class: "strongest" });
  private readonly asking: TokenText;
  private readonly answering: TokenText;
  private readonly pairs: readonly [number, number, number][];
  private locked: number | null = null;

  constructor(private readonly map: AttentionMap, private readonly queries: readonly string[], private readonly keys: readonly string[]) {
    this.pairs = strongestPairs(map);
    const isOneText = queries.join("\0") === keys.join("\0");
    const pick = (query: number) => this.lock(query);
    const hover = (query: number | null) => this.show(query ?? this.locked);
    this.asking = new TokenText(queries, pick, hover);
    this.answering = isOneText ? this.asking : new TokenText(keys, () => undefined, () => undefined);
    const canvas = attentionMap(map, {
      queryTokens: queries, keyTokens: keys, ...lookOf(map),
      onHover: (cell) => {
        this.show(cell?.query ?? this.locked);
        if (cell !== null) this.asking.reveal(cell.query);
      },
      onPick: (cell) => this.lock(cell.query),
    });
    const texts = isOneText
      ? [this.asking.place]
      : [element("h4", {}, "Queries"), this.asking.place, element("h4", {}, "Keys"), this.answering.place];
    this.place.append(
      element("div", { class: "pattern-map" }, canvas, this.marker),
      element("div", { class: "pattern-text" }, this.state, ...texts, this.list),
    );
    this.show(this.locked);
  }

  /** Keeps a row, or lets it go. */
  private lock(query: number): void {
    this.locked = this.locked === query ? null : query;
    this.show(this.locked);
  }

  private show(query: number | null): void {
    const weights = query === null ? null : this.keys.map((_, key) => weightAt(this.map, query, key));
    if (this.asking === this.answering) this.asking.show(weights, query);
    else {
      this.asking.show(null, query);
      this.answering.show(weights, null);
    }
    this.marker.hidden = query === null;
    if (query !== null) this.marker.style.cssText = `top:${(100 * query) / this.map.queries}%;height:${100 / this.map.queries}%`;
    this.state.textContent = query === null
      ? "Point at a row of the map or at a token to see where it looks; click to keep it. Below: the largest weights, without those on the first token."
      : `Token ${query} “${visible(this.queries[query] ?? "")}” looks at the shaded tokens${this.locked === query ? " (kept; click again to let go)" : ""}.`;
    this.list.replaceChildren(
      ...(weights === null
        ? this.pairs.map(([asked, key, weight]) => this.item(key, weight, asked))
        : strongest(weights).map(([key, weight]) => this.item(key, weight))),
    );
  }

  private item(key: number, weight: number, query: number | null = null): HTMLLIElement {
    const asking = query === null ? [] : [...named(this.queries[query], query), "→ "];
    return element("li", {}, ...asking, ...named(this.keys[key], key), element("i", {}, number(weight)));
  }
}

function named(token: string | undefined, place: number): (Node | string)[] {
  return [element("b", {}, visible(token ?? "").trim() || "␣"), ` ${place} `];
}

/** The largest weights of a map with their queries and keys, without those on the first key, where many heads rest. */
export function strongestPairs(map: AttentionMap, most = STRONGEST): [number, number, number][] {
  const pairs: [number, number, number][] = [];
  for (let query = 0; query < map.queries; query++) {
    for (let key = 1; key < map.keys; key++) {
      const weight = weightAt(map, query, key);
      if (weight === null) break; // the rest of the row is masked
      if (weight <= 0 || (pairs.length === most && weight <= pairs[most - 1]![2])) continue;
      pairs.push([query, key, weight]);
      pairs.sort(([, , first], [, , second]) => second - first).splice(most);
    }
  }
  return pairs;
}

/** The keys with the largest weights. */
export function strongest(weights: readonly (number | null)[], most = STRONGEST): [number, number][] {
  return weights
    .map((weight, key): [number, number] => [key, weight ?? 0])
    .filter(([, weight]) => weight > 0)
    .sort(([firstKey, first], [secondKey, second]) => second - first || firstKey - secondKey)
    .slice(0, most);
}
