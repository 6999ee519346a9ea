import { expect, test } from "vitest";
import { currentIndex } from "../../src/navigation/contents";

test.each([
  [[10, 900, 2000], 0],
  [[-800, 200, 1200], 1],
  [[-5000, -3000, -10], 2],
  [[500, 900], 0],
])("of sections that begin at %j the reader is in number %i", (tops, index) => expect(currentIndex(tops, 900)).toBe(index));
