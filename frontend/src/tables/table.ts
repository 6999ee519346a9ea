/** Tables that sort, filter, unfold and download. */

import type { TableColumn, TableData } from "../data";
import { count, number } from "../drawing/numbers";
import { download } from "../drawing/save";
import { hideTip, showTip } from "../drawing/tooltip";
import { button, element, whenNear, withSymbols } from "../navigation/element";
import type { Transport } from "../transport";
import { cellText, cellTip, csv, matches, sorted } from "./rows";

const LONG = 44; // characters; longer text wraps in a wide column (`report/table.py` has the same number)

/** Equips every table of the page when it comes near the view. */
export function equipTables(page: Document, transport: Transport): void {
  whenNear(page.querySelectorAll<HTMLElement>(".table[data-table]"), (holder) => {
    void transport.table(holder.dataset["table"] ?? "").then((data) => new PageTable(holder, data));
  });
}

/** A table that the page already shows the beginning of. */
class PageTable {
  private readonly grid: DataGrid;

  constructor(private readonly holder: HTMLElement, private readonly data: TableData) {
    const search = holder.querySelector<HTMLInputElement>("input[type=search]");
    this.grid = new DataGrid(holder.querySelector("table")!, data, { words: () => search?.value ?? "" });
    search?.addEventListener("input", () => this.draw());
    this.onClick(".more", () => (this.grid.isTall = !this.grid.isTall));
    this.onClick(".wider", () => (this.grid.isWide = !this.grid.isWide));
    this.onClick(".csv", () => download(new Blob([csv(data.labels, data.columns)], { type: "text/csv" }), `${holder.dataset["name"]}.csv`));
    this.grid.onDraw = () => this.describe();
    this.draw();
  }

  private onClick(selector: string, act: () => void): void {
    this.holder.querySelector(selector)?.addEventListener("click", () => {
      act();
      this.draw();
    });
  }

  private draw(): void {
    this.grid.draw();
  }

  private describe(): void {
    const { grid, data } = this;
    const height = data.columns[0]?.values.length ?? 0;
    const rows = grid.drawnRows < grid.matchingRows ? `First ${count(grid.drawnRows)} of ${count(grid.matchingRows)} rows` : `${count(grid.matchingRows)}${grid.matchingRows < height ? ` of ${count(height)}` : ""} rows`;
    const columns = grid.columns.length < data.columns.length ? `, first ${grid.columns.length} of ${data.columns.length} columns` : "";
    this.write(".rest", `${rows}${columns}`);
    this.write(".more", grid.isTall ? "Fewer rows" : `All ${count(height)} rows`);
    this.write(".wider", grid.isWide ? "Fewer columns" : `All ${count(data.columns.length)} columns`);
  }

  private write(selector: string, words: string): void {
    const place = this.holder.querySelector(selector);
    if (place) place.textContent = words;
  }
}

export interface GridOptions {
  readonly words?: () => string;
  readonly passes?: (row: number) => boolean;
  readonly point?: (row: number | null) => void;
}

/** The rows and columns of a table element, drawn from data. */
export class DataGrid {
  isTall = false; // whether all rows are shown
  isWide = false; // whether all columns are shown
  matchingRows = 0;
  drawnRows = 0;
  onDraw: () => void = () => undefined;
  private sortedBy: TableColumn | "label" | null = null;
  private isDescending = true;

  constructor(private readonly table: HTMLTableElement, private data: TableData, private readonly options: GridOptions = {}) {
    table.addEventListener("pointerover", (event) => this.onPointer(event));
    table.addEventListener("pointerleave", () => {
      hideTip();
      options.point?.(null);
    });
  }

  get columns(): readonly TableColumn[] {
    return this.isWide ? this.data.columns : this.data.columns.slice(0, this.data.shown);
  }

  /** Shows other columns of the same rows. */
  use(data: TableData): void {
    this.data = data;
    if (this.sortedBy !== "label" && this.sortedBy !== null) {
      const { label } = this.sortedBy;
      this.sortedBy = data.columns.find((column) => column.label === label) ?? null;
    }
    this.draw();
  }

  /** Sorts by a column: descending first, then ascending. */
  sortBy(column: TableColumn | "label"): void {
    this.isDescending = this.sortedBy === column ? !this.isDescending : column !== "label" && column.number;
    this.sortedBy = column;
    this.draw();
  }

