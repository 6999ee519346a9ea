/** Which heads pass the filters of the page. */

import type { Atlas } from "../data";
import type { Address } from "../navigation/address";
import { quantityOf } from "../heads/quantities";

/** Whether a head has the role and lies in every range; a head without the number does not. */
export function passes(atlas: Atlas, { role, filters }: Pick<Address, "role" | "filters">, head: number): boolean {
  if (role !== null && !atlas.heads[head]!.roles.includes(role)) return false;
  return filters.every(({ key, low, high }) => {
    const quantity = quantityOf(atlas, key);
    if (quantity === null || (low === null && high === null)) return true;
    const value = quantity.values[head] ?? null;
    return value !== null && (low === null || value >= low) && (high === null || value <= high);
  });
}
