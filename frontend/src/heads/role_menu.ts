/** A menu of the roles that heads have: the atlas, the scatter plot and the table then show these heads alone. */

import type { Atlas } from "../data";
import { element } from "../navigation/element";
import type { View } from "../navigation/view";

/** The menu with its label; nothing where no head has a role. */
export function roleMenu(atlas: Atlas, view: View): HTMLElement[] {
  const roles = [...new Set(atlas.heads.flatMap((head) => head.roles))];
  if (roles.length === 0) return [];
  const option = (role: string, words: string) => element("option", { value: role, selected: role === (view.current.role ?? "") }, words);
  const menu = element("select", { "aria-label": "Role of heads" }, option("", "all"), ...roles.map((role) => option(role, `${role}s`)));
  menu.addEventListener("change", () => view.change({ role: menu.value === "" ? null : menu.value }));
  view.listen(({ role }) => (menu.value = role ?? ""));
  return [element("label", {}, "Heads ", menu)];
}
