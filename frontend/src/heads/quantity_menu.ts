/** A menu of all quantities, in groups by lens. */

import type { Quantity } from "../data";
import { element } from "../navigation/element";
import { byLens } from "./quantities";

export function quantityMenu(
  quantities: readonly Quantity[], label: string, chosen: string | null, choose: (key: string) => void,
): HTMLSelectElement {
  const menu = element("select", { "aria-label": label });
  for (const [lens, group] of byLens(quantities)) {
    const options = group.map(({ key, label: words }) => element("option", { value: key, selected: key === chosen }, words));
    menu.append(element("optgroup", { label: lens }, ...options));
  }
  menu.addEventListener("change", () => choose(menu.value));
  return menu;
}
