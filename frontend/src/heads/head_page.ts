/** The page of one head: its pattern on real tokens, its curves, its numbers among all heads, its neighbours. */

import type { Atlas, Patterns, Quantity } from "../data";
import { attentionMap } from "../drawing/attention_map";
import { counted } from "../drawing/numbers";
import { hideTip } from "../drawing/tooltip";
import { copyButton } from "../navigation/copying";
import { button, element, whenNear, withSymbols } from "../navigation/element";
import type { View } from "../navigation/view";
import type { Transport } from "../transport";
import { dotStrip } from "./dot_strip";
import { curveFigures } from "./head_curves";
import { lookOf, smallMap } from "./head_map";
import { patternView } from "./pattern_view";
import { byLens, nullOf, rankOf, withUnit } from "./quantities";

/**
 * Shows the page of a head where the address names one, and the report elsewhere.
 *
 * A file of chosen heads has no report: it has the place of the page, and shows its first head where nothing is named.
 */
export async function followHeads(page: Document, view: View, transport: Transport): Promise<void> {
  const [atlas, patterns] = await Promise.all([transport.atlas(), transport.patterns()]);
  if (atlas === null) return;
  const note = page.getElementById("head-page")?.dataset["note"];
  const content = (head: number) =>
    note === undefined ? contentOf(atlas, patterns, head, view) : chosenContent(atlas, patterns, head, view, note);
  showHeads(page, view, atlas, content);
}

/** Shows `content` where the address names a head. */
export function showHeads(page: Document, view: View, atlas: Atlas, content: (head: number) => Node[]): void {
  const title = page.title;
  const alone = page.getElementById("head-page");
  const place = alone ?? element("section", { id: "head-page", hidden: true, tabindex: -1 });
  if (alone === null) page.querySelector("main")?.append(place);
  const places = new Map(atlas.heads.map(({ label }, head) => [label, head]));
  let scrolled = 0; // where the reader left the report

  const show = (label: string) => {
    const head = places.get(label) ?? (alone === null ? undefined : 0);
    const isOpen = head !== undefined;
    if (isOpen && place.hidden) scrolled = scrollY;
    const hasLeft = !isOpen && !place.hidden;
    place.hidden = !isOpen;
    page.body.classList.toggle("at-head", isOpen && alone === null);
    hideTip();
    if (head !== undefined) {
      place.replaceChildren(...content(head));
      page.title = `${atlas.heads[head]!.label} of ${atlas.model}`;
      scrollTo(0, 0);
      place.focus({ preventScroll: true });
    } else if (hasLeft) {
      page.title = title;
      if (label === "" || page.getElementById(label) === null) scrollTo(0, scrolled);
      else page.getElementById(label)?.scrollIntoView();
    }
  };
  view.listen((address, before) => address.place !== before.place && show(address.place));
  page.addEventListener("keydown", (event) => {
    if (place.hidden || event.altKey || event.ctrlKey || event.metaKey || isTyping(event)) return;
    const next = nextHead(atlas, places.get(view.current.place) ?? 0, event.key);
    if (event.key === "Escape" && alone === null) view.go("overview");
    else if (next !== null) {
      event.preventDefault();
      view.go(atlas.heads[next]!.label);
    }
  });
  if (alone !== null || places.has(view.current.place)) show(view.current.place);
}

export function isTyping(event: Event): boolean {
  return event.target instanceof HTMLElement && event.target.matches("input, select, textarea");
}

/** The head that an arrow key leads to: sideways within a layer and on to the next, up and down by layers. */
export function nextHead(atlas: Atlas, head: number, key: string): number | null {
  const here = atlas.heads[head];
  if (here === undefined) return null;
  if (key === "ArrowLeft") return head > 0 ? head - 1 : null;
  if (key === "ArrowRight") return head + 1 < atlas.heads.length ? head + 1 : null;
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const layers = atlas.panels[here.panel]!.layers;
  const layer = layers[layers.indexOf(here.layer) + (key === "ArrowDown" ? 1 : -1)];
  const next = atlas.heads.findIndex((other) => other.panel === here.panel && other.layer === layer && other.head === here.head);
  return layer === undefined || next < 0 ? null : next;
}

