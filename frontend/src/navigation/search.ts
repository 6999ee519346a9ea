/** Finds heads, lenses and quantities by a few letters. */

import type { Atlas, LensEntry } from "../data";
import { element } from "./element";
import type { View } from "./view";

export interface Result {
  readonly title: string;
  readonly kind: "head" | "lens" | "quantity";
  readonly place: string; // where it leads
  readonly colour?: string; // the quantity that the atlas then shows
}

const MOST = 9;

/** The best results: names that begin with the words come first, then those that hold them. */
export function results(words: string, atlas: Atlas | null, lenses: readonly LensEntry[]): Result[] {
  const asked = words.trim().toLowerCase();
  if (asked === "") return [];
  const heads = headsNamed(asked, atlas);
  const found: { readonly result: Result; readonly texts: readonly string[] }[] = [
    ...lenses.map(({ lens, title, question, anchor }) => ({ result: { title: `${lens}: ${title}`, kind: "lens" as const, place: anchor }, texts: [lens, title, question] })),
    ...(atlas?.quantities ?? []).map(({ key, label, lens }) => ({ result: { title: `${label} (${lens})`, kind: "quantity" as const, place: "overview", colour: key }, texts: [label, key] })),
  ];
  const ranked = found
    .map(({ result, texts }) => ({ result, rank: Math.min(...texts.map((text) => rankOf(text.toLowerCase(), asked))) }))
    .filter(({ rank }) => rank < Infinity)
    .sort((a, b) => a.rank - b.rank);
  return [...heads, ...ranked.map(({ result }) => result)].slice(0, MOST);
}

/** `l3.h7`, `3.7`, `l3h7`, `3 7` all mean L3.H7; `l3` means its heads. */
function headsNamed(asked: string, atlas: Atlas | null): Result[] {
  const match = /^(?:(enc|dec|text|image|sound)\W*)?l?(\d+)(?:\W*(cross))?(?:\W*h?(\d+))?$/.exec(asked);
  if (match === null || atlas === null) return [];
  const [, stack, layer, cross, head] = match;
  return atlas.heads
    .filter(({ label, layer: itsLayer, head: itsHead }) =>
      itsLayer === Number(layer) && (head === undefined || itsHead === Number(head)) &&
      (stack === undefined || label.startsWith(`${stack}.`)) && (cross === undefined || label.includes(".cross.")))
    .map(({ label }) => ({ title: label, kind: "head", place: label }));
}

function rankOf(text: string, asked: string): number {
  if (text.startsWith(asked)) return 0;
  if (new RegExp(`[^a-z0-9]${asked.replace(/[^a-z0-9]/g, "\\$&")}`).test(text)) return 1;
  const words = asked.split(/\s+/);
  return words.every((word) => text.includes(word)) ? 2 : Infinity;
}

/** Equips the search field; `/` leads there from anywhere. */
export function equipSearch(page: Document, view: View, atlas: Atlas | null, lenses: readonly LensEntry[]): void {
  const field = page.querySelector<HTMLInputElement>(".search input");
  const list = page.querySelector<HTMLElement>("#search-results");
  if (field === null || list === null) return;
  let [found, active]: [Result[], number] = [[], 0];
  const go = (result: Result | undefined) => {
    if (result === undefined) return;
    field.value = "";
    draw();
    field.blur();
    if (result.colour !== undefined) view.change({ colour: result.colour });
    view.go(result.place);
    page.getElementById(result.place)?.scrollIntoView();
  };
  const draw = () => {
    found = results(field.value, atlas, lenses);
    active = Math.min(active, Math.max(0, found.length - 1));
    const isAsked = field.value.trim() !== "";
    list.hidden = !isAsked;
    const items = found.map((result, index) => {
      const item = element("li", { role: "option", "aria-selected": index === active ? "true" : "false" }, element("span", {}, result.title), element("small", {}, result.kind));
      item.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        go(result);
      });
      return item;
    });
    list.replaceChildren(...(isAsked && items.length === 0 ? [element("li", { class: "quiet" }, "nothing found")] : items));
  };
  field.addEventListener("input", () => {
    active = 0;
    draw();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(found[active]);
    else if (event.key === "Escape") {
      field.value = "";
      field.blur();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      active = (active + (event.key === "ArrowDown" ? 1 : found.length - 1)) % Math.max(1, found.length);
    } else return;
    draw();
  });
  field.addEventListener("blur", () => (list.hidden = true));
  field.addEventListener("focus", draw);
  page.addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof HTMLElement && event.target.matches("input, select, textarea");
    if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
}
