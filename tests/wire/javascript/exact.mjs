// Integers instead of rounding: the sums of the page (section Sums); and its logarithm.

import { demand } from "./errors.mjs";

const VALUE_FRACTION_BITS = 36; // the largest F of updates
const SCORE_FRACTION_BITS = 80; // the largest F of scores

const bitLength = (integer) => BigInt(integer.toString(2).length);
const magnitude = (integer) => (integer < 0n ? -integer : integer);

// Return numerator / denominator (above 0) rounded to the nearest integer, ties to even.
function roundedQuotient(numerator, denominator) {
  let quotient = magnitude(numerator) / denominator;
  const twice = 2n * (magnitude(numerator) % denominator);
  if (twice > denominator || (twice === denominator && quotient & 1n)) quotient += 1n;
  return numerator < 0n ? -quotient : quotient;
}

// Return numerator / denominator as the nearest float of `bits` bits whose last bit is worth at
// least 2^lowest: the only rounding there is.
function nearestFloat(numerator, denominator, bits, lowest) {
  if (numerator === 0n) return 0;
  let exponent = bitLength(magnitude(numerator)) - bitLength(denominator) - bits;
  const scaled = () =>
    exponent < 0n
      ? [numerator << -exponent, denominator]
      : [numerator, denominator << exponent];
  const [above, below] = scaled();
  if (bitLength(magnitude(above) / below) > bits) exponent += 1n;
  if (exponent < lowest) exponent = lowest;
  return Number(roundedQuotient(...scaled())) * 2 ** Number(exponent);
}

export const nearestFloat32 = (numerator, denominator) =>
  Math.fround(nearestFloat(numerator, denominator, 24n, -149n));

// Return a finite double as [integer, exponent]: integer · 2^exponent.
function parts(number) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, number);
  const bits = view.getBigUint64(0);
  const exponent = (bits >> 52n) & 0x7ffn;
  let integer = bits & 0xfffffffffffffn;
  if (exponent !== 0n) integer |= 1n << 52n;
  return [bits >> 63n ? -integer : integer, (exponent === 0n ? 1n : exponent) - 1075n];
}

// Return the natural logarithm of a double in (0, 1) by the steps of the page.
export function naturalLog(number) {
  const [integer, exponent] = parts(number);
  const width = Number(bitLength(integer));
  const m = Number(integer) * 2 ** -width; // in [1/2, 1)
  const e = Number(exponent) + width;
  const z = (m - 0.75) / (m + 0.75);
  const s = z * z;
  let t = 0;
  for (let k = 25; k > 0; k -= 2) t = t * s + 1 / k;
  return 2 * z * t + e * 0.6931471805599453 - 0.2876820724517809;
}

// Return the largest F up to `limit` with bound · weight · 2^F < 2^62.
export function fractionBits(bound, weight, limit = VALUE_FRACTION_BITS) {
  demand(Number.isFinite(bound) && bound >= 0, "the bound is not a finite number of at least 0");
  const [integer, exponent] = parts(bound);
  const product = integer * weight;
  const fits = (bits) => {
    const total = exponent + BigInt(bits);
    return total < 0n ? product < 1n << (62n - total) : product << total < 1n << 62n;
  };
  let bits = limit;
  while (!fits(bits)) bits -= 1;
  return bits;
}

export const scoreFractionBits = (largest, weight) =>
  fractionBits(largest, weight, SCORE_FRACTION_BITS);

// Return round(value · 2^F), ties to even, as a BigInt.
export function onGrid(value, bits) {
  demand(Number.isFinite(value), `a value that is not finite cannot be summed: ${value}`);
  const [integer, exponent] = parts(value);
  const total = exponent + BigInt(bits);
  return total >= 0n ? integer << total : roundedQuotient(integer, 1n << -total);
}

// Return the mean of float32 vectors weighted by samples (BigInts), rounded once to float32.
export function exactMean(vectors, samples, bits) {
  const weight = samples.reduce((sum, one) => sum + one, 0n);
  demand(weight > 0n, "a mean needs samples");
  const mean = new Float32Array(vectors[0].length);
  for (let i = 0; i < mean.length; i += 1) {
    let sum = 0n;
    vectors.forEach((vector, k) => (sum += samples[k] * onGrid(vector[i], bits)));
    mean[i] =
      bits >= 0
        ? nearestFloat32(sum, weight << BigInt(bits))
        : nearestFloat32(sum << BigInt(-bits), weight);
  }
  return mean;
}

// Return floor((1 - sparsity) · W); sparsity is decimal text, so nothing is rounded on the way.
export function numKept(sparsity, width) {
  const match = /^0?\.([0-9]+)$/.exec(sparsity);
  demand(match !== null && /[1-9]/.test(match[1]), `sparsity ${sparsity} is not between 0 and 1`);
  const one = 10n ** BigInt(match[1].length);
  return Number(((one - BigInt(match[1])) * BigInt(width)) / one);
}

// Return the bits (0 or 1 per coordinate) of the k largest scores, ties to the lowest coordinate.
export function largestScores(scores, k) {
  const order = Array.from(scores.keys()).sort((a, b) => scores[b] - scores[a] || a - b);
  const bits = new Uint8Array(scores.length);
  for (const coordinate of order.slice(0, k)) bits[coordinate] = 1;
  return bits;
}