function contentOf(atlas: Atlas, patterns: Patterns | null, head: number, view: View): Node[] {
  const pattern = patterns === null ? null : patternView(atlas, patterns, head);
  const curves = curveFigures(atlas, head);
  return [
    headTitle(atlas, head, view),
    ...(pattern === null ? [element("p", { class: "quiet" }, "This run keeps no pattern of this head.")] : [pattern]),
    ...(patterns === null ? [] : [thumbnailsOf(atlas, patterns, head, layerOf(atlas, head), `All heads of ${siteOf(atlas, head)}`)]),
    ...(curves.length === 0 ? [] : [element("h2", {}, "Curves"), element("div", { class: "figures" }, ...curves)]),
    element("h2", {}, "Every quantity, among all heads"),
    numbersOf(atlas, head),
    element("h2", {}, "The same in Python"),
    pythonOf(`model = hs.open(${JSON.stringify(atlas.model)})\nmodel.pattern("your text", ${JSON.stringify(atlas.heads[head]!.label)})`),
  ];
}

/** The same for a file of chosen heads: there are no other heads to compare with. */
function chosenContent(atlas: Atlas, patterns: Patterns | null, head: number, view: View, note: string): Node[] {
  const pattern = patterns === null ? null : patternView(atlas, patterns, head);
  pattern?.querySelector(".pattern-text")?.append(element("h2", {}, "Numbers on this text"), plainNumbersOf(atlas, head));
  const isOneOfMany = atlas.heads.length > 1;
  const heads = atlas.heads.map((_, place) => place);
  return [
    titleOf(atlas, head, ...(isOneOfMany ? [stepsOf(atlas, head, view)] : []), element("p", { class: "model-line" }, note)),
    ...(pattern === null ? [] : [pattern]),
    ...(isOneOfMany && patterns !== null ? [thumbnailsOf(atlas, patterns, head, heads, "The chosen heads")] : []),
    element("h2", {}, "In Python"),
    pythonOf(`hs.head(${JSON.stringify(atlas.model)}, ${JSON.stringify(atlas.heads[head]!.label)}, text="your text")`),
  ];
}

/** The title of a page of a head, with the way back to what it is part of. */
export function headTitle(atlas: Atlas, head: number, view: View, wayBack = "← Report"): HTMLElement {
  const back = element("p", { class: "kicker" }, element("a", { href: "#overview", class: "back" }, wayBack));
  return titleOf(atlas, head, back, stepsOf(atlas, head, view), copyButton("Copy link", () => location.href));
}

function titleOf(atlas: Atlas, head: number, ...parts: readonly HTMLElement[]): HTMLElement {
  const { label, panel, roles } = atlas.heads[head]!;
  const kind = atlas.panels[panel]!.title;
  const title = element("h1", {}, label, " ", element("small", {}, `${kind ? `${kind.toLowerCase()} of ` : "of "}${atlas.model}`));
  const [above, beside] = [parts.filter((part) => part.matches(".kicker")), parts.filter((part) => !part.matches(".kicker"))];
  const role = roles.length > 0 ? [element("p", { class: "quiet" }, `Roles: ${roles.join(", ")}`)] : [];
  return element("header", {}, ...above, title, ...role, ...beside);
}

/** Buttons that lead to the neighbours of a head. */
function stepsOf(atlas: Atlas, head: number, view: View): HTMLElement {
  const step = (key: string, words: string) => {
    const next = nextHead(atlas, head, key);
    return button(words, () => next !== null && view.go(atlas.heads[next]!.label), {
      class: "step", disabled: next === null, "aria-label": next === null ? words : `${words} ${atlas.heads[next]!.label}`,
    });
  };
  return element("span", { class: "steps" }, step("ArrowLeft", "←"), step("ArrowRight", "→"), step("ArrowUp", "↑"), step("ArrowDown", "↓"));
}

/** The label of the layer that a head is in. */
function siteOf(atlas: Atlas, head: number): string {
  return atlas.heads[head]!.label.replace(/\.H\d+$/, "");
}

