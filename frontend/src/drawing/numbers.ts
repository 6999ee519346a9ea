/** Writes numbers as `headscope/core/numbers.py` does: the same digits, signs and spaces. */

export const MINUS = "\u2212";
const THIN_SPACE = "\u202f";
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const MOST_DECIMALS = 6;
const NEARLY_ONE = 1.0000001; // lifts 0.0999… to the power of ten that was meant
// eslint-disable-next-line no-control-regex -- control characters are what it looks for
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** A single number with about `significant` digits: 0.42, 1 230 000, 1.2×10⁻⁷; a dash where there is none. */
export function number(value: number | null, significant = 3): string {
  if (value === null) return "–";
  if (!Number.isFinite(value)) return nonFinite(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return count(value);
  const exponent = Math.floor(Math.log10(Math.abs(value)));
  if (exponent < -4 || exponent >= 6) return scientific(value, significant - 1);
  return signed(fixed(value, Math.max(0, significant - 1 - exponent)));
}

/** A whole number; from five digits on with thin spaces between thousands. */
export function count(value: number): string {
  const digits = BigInt(Math.abs(value)).toString();
  const spaced = digits.length < 5 ? digits : digits.replace(/\B(?=(\d{3})+$)/g, THIN_SPACE);
  return value < 0 ? MINUS + spaced : spaced;
}

/** A count with its noun: `1 head`, `30 heads`. */
export function counted(amount: number, noun: string): string {
  return `${count(amount)} ${noun}${amount === 1 ? "" : "s"}`;
}

/**
 * The decimals that show four significant digits of the largest value.
 *
 * Null where no number of decimals serves all values, because they span too many orders of magnitude.
 */
export function decimals(values: readonly (number | null)[]): number | null {
  const sizes = values
    .filter((value): value is number => value !== null && Number.isFinite(value) && value !== 0)
    .map(Math.abs)
    .sort((a, b) => a - b);
  if (sizes.every(Number.isInteger)) return 0;
  const top = magnitude(sizes[sizes.length - 1]!);
  const low = magnitude(sizes[Math.floor(sizes.length / 10)]!);
  if (top - low > 2 || top < -3 || top > 6) return null;
  return Math.min(MOST_DECIMALS, Math.max(0, 3 - top));
}

/** A number with `digits` decimals, or in its own format where these would hide it; a dash where there is none. */
export function cell(value: number | null, digits: number | null): string {
  if (value === null) return "–";
  const size = Math.abs(value);
  const isHidden = size > 0 && size < 0.5 * 10 ** -(digits ?? 0);
  if (digits === null || !Number.isFinite(value) || isHidden || size >= 1e9) return number(value);
  return digits === 0 ? count(Math.trunc(value)) : signed(fixed(value, digits));
}

/** A number as `1.2×10⁻⁷`. */
export function scientific(value: number, digits: number): string {
  const [mantissa, exponent] = value.toExponential(digits).split("e") as [string, string];
  return `${signed(mantissa)}×${powerOfTen(Number(exponent))}`;
}

/** A power of ten as `10⁻³`. */
export function powerOfTen(exponent: number): string {
  return "10" + [...String(exponent)].map((digit) => (digit === "-" ? "⁻" : SUPERSCRIPTS[Number(digit)])).join("");
}

/** The label of a tick on a logarithmic axis: 0.01, 300, 2×10⁻⁵. */
export function logTick(value: number): string {
  const [mantissa, exponent] = value.toExponential(0).split("e") as [string, string];
  if (Math.abs(Number(exponent)) <= 3) return String(Number(value.toPrecision(6)));
  return mantissa === "1" ? powerOfTen(Number(exponent)) : `${mantissa}×${powerOfTen(Number(exponent))}`;
}

/** Labels of the ticks of a linear axis, with the decimals that tell them apart; very small or large ones as powers. */
export function linearTicks(ticks: readonly number[]): string[] {
  const largest = Math.max(...ticks.map(Math.abs), 0);
  const step = ticks.length > 1 ? Math.abs(ticks[1]! - ticks[0]!) : largest;
  if (largest > 0 && (largest >= 1e6 || largest < 1e-3)) {
    const digits = Math.max(0, magnitude(largest) - magnitude(step * NEARLY_ONE));
    return ticks.map((tick) => (Math.abs(tick) < step * 1e-6 ? "0" : scientific(tick, digits)));
  }
  const digits = step > 0 ? Math.max(0, -magnitude(step * NEARLY_ONE)) : 0;
  return ticks.map((tick) => (digits === 0 && Number.isInteger(tick) ? count(tick) : signed(tick.toFixed(digits))));
}

/** Replaces characters that are invisible or cannot be written by visible ones. */
export function visible(text: string): string {
  return text.replace(INVISIBLE, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : "\ufffd";
  });
}

function magnitude(value: number): number {
  return Math.floor(Math.log10(value));
}

/** The number with `digits` decimals; halves go to the even digit, as in Python, where `toFixed` rounds them up. */
function fixed(value: number, digits: number): string {
  const exact = value.toFixed(Math.min(100, digits + 55));
  const isHalf = /^50*$/.test(exact.slice(exact.indexOf(".") + 1 + digits));
  const below = exact.slice(0, exact.indexOf(".") + 1 + digits).replace(/\.$/, "");
  return isHalf && /[02468]$/.test(below) ? below : value.toFixed(digits);
}

/** The text with a true minus sign, and none before a zero. */
function signed(text: string): string {
  if (!text.startsWith("-")) return text;
  return /[1-9]/.test(text) ? MINUS + text.slice(1) : text.slice(1);
}

function nonFinite(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  return value > 0 ? "∞" : `${MINUS}∞`;
}
