/** The ledger: shows the claims that are asked for. */

export function filterClaims(page: Document): void {
  const bar = page.querySelector<HTMLElement>(".filters");
  if (bar === null) return;
  const claims = [...page.querySelectorAll<HTMLElement>(".claim")];
  const field = (name: string) => bar.querySelector<HTMLInputElement | HTMLSelectElement>(`[name=${name}]`);
  const slips = bar.querySelector<HTMLInputElement>("[name=slips]");
  const draw = () => {
    const words = (field("words")?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const [work, verdict] = [field("document")?.value ?? "", field("verdict")?.value ?? ""];
    for (const claim of claims) {
      const text = words.length > 0 ? (claim.textContent ?? "").toLowerCase() : "";
      claim.hidden =
        (work !== "" && claim.dataset["document"] !== work) ||
        (verdict !== "" && claim.dataset["verdict"] !== verdict) ||
        (!(slips?.checked ?? true) && "slip" in claim.dataset) ||
        !words.every((word) => text.includes(word));
    }
    const count = bar.querySelector(".rest");
    if (count) count.textContent = `${claims.filter((claim) => !claim.hidden).length} of ${claims.length} shown`;
  };
  bar.addEventListener("input", draw);
  draw();
}
