/** HTML elements without markup in strings: nothing that a checkpoint names can become markup. */

type Attribute = string | number | boolean | undefined;

/** A new element with its attributes and children; `false` and undefined leave an attribute out. */
export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Readonly<Record<string, Attribute>> = {},
  ...children: readonly (Node | string)[]
): HTMLElementTagNameMap[K] {
  const created = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) created.setAttribute(key, value === true ? "" : String(value));
  }
  created.append(...children);
  return created;
}

/** A button with words that does something. */
export function button(words: string, act: () => void, attributes: Readonly<Record<string, Attribute>> = {}): HTMLButtonElement {
  const created = element("button", { type: "button", ...attributes }, words);
  created.addEventListener("click", act);
  return created;
}

// A letter with a short index, such as W_QK, is a symbol; d_model is the name of a variable and stays as it is.
const SYMBOL = /(?<![\p{L}\p{N}_])([A-Za-zσΣ])_([A-Z]{1,2}|[ij]{2}|[a-z0-9])(?![\p{L}\p{N}_])/gu;

/** Words with their symbols set in italics with a subscript, as the page writes them. */
export function withSymbols(words: string): (Node | string)[] {
  const parts: (Node | string)[] = [];
  let end = 0;
  for (const match of words.matchAll(SYMBOL)) {
    parts.push(words.slice(end, match.index), element("i", {}, match[1]!), element("sub", {}, match[2]!));
    end = match.index + match[0].length;
  }
  return [...parts, words.slice(end)].filter((part) => part !== "");
}

/** Calls `draw` once for each element, when it comes near the view or the page is printed. */
export function whenNear<T extends Element>(elements: Iterable<T>, draw: (element: T) => void, margin = "400px"): void {
  const waiting = new Set(elements);
  const drawOnce = (near: T) => {
    if (!waiting.delete(near)) return;
    observer.unobserve(near);
    draw(near);
  };
  const observer = new IntersectionObserver(
    (entries) => entries.forEach((entry) => entry.isIntersecting && drawOnce(entry.target as T)),
    { rootMargin: margin },
  );
  for (const waitingElement of waiting) observer.observe(waitingElement);
  addEventListener("beforeprint", () => [...waiting].forEach(drawOnce));
}
