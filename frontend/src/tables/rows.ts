/** Rows of tables: sorted, filtered, as CSV. */

import type { NumberColumn, TableColumn } from "../data";
import { cell, visible } from "../drawing/numbers";

/** The text of a cell. */
export function cellText(column: TableColumn, row: number): string {
  if (column.number) return cell(column.values[row] ?? null, column.digits);
  const words = column.values[row] ?? null;
  return words === null ? "–" : visible(words);
}

/** Sorts rows by a column; what is missing comes last either way, equal rows keep their order. */
export function sorted(rows: readonly number[], column: TableColumn, descending: boolean): number[] {
  const sign = descending ? -1 : 1;
  return [...rows].sort((first, second) => {
    const [a, b] = [column.values[first] ?? null, column.values[second] ?? null];
    if (a === null || b === null) return Number(a === null) - Number(b === null) || first - second;
    const order = typeof a === "number" && typeof b === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0;
    return sign * order || first - second;
  });
}

/**
 * Whether a row has all the words: in its label, or in one of its cells.
 *
 * `l3` is the layer and not part of `l30`; `l3.h7` is one head.
 */
export function matches(words: readonly string[], label: string, texts: () => readonly string[]): boolean {
  const name = label.toLowerCase();
  return words.every((word) => {
    if (/^(?:[a-z]+\.)?l\d+(?:\.(?:cross|h\d+))*$/.test(word)) return name === word || name.startsWith(`${word}.`) || name.endsWith(`.${word}`) || name.includes(`.${word}.`);
    return name.includes(word) || texts().some((text) => text.toLowerCase().includes(word));
  });
}

/** What the cell says when pointed at: its interval and its null. */
export function cellTip(column: NumberColumn, row: number): string | null {
  const [low, high, value] = [column.low?.[row] ?? null, column.high?.[row] ?? null, column.values[row] ?? null];
  const reference = column.nulls?.[row] ?? column.null ?? null;
  const written = (number: number) => cell(number, column.digits);
  const lines = [
    value === null ? null : `${column.label}: ${written(value)}${column.unit && column.unit !== "share" ? ` ${column.unit}` : ""}`,
    low === null || high === null ? null : `95 % interval ${written(low)} to ${written(high)}`,
    reference === null ? null : `null ${written(reference)}`,
  ].filter((line) => line !== null);
  return lines.length > 0 ? lines.join("\n") : null;
}

/** The table as CSV: a column for each column, and one each for its interval and its nulls. */
export function csv(labels: readonly string[] | null, columns: readonly TableColumn[]): string {
  const parts = columns.flatMap((column) => {
    const more = column.number
      ? ([["low", column.low], ["high", column.high], ["null", column.nulls]] as const).flatMap(([name, values]) => (values ? [{ label: `${column.label} (${name})`, values }] : []))
      : [];
    return [{ label: column.label, values: column.values as readonly (string | number | null)[] }, ...more];
  });
  const named = labels === null ? parts : [{ label: "place", values: labels as readonly (string | number | null)[] }, ...parts];
  const height = named[0]?.values.length ?? 0;
  const rows = Array.from({ length: height }, (_, row) => named.map(({ values }) => values[row] ?? null));
  return [named.map(({ label }) => label), ...rows].map(csvLine).join("");
}

function csvLine(cells: readonly (string | number | null)[]): string {
  const quoted = (text: string) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return `${cells.map((value) => quoted(value === null ? "" : String(value))).join(",")}\r\n`;
}
