import { describe, expect, test } from "vitest";
import { formatAddress, hasOptions, NOWHERE, parseAddress } from "../../src/navigation/address";

describe("addresses", () => {
  test("a place alone is a plain link", () => {
    expect(parseAddress("#L3.H7")).toEqual({ ...NOWHERE, place: "L3.H7" });
    expect(formatAddress({ ...NOWHERE, place: "lens-focus" })).toBe("#lens-focus");
    expect(parseAddress("")).toEqual(NOWHERE);
    expect(hasOptions(parseAddress("#L3.H7"))).toBe(false);
  });
  test("what is written is read back", () => {
    const address = {
      place: "dec.L3.cross.H7", colour: "focus.first", x: "a.b", y: "c:d&e=f", role: "night & day head",
      filters: [{ key: "focus.first", low: 0.5, high: null }, { key: "odd:key", low: null, high: -2e-3 }],
    };
    expect(parseAddress(formatAddress(address))).toEqual(address);
    expect(hasOptions(address)).toBe(true);
  });
  test("nonsense is no filter and no error", () => {
    expect(parseAddress("#%?only=x&only=a:b:c").filters).toEqual([{ key: "a", low: null, high: null }]);
    expect(parseAddress("#%").place).toBe("%");
  });
});
