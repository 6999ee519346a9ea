/** The attention maps of heads, out of the data of the page. */

import type { Atlas, Patterns } from "../data";
import { type AttentionMap, byteIndex, bytesOf } from "../drawing/attention_map";

const POWER = 2;
const BRIGHT = 0.995; // this share of the cells is not in full colour
const LEAST_BRIGHT = 64; // a byte; less than this is never in full colour

/**
 * How the map of a head looks: shades of one colour by the root of the weights, which shows small weights better.
 *
 * In causal attention the first token gives everything to itself, so that the largest weight says little: the few
 * brightest cells share the full colour.
 */
export function lookOf(map: AttentionMap): { readonly tone: (share: number) => number; readonly ink: `--${string}` } {
  const full = Math.max(LEAST_BRIGHT, quantileOf(map.bytes, BRIGHT)) / 255;
  return { tone: (share) => Math.min(1, Math.sqrt(share) / full), ink: "--hs-c0" };
}

/** The byte below which a share of all bytes lies. */
export function quantileOf(bytes: Uint8Array, share: number): number {
  const counts = new Uint32Array(256);
  for (const byte of bytes) counts[byte]!++;
  let below = 0;
  for (let byte = 0; byte < 256; byte++) {
    below += counts[byte]!;
    if (below >= share * bytes.length) return byte;
  }
  return 255;
}

/** The map at half the size: the largest of four weights each, so that no thin line is lost. */
export function halved(map: AttentionMap): AttentionMap {
  const [queries, keys] = [Math.ceil(map.queries / 2), Math.ceil(map.keys / 2)];
  const bytes: number[] = [];
  for (let query = 0; query < queries; query++) {
    for (let key = 0; key < (map.causal ? Math.min(keys, query + 1) : keys); key++) {
      const cells = [[0, 0], [0, 1], [1, 0], [1, 1]].map(([down, across]) => {
        const [row, column] = [2 * query + down!, 2 * key + across!];
        const index = row < map.queries && column < map.keys ? byteIndex(map, row, column) : null;
        return index === null ? 0 : (map.bytes[index] ?? 0);
      });
      bytes.push(Math.max(...cells));
    }
  }
  return { ...map, bytes: Uint8Array.from(bytes), queries, keys };
}

/** The map of a head on the tokens that the page has for every head; null where it has none. */
export function smallMap(atlas: Atlas, patterns: Patterns, head: number): AttentionMap | null {
  const tokens = tokensOf(atlas, patterns, head);
  const exact = patterns.weights?.[head] ?? null;
  const map = mapOf(atlas, patterns, head, exact ?? patterns.maps[head] ?? null, tokens.queries.length, tokens.keys.length);
  return map === null || exact === null ? map : { ...map, ...levelsOf(map.bytes, map.largest) };
}

/** The weights in bytes of float32, and the bytes that they are drawn by. */
function levelsOf(bytes: Uint8Array, largest: number): Pick<AttentionMap, "bytes" | "weights"> {
  const view = new DataView(bytes.buffer);
  const weights = Float32Array.from({ length: bytes.length / 4 }, (_, index) => view.getFloat32(4 * index, true));
  return { weights, bytes: Uint8Array.from(weights, (weight) => Math.round(255 * (weight / (largest || 1)) ** (1 / POWER))) };
}

/** The map of a head on more tokens, which only some heads have. */
export function cardMap(atlas: Atlas, patterns: Patterns, head: number): AttentionMap | null {
  const tokens = tokensOf(atlas, patterns, head);
  return mapOf(atlas, patterns, head, patterns.cards[String(head)] ?? null, tokens.n_queries, tokens.n_keys);
}

export function tokensOf(atlas: Atlas, patterns: Patterns, head: number): Patterns["tokens"][number] {
  return patterns.tokens[atlas.heads[head]!.panel]!;
}

function mapOf(atlas: Atlas, patterns: Patterns, head: number, base64: string | null, queries: number, keys: number): AttentionMap | null {
  const largest = patterns.largest[head] ?? null;
  if (base64 === null || largest === null) return null;
  const causal = atlas.panels[atlas.heads[head]!.panel]!.causal;
  return { bytes: bytesOf(base64), queries, keys, causal, largest, power: POWER };
}
