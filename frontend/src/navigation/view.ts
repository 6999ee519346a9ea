/** What all parts of the page show together: the place, the colouring, the filters, the head under the pointer. */

import { type Address, formatAddress, hasOptions, parseAddress } from "./address";

type Listener = (address: Address, before: Address) => void;

/** The address of the page as a value that parts change and listen to. */
export class View {
  private address: Address;
  private readonly listeners = new Set<Listener>();
  private readonly pointers = new Set<(head: number | null) => void>();

  constructor(private readonly page: Window) {
    this.address = parseAddress(page.location.hash);
    page.addEventListener("hashchange", () => this.follow());
  }

  get current(): Address {
    return this.address;
  }

  listen(listener: Listener): void {
    this.listeners.add(listener);
  }

  /** Shows things differently at the same place; the way back does not stop here. */
  change(options: Partial<Omit<Address, "place">>): void {
    this.move({ ...this.address, ...options }, "replace");
  }

  /** Goes to a place; the way back leads here. */
  go(place: string): void {
    this.move({ ...this.address, place }, "push");
  }

  /** Tells all parts which head the pointer is over. */
  point(head: number | null): void {
    for (const pointer of this.pointers) pointer(head);
  }

  onPoint(listener: (head: number | null) => void): void {
    this.pointers.add(listener);
  }

  private move(next: Address, way: "push" | "replace"): void {
    const [before, hash] = [this.address, formatAddress(next)];
    this.address = next;
    if (way === "push") this.page.history.pushState(null, "", hash);
    else this.page.history.replaceState(null, "", hash);
    this.tell(before);
  }

  /** A plain link says only where to go: how things are shown stays. */
  private follow(): void {
    const [before, asked] = [this.address, parseAddress(this.page.location.hash)];
    this.address = hasOptions(asked) ? asked : { ...before, place: asked.place };
    if (hasOptions(this.address)) this.page.history.replaceState(null, "", formatAddress(this.address));
    this.tell(before);
  }

  private tell(before: Address): void {
    for (const listener of this.listeners) listener(this.address, before);
  }
}
