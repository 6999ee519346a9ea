/** The small pictures of the first screens: of the findings, and of the heads at the ends. */

import { attentionMap } from "../drawing/attention_map";
import { cardMap, halved, lookOf } from "../heads/head_map";
import { whenNear } from "../navigation/element";
import type { Transport } from "../transport";
import { spark } from "./spark";

const LARGE = 160; // tokens; a card has about as many pixels

/** Puts a small figure before each finding that names one. */
export function drawSparks(page: Document, transport: Transport): void {
  whenNear(page.querySelectorAll<HTMLElement>("[data-spark]"), (finding) => {
    void transport
      .figure(finding.dataset["spark"] ?? "")
      .then((figure) => {
        const picture = spark(figure);
        if (picture !== null) finding.prepend(picture);
      })
      .catch(() => undefined); // a figure that cannot be drawn says so in its section
  });
}

/** Puts the pattern of its head into each card. */
export function drawCards(page: Document, transport: Transport): void {
  whenNear(page.querySelectorAll<HTMLElement>(".card[data-head]"), (card) => void drawCard(card, transport));
}

async function drawCard(card: HTMLElement, transport: Transport): Promise<void> {
  const [atlas, patterns] = await Promise.all([transport.atlas(), transport.patterns()]);
  const map = atlas && patterns && cardMap(atlas, patterns, Number(card.dataset["head"]));
  if (map) card.prepend(attentionMap(map.queries > LARGE ? halved(map) : map, lookOf(map)));
}
