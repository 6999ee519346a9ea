// @vitest-environment happy-dom
import { expect, test } from "vitest";
import type { Curves, Figure, Flow, HeatMap, Histogram, Mosaic, Network, Series } from "../../src/data";
import { placedFlags } from "../../src/figures/chart";
import { curvesOf, legendOf, padded, spotsOf } from "../../src/figures/curves";
import { drawingOf, fill } from "../../src/figures/figures";
import { wordsOf as wordsOfBand } from "../../src/figures/flow";
import { flowLayout } from "../../src/figures/flow_layout";
import { everySome, wordsOf } from "../../src/figures/heat_map";
import { heightsOf } from "../../src/figures/histogram";
import type { Transport } from "../../src/transport";

const picture = { name: "n", title: "T", width: 380, height: 260 };
const HOSTILE = "</text><script>alert(1)</script>";

const series = (options: Partial<Series> = {}): Series => ({
  label: "a", x: [0, 1, 2], y: [1, 2, 4], low: null, high: null, role: "measured", points: false, ...options,
});
const curves = (...all: Series[]): Curves => ({ ...picture, type: "Curves", x_axis: "layer", y_axis: "W_QK", series: all, log_x: false, log_y: false });
const heatMap = (options: Partial<HeatMap> = {}): HeatMap => ({
  ...picture, type: "HeatMap", values: [[1, 2], [null, 4]], row_labels: ["0", "1"], column_labels: ["0", "1"],
  row_axis: "layer", column_axis: "head", unit: "nats", reference: null, limits: null, panels: null, ...options,
});
const histogram = (options: Partial<Histogram> = {}): Histogram => ({
  ...picture, type: "Histogram", x_axis: "x", edges: [0, 1, 2], density: [0.25, 0.75], laws: [], marks: [["edge", 1.5]], log_y: false, ...options,
});
const mosaic: Mosaic = { ...picture, type: "Mosaic", values: ["010", "221"], kinds: ["near", "far"], row_axis: "query", column_axis: "key", ordered: false };
const network: Network = { ...picture, type: "Network", nodes: ["a", "b", "c"], edges: [[0, 1, 1], [1, 2, 2]], kinds: ["x", "y"] };

const flow: Flow = {
  ...picture, type: "Flow", boxes: ["a", "b", "head", "logit"], notes: [[], [], ["82 % there", "0 % without a"], []], columns: [0, 0, 1, 2],
  headings: ["written by", "by the head", "raises"], bands: [[0, 2, 1, 9], [1, 2, 2, -3], [2, 3, 3, 0.5]],
  kinds: ["keys", "queries", "effect"], units: ["score", "score", "logits"],
};

const words = (figure: Figure) => [...drawingOf(figure).querySelectorAll("text")].map((element) => element.textContent);

test("curves have their axes, their names and their ticks", () => {
  const all = words(curves(series(), series({ label: "law", role: "theory" })));
  for (const word of ["layer", "WQK", "a", "law", "0", "1", "2"]) expect(all).toContain(word);
});

test("a logarithmic axis labels its ticks", () => {
  expect(words({ ...curves(series({ y: [1, 10, 100] })), log_y: true })).toEqual(expect.arrayContaining(["1", "3", "10", "30", "100"]));
});

test("curves that cannot be drawn say so", () => {
  expect(() => drawingOf(curves(series({ y: [null, null, null] })))).toThrow("none of the 1 curves");
  expect(() => drawingOf({ ...curves(series({ y: [-1, 0, -2] })), log_y: true })).toThrow("on logarithmic axes");
});

test("a curve with the places of another reads them there", () => {
  const [, second] = curvesOf([series(), series({ x: 0, y: [5, 6, 7] })], false, false);
  expect(second!.points.map((point) => [point.x, point.y])).toEqual([[0, 5], [1, 6], [2, 7]]);
});

test("roles have their colours", () => {
  const colours = (...roles: Series["role"][]) => curvesOf(roles.map((role) => series({ role })), false, false).map((curve) => curve.colour);
  expect(colours("measured", "theory", "null")).toEqual(["var(--hs-c0)", "var(--hs-ink)", "var(--hs-muted)"]);
  expect(colours("measured", "theory", "measured", "theory")).toEqual(["var(--hs-c0)", "var(--hs-c0)", "var(--hs-c1)", "var(--hs-c1)"]);
  expect(colours(...Array<"measured">(7).fill("measured"))[6]).toBe("var(--hs-s31)");
});