/** The places of all heads of the same layer. */
function layerOf(atlas: Atlas, head: number): number[] {
  const { panel, layer } = atlas.heads[head]!;
  return atlas.heads.flatMap((other, place) => (other.panel === panel && other.layer === layer ? [place] : []));
}

/** Heads as small maps, which lead to their pages. */
function thumbnailsOf(atlas: Atlas, patterns: Patterns, head: number, heads: readonly number[], title: string): HTMLElement {
  const isOneLayer = new Set(heads.map((place) => siteOf(atlas, place))).size === 1;
  const items = heads.map((place) => {
    const { label, head: number } = atlas.heads[place]!;
    const link = element("a", { href: `#${label}`, class: "thumbnail", "aria-current": place === head ? "page" : undefined, "data-head": place });
    link.append(element("span", {}, isOneLayer ? `H${number}` : label));
    return link;
  });
  whenNear(items, (link) => {
    const map = smallMap(atlas, patterns, Number(link.dataset["head"]));
    if (map !== null) link.prepend(attentionMap(map, lookOf(map)));
  });
  return element("div", {}, element("h2", {}, title), element("div", { class: isOneLayer ? "thumbnails" : "thumbnails labelled" }, ...items));
}

/** The row of this head in the table of all heads, with every number as a dot among all heads. */
function numbersOf(atlas: Atlas, head: number): HTMLElement {
  const groups = [...byLens(atlas.quantities)].map(([lens, quantities]) => {
    const rows = quantities.map((quantity) => rowOf(quantity, head));
    const title = element("tr", { class: "group" }, element("th", { scope: "rowgroup", colspan: 5 }, element("a", { href: `#lens-${lens}` }, quantities[0]!.lens_title)));
    return element("tbody", {}, title, ...rows);
  });
  const headings = ["Quantity", "Value", "Null", "Rank", "Among all heads"].map((words, index) => element("th", { scope: "col", class: index > 0 && index < 4 ? "n" : undefined }, words));
  return element("div", { class: "scroll" }, element("table", { class: "head-numbers" }, element("thead", {}, element("tr", {}, ...headings)), ...groups));
}

function rowOf(quantity: Quantity, head: number): HTMLTableRowElement {
  const [value, reference, rank] = [quantity.values[head] ?? null, nullOf(quantity, head), rankOf(quantity, head)];
  const known = quantity.values.filter((other) => other !== null).length;
  return element(
    "tr", {},
    element("th", { scope: "row" }, ...withSymbols(quantity.label)),
    element("td", { class: "n" }, withUnit(value, quantity.unit)),
    element("td", { class: "n quiet" }, withUnit(reference, quantity.unit)),
    element("td", { class: "n quiet" }, rank === null ? "–" : `${rank} of ${counted(known, "head")}`),
    element("td", {}, dotStrip(quantity, head)),
  );
}

/** The numbers of a head next to those of uniform attention. */
function plainNumbersOf(atlas: Atlas, head: number): HTMLElement {
  const headings = ["Quantity", "Value", "Uniform attention"].map((words, index) => element("th", { scope: "col", class: index > 0 ? "n" : undefined }, words));
  const rows = atlas.quantities
    .filter((quantity) => (quantity.values[head] ?? null) !== null)
    .map((quantity) => {
      const [value, reference] = [quantity.values[head] ?? null, nullOf(quantity, head)];
      const cells = [element("td", { class: "n" }, withUnit(value, quantity.unit)), element("td", { class: "n quiet" }, withUnit(reference, quantity.unit))];
      return element("tr", {}, element("th", { scope: "row" }, ...withSymbols(quantity.label)), ...cells);
    });
  return element("div", { class: "scroll" }, element("table", { class: "head-numbers" }, element("thead", {}, element("tr", {}, ...headings)), element("tbody", {}, ...rows)));
}

function pythonOf(code: string): HTMLElement {
  const lines = `import headscope as hs\n${code}`;
  return element("div", { class: "python" }, element("pre", {}, lines), copyButton("Copy", () => lines));
}
