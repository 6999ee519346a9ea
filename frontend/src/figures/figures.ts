import type { Transport } from "../transport";

/** Draws every `<figure data-figure="ID">` when it comes near the view. */
export function drawFigures(page: Document, transport: Transport): void {
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((entry) => entry.isIntersecting)) {
      observer.unobserve(entry.target);
      void transport.figure((entry.target as HTMLElement).dataset["figure"] ?? "");
    }
  });
  for (const figure of page.querySelectorAll("figure[data-figure]")) observer.observe(figure);
}
