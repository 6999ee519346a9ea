/**
 * The data of a page, as `src/headscope/report/page_data.py` writes it.
 *
 * Numbers that JSON lacks are null (not a number, missing). Arrays of bytes are base64.
 */

export type Numbers = readonly (number | null)[];

/** A grid of heads: one for each stack and kind of attention (encoder, decoder, cross-attention). */
export interface Panel {
  readonly title: string;
  readonly layers: readonly number[];
  readonly columns: number; // the largest number of heads in one of its layers
  readonly causal: boolean;
}

export interface Head {
  readonly label: string; // "L11.H1", also the id of its page
  readonly panel: number;
  readonly layer: number;
  readonly head: number;
  readonly roles: readonly string[]; // "induction head": what lenses say it is
}

/** One number per head, in the order of `Atlas.heads`. */
export interface Quantity {
  readonly key: string; // "focus.entropy"
  readonly lens: string;
  readonly lens_title: string;
  readonly label: string;
  readonly unit: string; // "share" is written in percent
  readonly meaning: string;
  readonly scale: "linear" | "log";
  readonly notable: "high" | "low" | "both";
  readonly ends: readonly [string, string]; // what the lowest and the highest head are called; empty without a name
  readonly values: Numbers;
  readonly nulls: Numbers | number | null; // per head, one for all, or none
}

/** A curve per head, in the order of `Atlas.heads`; a law has one row for all heads or a row for each. */
export interface HeadCurve {
  readonly lens: string;
  readonly label: string;
  readonly x_axis: string;
  readonly y_axis: string;
  readonly x: Numbers;
  readonly values: readonly (Numbers | null)[];
  readonly law: readonly (Numbers | null)[] | null;
  readonly law_label: string;
  readonly log_x: boolean;
  readonly log_y: boolean;
}

export interface Atlas {
  readonly model: string;
  readonly panels: readonly Panel[];
  readonly heads: readonly Head[];
  readonly quantities: readonly Quantity[];
  readonly curves: readonly HeadCurve[];
}

export interface PanelTokens {
  readonly queries: readonly string[]; // of the small maps
  readonly keys: readonly string[];
  readonly n_queries: number; // of the maps of cards
  readonly n_keys: number;
}

/** Attention maps of one window: a byte is 255 times the root of a weight's share of the head's largest weight. */
export interface Patterns {
  readonly size: number; // tokens on each side of the small maps, at most
  readonly tokens: readonly PanelTokens[]; // by panel
  readonly largest: Numbers; // by head: the weight that byte 255 means; null where there is no map
  readonly maps: readonly (string | null)[]; // by head: base64 of the rows, each up to the diagonal if causal
  readonly weights?: readonly (string | null)[]; // the same as float32, little-endian: exact, in place of `maps`
  readonly cards: Readonly<Record<string, string | null>>; // the same on all tokens, by the place of some heads
}

/** A lens of the run, for the search. */
export interface LensEntry {
  readonly lens: string;
  readonly title: string;
  readonly question: string;
  readonly anchor: string;
}

export interface TextColumn {
  readonly label: string;
  readonly number: false;
  readonly values: readonly (string | null)[];
}

export interface NumberColumn {
  readonly label: string;
  readonly number: true;
  readonly digits: number | null;
  readonly values: Numbers;
  readonly unit?: string;
  readonly meaning?: string;
  readonly null?: number; // of all rows
  readonly nulls?: Numbers; // by row
  readonly low?: Numbers; // the interval
  readonly high?: Numbers;
}

export type TableColumn = TextColumn | NumberColumn;

export interface TableData {
  readonly rows: number; // that are shown at first
  readonly shown: number; // columns that are shown at first
  readonly heads: boolean; // whether labels are those of heads
  readonly labels: readonly string[] | null;
  readonly columns: readonly TableColumn[];
}

/** A figure of `src/headscope/core/figure.py`, as `src/headscope/report/figure_data.py` writes it. */
interface Picture {
  readonly name: string;
  readonly title: string;
  readonly width: number; // pixels that the page reserves for the drawing
  readonly height: number;
}

export interface Series {
  readonly label: string;
  readonly x: Numbers | number; // a number: the places are those of the series with this index
  readonly y: Numbers;
  readonly low: Numbers | null;
  readonly high: Numbers | null;
  readonly role: "measured" | "theory" | "null";
  readonly points: boolean;
}

/** A large map: 16-bit codes in base64, from 0 for `low` to 65534 for `high`; 65535 where there is no value. */
export interface PackedMap {
  readonly rows: number;
  readonly columns: number;
  readonly low: number;
  readonly high: number;
  readonly codes: string;
}

export interface HeatMap extends Picture {
  readonly type: "HeatMap";
  readonly values: readonly Numbers[] | PackedMap;
  readonly row_labels: readonly string[];
  readonly column_labels: readonly string[];
  readonly row_axis: string;
  readonly column_axis: string;
  readonly unit: string;
  readonly reference: number | null;
  readonly limits: readonly [number, number] | null;
  readonly panels: readonly [readonly string[], readonly string[]] | null;
}

export interface Curves extends Picture {
  readonly type: "Curves";
  readonly x_axis: string;
  readonly y_axis: string;
  readonly series: readonly Series[];
  readonly log_x: boolean;
  readonly log_y: boolean;
}

export interface Histogram extends Picture {
  readonly type: "Histogram";
  readonly x_axis: string;
  readonly edges: Numbers;
  readonly density: Numbers;
  readonly laws: readonly Series[];
  readonly marks: readonly (readonly [string, number | null])[];
  readonly log_y: boolean;
}

export interface Mosaic extends Picture {
  readonly type: "Mosaic";
  readonly values: readonly string[]; // by row, one character for each cell: "0" empty, then "1", "2" and on for the kinds
  readonly kinds: readonly string[];
  readonly row_axis: string;
  readonly column_axis: string;
  readonly ordered: boolean;
}

export interface Network extends Picture {
  readonly type: "Network";
  readonly nodes: readonly string[];
  readonly edges: readonly Numbers[]; // from, to, kind from 1 on
  readonly kinds: readonly string[];
}

export interface Flow extends Picture {
  readonly type: "Flow";
  readonly boxes: readonly string[];
  readonly notes: readonly (readonly string[])[]; // lines below the name, by box
  readonly columns: Numbers; // of the boxes, from 0
  readonly headings: readonly string[]; // by column
  readonly bands: readonly Numbers[]; // from, to, kind from 1 on, number
  readonly kinds: readonly string[];
  readonly units: readonly string[]; // by kind
}

export type Figure = HeatMap | Curves | Histogram | Mosaic | Network | Flow;
