/** Round numbers at which axes have ticks. */

/** About `amount` multiples of 1, 2 or 5 times a power of ten between two numbers; with `whole` only whole ones. */
export function linearPlaces(low: number, high: number, amount: number, { whole = false } = {}): number[] {
  if (!(high > low)) return Number.isFinite(low) ? [low] : [];
  const rough = (high - low) / Math.max(1, amount);
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((candidate) => candidate * power >= rough * 0.9999) ?? 10;
  const step = whole ? Math.max(1, Math.round(factor * power)) : factor * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => tidy((first + index) * step));
}

/**
 * Powers of ten between two positive numbers, at most `amount`, some left out where there are more.
 *
 * Over a short range they alone would leave the axis almost bare: then 2 and 5 times, or 3 times, these are added.
 */
export function logPlaces(low: number, high: number, amount: number): number[] {
  if (!(low > 0 && high > low)) return low > 0 ? [low] : [];
  const span = high / low;
  if (span < 3) return linearPlaces(low, high, amount);
  const factors = span < 60 ? [1, 2, 5] : span < 1000 ? [1, 3] : [1];
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = factors.length > 1 ? 1 : Math.max(1, Math.ceil((Math.log10(span) + 1) / amount));
  const places: number[] = [];
  for (let exponent = Math.ceil(first / every) * every; exponent <= last; exponent += every) {
    for (const factor of factors) places.push(tidy(factor * 10 ** exponent));
  }
  return places.filter((place) => place >= low * (1 - 1e-9) && place <= high * (1 + 1e-9));
}

/** The number without the dust of binary arithmetic. */
function tidy(value: number): number {
  return Number(value.toPrecision(12));
}
