/** Where the boxes and bands of a flow are, as `src/headscope/report/flow_layout.py` places them. */

import type { Flow } from "../data";

const [WIDEST_BUNDLE, THINNEST] = [150, 1.2];
export const LINE = 15;
const [PADDING, GAP] = [8, 9];

export interface Band {
  readonly from: number;
  readonly to: number;
  readonly kind: number;
  readonly value: number;
  readonly width: number;
  readonly start: number; // its upper end at the box where it begins
  readonly end: number;
}

export interface FlowLayout {
  readonly height: number;
  readonly boxes: readonly { readonly top: number; readonly height: number }[];
  readonly bands: readonly Band[];
}

export function flowLayout(figure: Flow): FlowLayout {
  const rows = figure.bands.map(([from, to, kind, value]) => ({ from: from ?? 0, to: to ?? 0, kind: kind ?? 1, value: value ?? 0 }));
  const unitOf = (row: { readonly kind: number }) => figure.units[row.kind - 1] ?? "";
  const widestOf = new Map(rows.map((row) => [unitOf(row), widestBundle(rows.filter((other) => unitOf(other) === unitOf(row)))]));
  const wide = rows.map((row) => ({ ...row, width: Math.max(THINNEST, (Math.abs(row.value) * WIDEST_BUNDLE) / Math.max(widestOf.get(unitOf(row))!, 1e-300)) }));
  const total = (side: "from" | "to", box: number) => wide.reduce((sum, row) => sum + (row[side] === box ? row.width : 0), 0);
  const heights = figure.boxes.map((_, box) => Math.max(total("from", box), total("to", box), PADDING + LINE * (1 + (figure.notes[box]?.length ?? 0))));
  const members = figure.headings.map((_, column) => figure.boxes.flatMap((_box, index) => (figure.columns[index] === column ? [index] : [])));
  const columnHeights = members.map((boxes) => boxes.reduce((sum, box) => sum + heights[box]!, GAP * Math.max(boxes.length - 1, 0)));
  const height = Math.max(...columnHeights);
  const tops = heights.map(() => 0);
  members.forEach((boxes, column) => {
    let top = (height - columnHeights[column]!) / 2;
    for (const box of boxes) {
      tops[box] = top;
      top += heights[box]! + GAP;
    }
  });
  const free = (side: "from" | "to") => heights.map((high, box) => tops[box]! + (high - total(side, box)) / 2);
  const [atStart, atEnd] = [free("from"), free("to")];
  const bands = wide.map((row) => {
    const band = { ...row, start: atStart[row.from]!, end: atEnd[row.to]! };
    atStart[row.from]! += row.width;
    atEnd[row.to]! += row.width;
    return band;
  });
  return { height, boxes: heights.map((high, box) => ({ top: tops[box]!, height: high })), bands };
}

/** The largest sum of sizes at one side of a box. */
function widestBundle(rows: readonly { readonly from: number; readonly to: number; readonly value: number }[]): number {
  const sums = new Map<string, number>();
  for (const row of rows) {
    for (const end of [`from ${row.from}`, `to ${row.to}`]) sums.set(end, (sums.get(end) ?? 0) + Math.abs(row.value));
  }
  return Math.max(...sums.values(), 0);
}
