/** The values of maps, from whatever form the page carries them in. */

import type { HeatMap, Mosaic, Numbers, PackedMap } from "../data";
import { bytesOf } from "../drawing/attention_map";

const CODES = 0xfffe;
const MISSING = 0xffff;

/** The rows of a heat map. */
export function heatRows({ values }: HeatMap): readonly Numbers[] {
  return "codes" in values ? unpacked(values) : values;
}

function unpacked({ rows, columns, low, high, codes }: PackedMap): Numbers[] {
  const bytes = bytesOf(codes);
  const code = (index: number) => bytes[2 * index]! | (bytes[2 * index + 1]! << 8);
  const value = (index: number) => (code(index) === MISSING ? null : low + ((high - low) * code(index)) / CODES);
  return Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_, column) => value(row * columns + column)));
}

/** The kind of each cell of a mosaic: 0 for an empty one. */
export function kindRows({ values }: Mosaic): number[][] {
  return values.map((row) => Array.from(row, (character) => character.charCodeAt(0) - 48));
}

/**
 * For each colour the outline of its cells, joined along the rows.
 *
 * `colourOf` gives the number of a cell's colour; null leaves it empty.
 */
export function cellPaths<T>(
  rows: readonly (readonly T[])[], colourOf: (cell: T) => number | null, width: number, height: number, joined = true,
): Map<number, string> {
  const parts = new Map<number, string[]>();
  const round = (value: number) => Math.round(value * 100) / 100;
  rows.forEach((cells, row) => {
    const [top, bottom] = [round(row * height), round((row + 1) * height)];
    for (let start = 0, end; start < cells.length; start = end) {
      const colour = colourOf(cells[start]!);
      for (end = start + 1; joined && end < cells.length && colourOf(cells[end]!) === colour; ) end++;
      if (colour === null) continue;
      const path = `M${round(start * width)},${top}H${round(end * width)}V${bottom}H${round(start * width)}z`;
      const paths = parts.get(colour);
      if (paths) paths.push(path);
      else parts.set(colour, [path]);
    }
  });
  return new Map([...parts].sort(([a], [b]) => a - b).map(([colour, paths]) => [colour, paths.join("")]));
}
