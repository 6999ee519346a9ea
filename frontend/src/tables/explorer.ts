/** The table of all heads over all lenses, with filters and a picture of any two quantities. */

import type { Atlas, NumberColumn, Numbers, Quantity, TableData } from "../data";
import { count, decimals } from "../drawing/numbers";
import { download } from "../drawing/save";
import { byLens, mainQuantities, quantityOf } from "../heads/quantities";
import { quantityMenu } from "../heads/quantity_menu";
import { roleMenu } from "../heads/role_menu";
import type { Range } from "../navigation/address";
import { button, element } from "../navigation/element";
import type { View } from "../navigation/view";
import { passes } from "./filters";
import { csv } from "./rows";
import { Scatter } from "./scatter";
import { DataGrid } from "./table";

const ROWS = 16;

/** Builds the table in the place of its first rows. */
export function buildExplorer(place: HTMLElement, atlas: Atlas, view: View): void {
  if (atlas.quantities.length > 0) new Explorer(place, atlas, view).draw();
}

/** A quantity as a column; shares in percent. */
function columnOf({ label, values, nulls, unit }: Quantity): NumberColumn {
  const factor = unit === "share" ? 100 : 1;
  const scaled = (numbers: Numbers) => numbers.map((value) => (value === null ? null : value * factor));
  const written = scaled(values);
  return {
    label: factor === 100 ? `${label}, %` : label, number: true, unit: factor === 100 ? "%" : unit, values: written, digits: decimals(written),
    ...(typeof nulls === "number" ? { null: nulls * factor } : nulls === null ? {} : { nulls: scaled(nulls) }),
  };
}

class Explorer {
  private readonly lenses: readonly string[];
  private chosen: string = ""; // the lens whose quantities are the columns; empty for the main ones of all lenses
  private readonly filterList = element("div", { class: "filter-list" });
  private readonly summary = element("span", { class: "rest", "aria-live": "polite" });
  private readonly search = element("input", { type: "search", placeholder: "Filter, e.g. L3", "aria-label": "Filter heads" });
  private readonly more = button("", () => this.toggleRows(), { class: "more" });
  private readonly grid: DataGrid;
  private readonly scatter: Scatter;

  constructor(place: HTMLElement, private readonly atlas: Atlas, private readonly view: View) {
    this.lenses = [...byLens(atlas.quantities).keys()];
    const table = element("table", { "aria-label": "All heads" });
    this.grid = new DataGrid(table, this.data(), {
      words: () => this.search.value,
      passes: (head) => passes(atlas, view.current, head),
      point: (head) => view.point(head),
    });
    this.grid.isWide = true;
    this.grid.onDraw = () => this.describe();
    this.scatter = new Scatter(atlas, view, () => [this.axis("x"), this.axis("y")]);
    this.search.addEventListener("input", () => this.grid.draw());
    const tools = element("p", { class: "tools" }, this.columnMenu(), this.search, this.summary, this.more, button("CSV of all quantities", () => this.save()));
    place.replaceChildren(
      element("div", { class: "explorer-top" }, element("div", {}, this.axisMenus(), this.scatter.canvas), this.filterPanel()),
      tools,
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of all heads" }, table),
    );
    view.listen(() => this.draw());
  }

  draw(): void {
    this.drawFilters();
    this.grid.draw();
    this.scatter.draw();
  }

  /** The main quantities of all lenses, or all of one lens. */
  private quantities(): readonly Quantity[] {
    return this.chosen === "" ? mainQuantities(this.atlas.quantities) : this.atlas.quantities.filter(({ lens }) => lens === this.chosen);
  }

  private data(quantities = this.quantities()): TableData {
    return {
      rows: ROWS, shown: quantities.length, heads: true, labels: this.atlas.heads.map(({ label }) => label),
      columns: quantities.map(columnOf),
    };
  }

