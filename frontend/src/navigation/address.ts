/** What the address of the page says after its `#`: a place, and how things are shown there. */

export interface Range {
  readonly key: string; // of a quantity
  readonly low: number | null;
  readonly high: number | null;
}

export interface Address {
  readonly place: string; // the id of a section, or the label of a head
  readonly colour: string | null; // the quantity of the atlas
  readonly x: string | null; // the quantities of the scatter plot
  readonly y: string | null;
  readonly role: string | null; // heads with another role are faint or left out
  readonly filters: readonly Range[]; // of the table of heads
}

export const NOWHERE: Address = { place: "", colour: null, x: null, y: null, role: null, filters: [] };

/** `#L3.H7?colour=focus.first&role=induction+head&only=focus.first:0.5:` */
export function parseAddress(hash: string): Address {
  const text = hash.replace(/^#/, "");
  const cut = text.indexOf("?");
  const options = new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1));
  return {
    place: decoded(cut < 0 ? text : text.slice(0, cut)),
    colour: options.get("colour"),
    x: options.get("x"),
    y: options.get("y"),
    role: options.get("role"),
    filters: options.getAll("only").map(parseRange).filter((range) => range !== null),
  };
}

export function formatAddress({ place, colour, x, y, role, filters }: Address): string {
  const options = new URLSearchParams();
  for (const [name, value] of Object.entries({ colour, x, y, role })) if (value !== null) options.set(name, value);
  for (const { key, low, high } of filters) options.append("only", `${key}:${low ?? ""}:${high ?? ""}`);
  const query = options.toString();
  return `#${place}${query ? `?${query}` : ""}`;
}

/** Whether an address says anything besides a place. */
export function hasOptions({ colour, x, y, role, filters }: Address): boolean {
  return colour !== null || x !== null || y !== null || role !== null || filters.length > 0;
}

function parseRange(text: string): Range | null {
  const match = /^(.+):([^:]*):([^:]*)$/.exec(text);
  if (match === null) return null;
  const bound = (words: string) => (words.trim() === "" || !Number.isFinite(Number(words)) ? null : Number(words));
  return { key: match[1]!, low: bound(match[2]!), high: bound(match[3]!) };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a lone % is no encoding
  }
}