  draw(): void {
    const { data } = this;
    const rows = this.rows();
    this.matchingRows = rows.length;
    const drawn = this.isTall ? rows : rows.slice(0, data.rows);
    this.drawnRows = drawn.length;
    const head = element("thead", {}, element("tr", {}, ...this.headings()));
    const ranges = this.columns.map(barRange);
    const body = element("tbody", {}, ...drawn.map((row) => this.rowOf(row, ranges)));
    this.table.replaceChildren(head, body);
    this.onDraw();
  }

  private rows(): number[] {
    const { data, options } = this;
    const words = (options.words?.() ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const all = Array.from({ length: data.columns[0]?.values.length ?? data.labels?.length ?? 0 }, (_, row) => row);
    const rows = all.filter((row) =>
      (options.passes?.(row) ?? true) && matches(words, data.labels?.[row] ?? "", () => data.columns.map((column) => cellText(column, row))));
    if (this.sortedBy === null) return rows;
    if (this.sortedBy === "label") return this.isDescending ? rows.reverse() : rows;
    return sorted(rows, this.sortedBy, this.isDescending);
  }

  private headings(): HTMLElement[] {
    const headings = this.columns.map((column) => this.heading(column, withSymbols(column.label), column.number ? nullWords(column) : ""));
    return this.data.labels === null ? headings : [this.heading("label", [this.data.heads ? "head" : "place"], ""), ...headings];
  }

  private heading(column: TableColumn | "label", words: readonly (Node | string)[], note: string): HTMLElement {
    const isNumber = column !== "label" && column.number;
    const order = this.sortedBy === column ? (this.isDescending ? "descending" : "ascending") : undefined;
    const heading = element("th", { scope: "col", class: isNumber ? "n" : undefined, "aria-sort": order });
    const sorter = button("", () => this.sortBy(column));
    sorter.append(...words);
    heading.append(sorter, ...(note ? [element("small", {}, note)] : []));
    return heading;
  }

  private rowOf(row: number, ranges: readonly (readonly [number, number] | null)[]): HTMLTableRowElement {
    const cells = this.columns.map((column, index) => {
      const text = cellText(column, row);
      const cell = element("td", { class: column.number ? "n" : text.length > LONG ? "long" : undefined }, text);
      const [range, value] = [ranges[index] ?? null, column.values[row]];
      if (range !== null && typeof value === "number") cell.style.setProperty("--bar", `${Math.round((100 * (value - range[0])) / (range[1] - range[0]))}%`);
      return cell;
    });
    const label = this.data.labels?.[row];
    const first = label === undefined ? [] : [element("th", { scope: "row" }, this.data.heads && /\bH\d+$/.test(label) ? element("a", { href: `#${label}` }, label) : label || "–")];
    return element("tr", { "data-row": row }, ...first, ...cells);
  }

  private onPointer(event: PointerEvent): void {
    const cell = event.target instanceof Element ? event.target.closest("td") : null;
    const line = event.target instanceof Element ? event.target.closest<HTMLElement>("tr[data-row]") : null;
    this.options.point?.(line === null ? null : Number(line.dataset["row"]));
    if (cell === null || line === null) return hideTip();
    const place = [...line.querySelectorAll("td")].indexOf(cell);
    const column = this.columns[place];
    const words = column?.number ? cellTip(column, Number(line.dataset["row"])) : null;
    if (words === null) hideTip();
    else showTip(words, event);
  }
}

/** The null under a column's name: one number, or the range of the rows. */
function nullWords(column: Extract<TableColumn, { number: true }>): string {
  if (column.null !== undefined) return `null ${number(column.null)}`;
  const known = (column.nulls ?? []).filter((value): value is number => value !== null).sort((a, b) => a - b);
  return known.length > 0 ? `null ${number(known[0]!)} to ${number(known[known.length - 1]!)}` : "";
}

/** The ends of the small bars in a column of numbers; null where there is nothing to compare. */
export function barRange(column: TableColumn): readonly [number, number] | null {
  if (!column.number) return null;
  const known = column.values.filter((value): value is number => value !== null && Number.isFinite(value));
  const [low, high] = [Math.min(0, ...known), Math.max(0, ...known)];
  const hasSpread = known.length > 2 && new Set(known).size > 1;
  return hasSpread && high > low && low === 0 ? [low, high] : null;
}