  private columnMenu(): HTMLElement {
    const menu = element("select", { "aria-label": "Columns" }, element("option", { value: "" }, "one of each lens"));
    menu.append(...this.lenses.map((lens) => element("option", { value: lens }, `all of ${lens}`)));
    menu.addEventListener("change", () => {
      this.chosen = menu.value;
      this.grid.use(this.data());
    });
    return element("label", {}, "Columns ", menu);
  }

  private axis(name: "x" | "y"): Quantity {
    const main = mainQuantities(this.atlas.quantities);
    const fallback = name === "x" ? main[0]! : (main[1] ?? this.atlas.quantities[1] ?? main[0]!);
    return quantityOf(this.atlas, this.view.current[name]) ?? fallback;
  }

  private axisMenus(): HTMLElement {
    const menu = (name: "x" | "y", words: string) =>
      element("label", {}, `${words} `, quantityMenu(this.atlas.quantities, words, this.axis(name).key, (key) => this.view.change({ [name]: key })));
    return element("p", { class: "tools" }, menu("y", "Up"), menu("x", "Across"));
  }

  private filterPanel(): HTMLElement {
    const add = button("Add a filter", () => this.setFilters([...this.view.current.filters, { key: this.axis("x").key, low: null, high: null }]));
    return element("div", { class: "filter-panel" }, element("h3", {}, "Only heads with"), element("p", { class: "tools" }, ...roleMenu(this.atlas, this.view)), this.filterList, element("p", { class: "tools" }, add), element("p", { class: "quiet" }, "Filters hold for the atlas, this picture and the table. Each dot is a head: click it."));
  }

  private setFilters(filters: readonly Range[]): void {
    this.view.change({ filters });
  }

  /** The filters as fields; a field that is being typed in is left alone. */
  private drawFilters(): void {
    const { filters } = this.view.current;
    if (this.filterList.contains(document.activeElement) && this.filterList.childElementCount === filters.length) return;
    this.filterList.replaceChildren(...filters.map((range, place) => this.filterOf(range, place)));
  }

  private filterOf(range: Range, place: number): HTMLElement {
    const factor = quantityOf(this.atlas, range.key)?.unit === "share" ? 100 : 1;
    const replace = (change: Partial<Range>) => this.setFilters(this.view.current.filters.map((other, index) => (index === place ? { ...other, ...change } : other)));
    const field = (end: "low" | "high", words: string) => {
      const value = range[end];
      const input = element("input", { type: "number", step: "any", placeholder: words, "aria-label": words, value: value === null ? undefined : Number((value * factor).toPrecision(6)) });
      input.addEventListener("input", () => replace({ [end]: input.value === "" ? null : Number(input.value) / factor }));
      return input;
    };
    const menu = quantityMenu(this.atlas.quantities, "Quantity of the filter", range.key, (key) => {
      (document.activeElement as HTMLElement | null)?.blur();
      replace({ key, low: null, high: null });
    });
    return element("p", { class: "tools" }, menu, field("low", "from"), field("high", "to"), factor === 100 ? "%" : "", button("×", () => this.setFilters(this.view.current.filters.filter((_, index) => index !== place)), { "aria-label": "Remove this filter" }));
  }

  private toggleRows(): void {
    this.grid.isTall = !this.grid.isTall;
    this.grid.draw();
  }

  private describe(): void {
    const total = this.atlas.heads.length;
    const { matchingRows, drawnRows, isTall } = this.grid;
    const some = matchingRows < total ? `${count(matchingRows)} of ${count(total)} heads` : `${count(total)} heads`;
    this.summary.textContent = drawnRows < matchingRows ? `${some}, first ${drawnRows}` : some;
    this.more.hidden = !isTall && drawnRows === matchingRows;
    this.more.textContent = isTall ? "Fewer" : `All ${count(matchingRows)}`;
  }

  private save(): void {
    const columns = this.atlas.quantities.map((quantity) => ({ ...columnOf({ ...quantity, unit: "" }), label: quantity.key }));
    download(new Blob([csv(this.atlas.heads.map(({ label }) => label), columns)], { type: "text/csv" }), "heads.csv");
  }
}
