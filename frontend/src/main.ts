/** Brings a page to life: every part on its own, so that what fails costs nothing else. */

import { buildAtlas } from "./atlas/atlas";
import { drawCards, drawSparks } from "./atlas/front";
import { buildComparison } from "./comparison/comparison_page";
import { showTipsOfElements } from "./drawing/tooltip";
import { drawFigures } from "./figures/figures";
import { followHeads } from "./heads/head_page";
import { filterClaims } from "./navigation/claims";
import { followReader } from "./navigation/contents";
import { equipCopyLinks } from "./navigation/copying";
import { whenNear } from "./navigation/element";
import { openForLinks, openForPrint } from "./navigation/printing";
import { equipSearch } from "./navigation/search";
import { View } from "./navigation/view";
import { buildExplorer } from "./tables/explorer";
import { equipTables } from "./tables/table";
import { PageTransport, type Transport } from "./transport";

function start(page: Document, transport: Transport): void {
  const view = new View(window);
  const parts: (() => void | Promise<void>)[] = [
    () => showTipsOfElements(page),
    () => drawHeads(page, view, transport),
    () => followHeads(page, view, transport),
    () => buildComparison(page, view, transport),
    () => drawSparks(page, transport),
    () => drawCards(page, transport),
    () => drawFigures(page, transport),
    () => equipTables(page, transport),
    () => followReader(page),
    () => equipCopyLinks(page),
    () => openForPrint(page),
    () => openForLinks(page),
    () => filterClaims(page),
  ];
  page.body.classList.add("scripted");
  for (const part of parts) void attempt(part);
}

async function drawHeads(page: Document, view: View, transport: Transport): Promise<void> {
  const [atlas, lenses] = await Promise.all([transport.atlas(), transport.lenses()]);
  const isComparison = (await transport.comparison()) !== null; // it has a search of its own
  if (!isComparison) equipSearch(page, view, atlas, lenses);
  const [grid, table] = [page.getElementById("atlas"), page.querySelector<HTMLElement>(".explorer")];
  if (atlas !== null && grid !== null) buildAtlas(grid, atlas, view);
  if (atlas !== null && table !== null) whenNear([table], () => buildExplorer(table, atlas, view));
}

async function attempt(part: () => void | Promise<void>): Promise<void> {
  try {
    await part();
  } catch (error) {
    console.error(error);
  }
}

start(document, new PageTransport(document));
