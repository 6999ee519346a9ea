/** The tokens of a window as running text, shaded by the weights that one query gives them. */

import { visible } from "../drawing/numbers";
import { element } from "../navigation/element";

export class TokenText {
  readonly place = element("div", { class: "token-text" });
  private readonly tokens: HTMLElement[];

  constructor(spelling: readonly string[], pick: (token: number) => void, hover: (token: number | null) => void) {
    this.tokens = spelling.map((token) => element("span", { tabindex: -1 }, displayed(token)));
    this.place.append(...this.tokens);
    const at = (event: Event) => this.tokens.indexOf(event.target as HTMLElement);
    this.place.addEventListener("pointerover", (event) => hover(at(event) < 0 ? null : at(event)));
    this.place.addEventListener("pointerleave", () => hover(null));
    this.place.addEventListener("click", (event) => at(event) >= 0 && pick(at(event)));
  }

  /** Scrolls a long text to a token, and nothing else on the page. */
  reveal(token: number): void {
    const box = this.tokens[token]?.getBoundingClientRect();
    if (box === undefined || this.place.scrollHeight <= this.place.clientHeight) return;
    this.place.scrollTop += box.top - this.place.getBoundingClientRect().top - this.place.clientHeight / 2;
  }

  /** Shades the tokens by their weights; `query` is underlined if it is among them. */
  show(weights: readonly (number | null)[] | null, query: number | null): void {
    const largest = Math.max(...(weights ?? []).map((weight) => weight ?? 0), 1e-12);
    this.tokens.forEach((token, index) => {
      const weight = weights?.[index] ?? null;
      token.style.setProperty("--weight", weight === null ? "0%" : `${Math.round(100 * Math.sqrt(weight / largest))}%`);
      token.classList.toggle("query", index === query);
      token.classList.toggle("unseen", weights !== null && weight === null);
    });
  }
}

/** A token for running text: line breaks and other invisible characters are shown. */
export function displayed(token: string): string {
  return token.replace(/[^ ]/gu, (character) => visible(character)) || "∅";
}