test("a single point is drawn as a point, and a missing one is a gap", () => {
  const [curve] = curvesOf([series({ y: [null, 3, null] })], false, false);
  expect(curve!.hasPoints).toBe(true);
  expect(spotsOf(curve!, "layer", null).map((spot) => spot.words)).toEqual(["a\nlayer 1: 3"]);
});

test("the pointer is told the interval", () => {
  const [curve] = curvesOf([series({ low: [0, 1, 3], high: [2, 3, 5] })], false, false);
  expect(spotsOf(curve!, "layer", [1, 1])[0]!.words).toBe("a\nlayer 1: 2 (1 to 3)");
});

test("a legend names each name once, and a single measurement not at all", () => {
  const legend = (...all: Series[]) => legendOf(curvesOf(all, false, false)).map((entry) => [entry.label, entry.colour]);
  expect(legend(series())).toEqual([]);
  expect(legend(series(), series(), series({ role: "null", label: "chance" }))).toEqual([["a", "var(--hs-ink)"], ["chance", "var(--hs-muted)"]]);
});

test("axes have room around their values", () => {
  expect(padded([0, 10, NaN, Infinity], false, 0.1)).toEqual([-1, 11]);
  expect(padded([5, 5], false, 0.1)).toEqual([4.75, 5.25]);
  expect(padded([0, 0], false, 0.1)).toEqual([-0.5, 0.5]);
  expect(padded([1, 100, -3], true, 0.5)).toEqual([0.1, 1000]);
  expect(padded([], true, 0.5)).toEqual([0.5, 2]);
});

test("names of marks do not overlap", () => {
  const axis = { label: "", range: [0, 10] as const, log: false };
  const placed = placedFlags([{ label: "first", x: 5 }, { label: "second", x: 5.1 }, { label: "third", x: 0 }, { label: "out", x: 11 }], axis, 0, 300, 310);
  expect(placed.map((flag) => [flag.label, flag.row])).toEqual([["third", 0], ["first", 0], ["second", 1]]);
  expect(placed[0]!.middle).toBeGreaterThan(0);
});

test("a histogram has density, marks and bars", () => {
  expect(words(histogram())).toEqual(expect.arrayContaining(["x", "density", "edge"]));
  expect(() => drawingOf(histogram({ density: [null, null] }))).toThrow("no bar");
  expect(() => drawingOf(histogram({ density: [0, 0], log_y: true }))).toThrow("no bar");
  expect(heightsOf([{ left: 0, right: 1, density: 2 }], [4], false)).toEqual([0, 4.2]);
  expect(heightsOf([{ left: 0, right: 1, density: 2 }, { left: 1, right: 2, density: 8 }], [99], true)).toEqual([1, 16]);
});

test("a heat map has a path for each colour, none for what is missing, and its null", () => {
  const drawing = drawingOf(heatMap({ reference: 2 }));
  const fills = [...drawing.querySelectorAll("g[shape-rendering] path")].map((path) => path.getAttribute("fill"));
  expect(fills).toEqual(["var(--hs-d16)", "var(--hs-d32)", "var(--hs-d63)"]);
  expect(words(heatMap({ reference: 2 }))).toContain("null");
  const infinite = drawingOf(heatMap({ values: [[1, Infinity], [2, -Infinity]] }));
  expect(infinite.querySelectorAll("g[shape-rendering] path")).toHaveLength(2);
  expect(infinite.querySelector("g[shape-rendering] path")!.getAttribute("d")!.match(/M/g)).toHaveLength(1);
  expect(words(heatMap({ values: [[null, null], [null, Infinity]] }))).toContain("no value");
  expect(words(heatMap({ values: [[3, 3], [3, null]] }))).toContain("3");
});

