/** Paper shows what a click would. */

export function openForPrint(page: Document): void {
  addEventListener("beforeprint", () => {
    for (const folded of page.querySelectorAll<HTMLDetailsElement>("details:not([open])")) {
      folded.open = true;
      folded.dataset["printed"] = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const opened of page.querySelectorAll<HTMLDetailsElement>("details[data-printed]")) {
      opened.open = false;
      delete opened.dataset["printed"];
    }
  });
}

/** Opens what a link leads into. */
export function openForLinks(page: Document): void {
  const open = () => {
    const target = page.getElementById(decodeURIComponent(location.hash.slice(1).split("?")[0] ?? ""));
    const folded = target?.querySelector<HTMLDetailsElement>(":scope > details");
    if (folded) folded.open = true;
  };
  addEventListener("hashchange", open);
  open();
}
