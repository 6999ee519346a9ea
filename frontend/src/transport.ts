import type { Atlas, Figure, Patterns } from "./data";

/** Where components get their data: from the page itself, or later from a running server. */
export interface Transport {
  atlas(): Promise<Atlas | null>;
  patterns(): Promise<Patterns | null>;
  figure(id: string): Promise<Figure>;
}

/** Reads the data that the page carries in its `<script type="application/json">` elements. */
export class PageTransport implements Transport {
  constructor(private readonly page: Document) {}

  async atlas(): Promise<Atlas | null> {
    return this.read<Atlas>("data-atlas");
  }

  async patterns(): Promise<Patterns | null> {
    return this.read<Patterns>("data-patterns");
  }

  async figure(id: string): Promise<Figure> {
    const figure = this.read<Figure>(`data-${id}`);
    if (figure === null) throw new Error(`the page has no data of the figure ${id}`);
    return figure;
  }

  private read<T>(id: string): T | null {
    const text = this.page.getElementById(id)?.textContent;
    return text ? (JSON.parse(text) as T) : null;
  }
}
