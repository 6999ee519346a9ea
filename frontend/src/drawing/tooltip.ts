/** One tooltip for the page: it appears at once, under a finger too, and never outside the window. */

let bubble: HTMLElement | null = null;

/** Shows words at the pointer; several lines are separated by line breaks. */
export function showTip(words: string, pointer: { readonly clientX: number; readonly clientY: number }): void {
  const tip = (bubble ??= created());
  if (tip.textContent !== words) tip.textContent = words;
  tip.hidden = false;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
  tip.style.left = `${Math.max(4, Math.min(pointer.clientX + 12, room))}px`;
  const above = pointer.clientY - tip.offsetHeight - 10;
  tip.style.top = `${above >= 4 ? above : pointer.clientY + 18}px`;
}

export function hideTip(): void {
  if (bubble) bubble.hidden = true;
}

/** Shows the words of `data-tip` of whatever the pointer is over. */
export function showTipsOfElements(page: Document): void {
  let isOver = false;
  page.addEventListener("pointermove", (event) => {
    const element = event.target instanceof Element ? event.target.closest<HTMLElement | SVGElement>("[data-tip]") : null;
    if (element) showTip(element.dataset["tip"] ?? "", event);
    else if (isOver) hideTip();
    isOver = element !== null;
  });
}

/** Shows the words of `wordsAt` while the pointer is over an element; null shows nothing. */
export function tipOver(element: Element, wordsAt: (event: PointerEvent) => string | null): void {
  const show = (event: Event) => {
    const words = wordsAt(event as PointerEvent);
    if (words === null) hideTip();
    else showTip(words, event as PointerEvent);
  };
  element.addEventListener("pointermove", show);
  element.addEventListener("pointerdown", show);
  element.addEventListener("pointerleave", hideTip);
}

function created(): HTMLElement {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  document.body.append(tip);
  return tip;
}
