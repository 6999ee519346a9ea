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
}

export interface Head {
  readonly label: string; // "L11.H1", also the id of its page
  readonly panel: number;
  readonly layer: number;
  readonly head: number;
}

/** One number per head, in the order of `Atlas.heads`. */
export interface Quantity {
  readonly key: string; // "focus.entropy"
  readonly lens: string;
  readonly label: string;
  readonly unit: string;
  readonly meaning: string;
  readonly scale: "linear" | "log";
  readonly notable: "high" | "low" | "both";
  readonly values: Numbers;
  readonly nulls: Numbers | number | null; // per head, one for all, or none
}

export interface Atlas {
  readonly model: string;
  readonly panels: readonly Panel[];
  readonly heads: readonly Head[];
  readonly quantities: readonly Quantity[];
}

/** Attention maps of one window: one byte per weight, 255 for the largest weight of the head. */
export interface Patterns {
  readonly size: number; // tokens on each side
  readonly tokens: readonly { readonly queries: readonly string[]; readonly keys: readonly string[] }[]; // by panel
  readonly largest: Numbers; // by head: the weight that byte 255 means; null where there is no map
  readonly maps: readonly (string | null)[]; // by head: base64 of the rows, each up to the diagonal if causal
  readonly causal: readonly boolean[]; // by panel
}

export interface Series {
  readonly label: string;
  readonly x: Numbers;
  readonly y: Numbers;
  readonly low: Numbers | null;
  readonly high: Numbers | null;
  readonly role: "measured" | "theory" | "null";
  readonly points: boolean;
}

interface Picture {
  readonly name: string;
  readonly title: string;
  readonly caption: string;
}

export interface HeatMap extends Picture {
  readonly type: "HeatMap";
  readonly values: readonly Numbers[];
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
  readonly marks: readonly (readonly [string, number])[];
  readonly log_y: boolean;
}

export interface Mosaic extends Picture {
  readonly type: "Mosaic";
  readonly values: readonly Numbers[];
  readonly kinds: readonly string[];
  readonly row_axis: string;
  readonly column_axis: string;
  readonly ordered: boolean;
}

export interface Network extends Picture {
  readonly type: "Network";
  readonly nodes: readonly string[];
  readonly edges: readonly Numbers[];
  readonly kinds: readonly string[];
}

export type Figure = HeatMap | Curves | Histogram | Mosaic | Network;
