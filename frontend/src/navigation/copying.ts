/** Copies words, and says so. */

import { button } from "./element";

const MOMENT = 1600; // milliseconds

/** A button that copies what `words` gives. */
export function copyButton(label: string, words: () => string): HTMLButtonElement {
  const created = button(label, () => void copy(words(), created), { class: "copy-button" });
  return created;
}

async function copy(words: string, created: HTMLElement): Promise<void> {
  const label = created.textContent;
  created.textContent = (await isCopied(words)) ? "Copied" : "Not allowed by the browser";
  setTimeout(() => (created.textContent = label), MOMENT);
}

/** Whether the words are now in the clipboard; pages that are files may not be allowed to use it. */
async function isCopied(words: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(words);
    return true;
  } catch {
    return copiedBySelection(words);
  }
}

function copiedBySelection(words: string): boolean {
  const field = document.createElement("textarea");
  field.value = words;
  field.style.cssText = "position:fixed;opacity:0";
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  return isDone;
}

/** Links of headings copy their address as well as lead there. */
export function equipCopyLinks(page: Document): void {
  page.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest<HTMLAnchorElement>("a.copy") : null;
    if (link === null) return;
    void isCopied(link.href).then((isDone) => {
      link.dataset["tip"] = isDone ? "link copied" : "the browser does not allow copying";
      setTimeout(() => delete link.dataset["tip"], MOMENT);
    });
  });
}
