import type { Comparison } from "./comparison/comparison_data";
import type { Atlas, Figure, LensEntry, Patterns, TableData } from "./data";

/** Where components get their data: from the page itself, or later from a running server. */
export interface Transport {
  atlas(): Promise<Atlas | null>;
  patterns(): Promise<Patterns | null>;
  lenses(): Promise<readonly LensEntry[]>;
  comparison(): Promise<Comparison | null>;
  figure(id: string): Promise<Figure>;
  table(id: string): Promise<TableData>;
}

/** Reads the data that the page carries in its `<script type="application/json">` elements, each once. */
export class PageTransport implements Transport {
  private readonly parsed = new Map<string, unknown>();

  constructor(private readonly page: Document) {}

  async atlas(): Promise<Atlas | null> {
    return this.read<Atlas>("atlas");
  }

  async patterns(): Promise<Patterns | null> {
    return this.read<Patterns>("patterns");
  }

  async lenses(): Promise<readonly LensEntry[]> {
    return this.read<LensEntry[]>("lenses") ?? [];
  }

  async comparison(): Promise<Comparison | null> {
    return this.read<Comparison>("comparison");
  }

  async figure(id: string): Promise<Figure> {
    return this.required<Figure>(id, "figure");
  }

  async table(id: string): Promise<TableData> {
    return this.required<TableData>(id, "table");
  }

  private required<T>(id: string, kind: string): T {
    const data = this.read<T>(id);
    if (data === null) throw new Error(`the page has no data of the ${kind} ${id}`);
    return data;
  }

  private read<T>(id: string): T | null {
    if (!this.parsed.has(id)) {
      const text = this.page.getElementById(`data-${id}`)?.textContent;
      this.parsed.set(id, text ? JSON.parse(text) : null);
    }
    return this.parsed.get(id) as T | null;
  }
}