test("a cell says its value", () => {
  expect(wordsOf(heatMap(), 1, 0, 0.4213)).toBe("L1.H0: 0.421 nats");
  expect(wordsOf(heatMap(), 1, 0, null)).toBe("L1.H0: no value");
  expect(wordsOf(heatMap({ row_axis: "from", column_axis: "to" }), 0, 1, 2)).toBe("from 0, to 1: 2 nats");
  const grid = heatMap({ row_labels: ["1", "2"], column_labels: ["1", "2", "", "1", "2"], panels: [[""], ["before", "after"]], unit: "" });
  expect(wordsOf(grid, 0, 3, 7)).toBe("after\nL1.H1: 7");
  expect(wordsOf(grid, 0, 2, null)).toBe(null);
});

test("labels keep their distance", () => {
  expect(everySome(4, 20, 12)).toEqual([0, 1, 2, 3]);
  expect(everySome(10, 5, 12)).toEqual([0, 4, 8]);
  expect(everySome(3, 0.001, 12)).toEqual([0]);
});

test("mosaics and networks name their kinds", () => {
  expect(words(mosaic)).toEqual(expect.arrayContaining(["near", "far", "query", "key"]));
  expect(drawingOf(mosaic).querySelectorAll("path")).toHaveLength(2);
  expect(words(network)).toEqual(expect.arrayContaining(["x", "y", "a", "b", "c"]));
  expect(words({ ...network, edges: [] })).toContain("a");
});

test("a flow has its boxes, notes and headings, and says the number of a band", () => {
  expect(words(flow)).toEqual(expect.arrayContaining(["a", "head", "82 % there", "0 % without a", "written by", "raises"]));
  const paths = [...drawingOf(flow).querySelectorAll("path")];
  expect(paths.map((path) => path.getAttribute("fill"))).toEqual(["var(--hs-c0)", "transparent", "var(--hs-c2)"]);
  expect(paths[1]!.getAttribute("stroke-dasharray")).toBeTruthy();
  expect(wordsOfBand(flow, { from: 0, to: 2, kind: 1, value: 9 })).toBe("a → head\nkeys: 9 score");
  expect(drawingOf({ ...flow, bands: [] }).querySelectorAll("path")).toHaveLength(0);
});

test("bands of one unit share a scale and follow each other at a box", () => {
  const { bands, boxes, height } = flowLayout(flow);
  expect(bands[0]!.width).toBeCloseTo(3 * bands[1]!.width);
  expect(bands[0]!.width + bands[1]!.width).toBeCloseTo(150);
  expect(bands[2]!.width).toBeCloseTo(150);
  expect(bands[1]!.end).toBeCloseTo(bands[0]!.end + bands[0]!.width);
  expect(Math.max(...boxes.map((box) => box.top + box.height))).toBeCloseTo(height);
  expect(flowLayout({ ...flow, bands: [[0, 2, 1, 0]] }).bands[0]!.width).toBe(1.2);
});

test("hostile words stay words", () => {
  const figures = [
    curves(series({ label: HOSTILE }), series()), heatMap({ row_labels: [HOSTILE, "b"], unit: HOSTILE }),
    { ...mosaic, kinds: [HOSTILE, "b"] }, { ...network, nodes: [HOSTILE, "b", "c"] }, { ...flow, boxes: [HOSTILE, "b", "c", "d"] }, histogram({ marks: [[HOSTILE, 1]] }),
  ];
  for (const figure of figures) expect(drawingOf(figure).querySelector("script")).toBe(null);
});

const page = (id: string): HTMLElement => {
  document.body.innerHTML = `<figure data-figure="${id}"><div class="drawing"><p>what it holds</p></div><p class="tools"></p></figure>`;
  return document.querySelector("figure")!;
};
const transport = (figure: () => Figure): Pick<Transport, "figure"> => ({ figure: async () => figure() });

test("a drawing takes the place of the words and keeps them for readers who hear it", async () => {
  const element = page("x");
  await fill(element, transport(() => mosaic));
  expect(element.querySelector(".drawing > svg")!.getAttribute("aria-label")).toBe("T. what it holds");
});

test("a broken figure shows a note", async () => {
  const element = page("x");
  await fill(element, transport(() => { throw new Error(`<b>${HOSTILE}`); }));
  expect(element.querySelector(".status")!.textContent).toContain(`<b>${HOSTILE}`);
  expect(element.querySelector("script")).toBe(null);
  expect(element.querySelector(".tools")).toBe(null);
});
