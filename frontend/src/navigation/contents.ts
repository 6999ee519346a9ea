/** The contents follow the reader: the current part is marked and open. */

/** Marks the entry of the section that the reader is in. */
export function followReader(page: Document): void {
  const links = [...page.querySelectorAll<HTMLAnchorElement>("nav#contents > ol > li > a")];
  const entries = links
    .map((link) => ({ link, section: page.getElementById(decodeURIComponent(link.hash.slice(1))) }))
    .filter((entry): entry is { link: HTMLAnchorElement; section: HTMLElement } => entry.section !== null);
  if (entries.length === 0) return;
  let current: HTMLAnchorElement | null = null;
  let isWaiting = false;
  const mark = () => {
    isWaiting = false;
    const link = entries[currentIndex(entries.map(({ section }) => section.getBoundingClientRect().top), innerHeight)]!.link;
    if (link === current) return;
    current?.removeAttribute("aria-current");
    current?.parentElement?.classList.remove("current");
    link.setAttribute("aria-current", "true");
    link.parentElement?.classList.add("current");
    current = link;
    keepInView(link);
  };
  const soon = () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(mark);
  };
  addEventListener("scroll", soon, { passive: true });
  addEventListener("resize", soon);
  mark();
}

/** The last section that begins above the middle of the upper half of the view; the first one before that. */
export function currentIndex(tops: readonly number[], height: number): number {
  const line = height / 4;
  let index = 0;
  tops.forEach((top, place) => {
    if (top <= line) index = place;
  });
  return index;
}

/** Scrolls the contents, and nothing else, so that an entry can be seen. */
function keepInView(link: HTMLElement): void {
  const nav = link.closest<HTMLElement>("nav");
  if (nav === null || nav.scrollHeight <= nav.clientHeight) return;
  const [box, frame] = [link.getBoundingClientRect(), nav.getBoundingClientRect()];
  if (box.top < frame.top + 60 || box.bottom > frame.bottom - 60) nav.scrollTop += box.top - frame.top - frame.height / 3;
}
