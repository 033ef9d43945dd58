// The manifest (canonical JSON, refused in any other form) and the initial weights from a seed.
//
// Written from docs/wire-format.md, sections Manifest and Initial weights from the seed.

import { createHash } from "node:crypto";

import { demand, WireError } from "./errors.mjs";
import { naturalLog } from "./exact.mjs";

const MAX_MANIFEST_BYTES = 1 << 20;
const MAX_PARAMETERS = 2 ** 31;
const MAX_DIMENSIONS = 8;
const MAX_NAME = 200;
const MAX_DEPTH = 32; // the page names no limit; without one a reader's stack is the limit
const ROLES = ["masked", "dense", "buffer"]; // the order of the flat vector
const RULES = ["zeros", "ones", "normal", "uniform", "sent"];
const HEX_FLOATS = [
  /^0x0\.0p\+0$/,
  /^0x1\.[0-9a-f]{13}p(\+(0|[1-9][0-9]*)|-[1-9][0-9]*)$/,
  /^0x0\.[0-9a-f]{13}p-1022$/, // below the smallest normal number
];

export const sha256 = (...pieces) =>
  pieces.reduce((hash, piece) => hash.update(piece), createHash("sha256")).digest();

export const manifestDigest = (bytes) => sha256(bytes);

// One pass over the text that accepts only what canonical JSON can look like.
class CanonicalJson {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  refuse(what) {
    throw new WireError(`manifest: ${what} at byte ${this.at}`);
  }

  take(literal) {
    if (!this.text.startsWith(literal, this.at)) return false;
    this.at += literal.length;
    return true;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found === null) return null;
    this.at = pattern.lastIndex;
    return found[0];
  }

  document() {
    const value = this.value(0);
    if (this.at !== this.text.length) this.refuse("bytes are left over");
    return value;
  }

  value(depth) {
    if (depth > MAX_DEPTH) this.refuse("too deep");
    if (this.take("{")) return this.object(depth);
    if (this.take("[")) return this.array(depth);
    if (this.text[this.at] === '"') return this.string();
    if (this.take("true")) return true;
    if (this.take("false")) return false;
    if (this.take("null")) return null;
    const digits = this.match(/0|-?[1-9][0-9]*/y);
    if (digits === null) this.refuse("not a canonical value");
    const number = Number(digits);
    return Number.isSafeInteger(number) ? number : BigInt(digits);
  }

  object(depth) {
    const found = new Map();
    if (this.take("}")) return found;
    let last = null;
    do {
      if (this.text[this.at] !== '"') this.refuse("a key is missing");
      const key = this.string();
      if (last !== null && compareByCodePoint(last, key) >= 0) this.refuse("keys are not sorted");
      if (!this.take(":")) this.refuse("no colon");
      found.set(key, this.value(depth + 1));
      last = key;
    } while (this.take(","));
    if (!this.take("}")) this.refuse("the object does not end");
    return found;
  }

  array(depth) {
    const found = [];
    if (this.take("]")) return found;
    do found.push(this.value(depth + 1));
    while (this.take(","));
    if (!this.take("]")) this.refuse("the list does not end");
    return found;
  }

  string() {
    const raw = this.match(/"(?:[\x20\x21\x23-\x5b\x5d-\x7f]|\\["\\bfnrt]|\\u[0-9a-f]{4})*"/y);
    if (raw === null) this.refuse("not a canonical string");
    const string = JSON.parse(raw);
    if (!string.isWellFormed() || quoted(string) !== raw) this.refuse("not a canonical string");
    return string;
  }
}

// As JSON.stringify, and every UTF-16 unit beyond ASCII as \uXXXX in small letters.
const quoted = (string) =>
  JSON.stringify(string).replace(
    /[\x80-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

function compareByCodePoint(a, b) {
  const [left, right] = [Array.from(a), Array.from(b)];
  for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
    const difference = left[i].codePointAt(0) - right[i].codePointAt(0);
    if (difference !== 0) return difference;
  }
  return left.length - right.length;
}

function fields(object, names, where) {
  demand(object instanceof Map, `manifest: ${where} is not an object`);
  const found = [...object.keys()].join();
  demand(found === [...names].sort().join(), `manifest: ${where} has the keys ${found}`);
  return names.map((name) => object.get(name));
}

function hexFloat(text) {
  const canonical = typeof text === "string" && HEX_FLOATS.some((form) => form.test(text));
  demand(canonical, `manifest: ${text} is not a float`);
  const [, lead, digits, power] = /^0x([01])\.([0-9a-f]+)p(.*)$/.exec(text);
  const mantissa = Number(lead) + parseInt(digits, 16) / 16 ** digits.length;
  const number = mantissa * 2 ** Number(power);
  const normal = Number(power) >= -1022 && Number.isFinite(number);
  demand(normal, `manifest: ${text} is not a float`);
  return number;
}

// Return the tensors of a manifest as { name, shape, role, rule, scale, size }.
export function readManifest(bytes) {
  demand(bytes.length <= MAX_MANIFEST_BYTES, "manifest: more than 1 MiB");
  demand(bytes.every((byte) => byte < 0x80), "manifest: not ASCII");
  const text = Buffer.from(bytes).toString("latin1");
  const document = new CanonicalJson(text).document();
  const [format, model, tensors] = fields(document, ["format", "model", "tensors"], "the manifest");
  demand(format === 1, `manifest: format ${format}`);
  demand(model instanceof Map, "manifest: model is not an object");
  demand(Array.isArray(tensors), "manifest: tensors is not a list");
  const names = new Set();
  let total = 0;
  return tensors.map((entry) => {
    const tensor = readTensor(entry);
    demand(!names.has(tensor.name), `manifest: two tensors are called ${tensor.name}`);
    names.add(tensor.name);
    total += tensor.size;
    demand(total <= MAX_PARAMETERS, "manifest: more than 2^31 values");
    return tensor;
  });
}

function readTensor(entry) {
  const keys = ["name", "shape", "dtype", "role", "init"];
  const [name, shape, dtype, role, init] = fields(entry, keys, "a tensor");
  demand(typeof name === "string", "manifest: a name is not text");
  demand(name.length >= 1 && Array.from(name).length <= MAX_NAME, "manifest: length of a name");
  demand(!/\p{C}/u.test(name), "manifest: a name has a control character");
  demand(Array.isArray(shape) && shape.length <= MAX_DIMENSIONS, `manifest: shape of ${name}`);
  let size = 1;
  for (const length of shape) {
    demand(typeof length === "number" && length >= 1, `manifest: shape of ${name}`);
    size *= length;
    demand(size <= MAX_PARAMETERS, `manifest: ${name} has more than 2^31 values`);
  }
  demand(dtype === "float32", `manifest: dtype of ${name}`);
  demand(ROLES.includes(role), `manifest: role of ${name}`);
  demand(role !== "masked" || shape.length >= 1, `manifest: shape of ${name}`);
  const [rule, scale] = fields(init, ["rule", "scale"], "init");
  demand(RULES.includes(rule), `manifest: rule of ${name}`);
  return { name, shape, role, rule, scale: hexFloat(scale), size };
}

// Return the tensors in the order of the flat vector.
export const flatOrder = (tensors) =>
  ROLES.flatMap((role) => tensors.filter((tensor) => tensor.role === role));

// Return the flat vector that a manifest's rules give for a seed (decimal ASCII or an integer).
export function initialVector(tensors, seed) {
  const ordered = flatOrder(tensors);
  const vector = new Float32Array(ordered.reduce((sum, { size }) => sum + size, 0));
  let start = 0;
  for (const tensor of ordered) {
    const part = vector.subarray(start, start + tensor.size);
    start += tensor.size;
    fill(part, tensor, seed);
  }
  return vector;
}

function fill(part, { name, rule, scale }, seed) {
  demand(rule !== "sent", `the weights of ${name} do not follow from the seed`);
  if (rule === "zeros" || rule === "ones") {
    part.fill(rule === "ones" ? 1 : 0);
    return;
  }
  const words = philox(sha256(`ssfl\0${seed}\0initial\0${name}`));
  for (let i = 0; i < part.length; i += 1) {
    const u = (Number(words.next().value >> 12n) + 0.5) * 2 ** -52;
    part[i] = rule === "uniform" ? (2 * u - 1) * scale : normalQuantile(u) * scale;
  }
}

const WORD = (1n << 64n) - 1n;

// Yield the 64-bit words of Philox-4x64-10. numpy raises the counter before each block of four
// words, so that the first block is that of counter 1.
function* philox(digest) {
  for (let counter = 1n; ; counter += 1n) {
    let [c0, c1, c2, c3] = [0n, 64n, 128n, 192n].map((shift) => (counter >> shift) & WORD);
    let [k0, k1] = [digest.readBigUInt64LE(0), digest.readBigUInt64LE(8)];
    for (let round = 0; round < 10; round += 1) {
      const first = c0 * 0xd2e7470ee14c6c93n;
      const second = c2 * 0xca5a826395121157n;
      [c0, c1, c2, c3] = [
        (second >> 64n) ^ c1 ^ k0,
        second & WORD,
        (first >> 64n) ^ c3 ^ k1,
        first & WORD,
      ];
      k0 = (k0 + 0x9e3779b97f4a7c15n) & WORD;
      k1 = (k1 + 0xbb67ae8584caa73bn) & WORD;
    }
    yield* [c0, c1, c2, c3];
  }
}

// AS 241, PPND16: numerators and denominators, the coefficient of the highest power first.
const CENTRE = [
  [
    2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
    4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
    1.3314166789178437745e2, 3.387132872796366608,
  ],
  [
    5.226495278852854561e3, 2.8729085735721942674e4, 3.930789580009271061e4,
    2.1213794301586595867e4, 5.3941960214247511077e3, 6.871870074920579083e2,
    4.2313330701600911252e1, 1,
  ],
];
const TAIL = [
  [
    7.7454501427834140764e-4, 2.27238449892691845833e-2, 2.4178072517745061177e-1,
    1.27045825245236838258, 3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959,
    1.42343711074968357734,
  ],
  [
    1.05075007164441684324e-9, 5.475938084995344946e-4, 1.51986665636164571966e-2,
    1.4810397642748007459e-1, 6.8976733498510000455e-1, 1.6763848301838038494,
    2.05319162663775882187, 1,
  ],
];
const FAR_TAIL = [
  [
    2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.2426609473880784386e-3,
    2.6532189526576123093e-2, 2.9656057182850489123e-1, 1.7848265399172913358,
    5.4637849111641143699, 6.6579046435011037772,
  ],
  [
    2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5,
    7.868691311456132591e-4, 1.48753612908506148525e-2, 1.3692988092273580531e-1,
    5.9983220655588793769e-1, 1,
  ],
];

const horner = (coefficients, x) => coefficients.reduce((sum, one) => sum * x + one);

function normalQuantile(p) {
  const q = p - 0.5;
  if (Math.abs(q) <= 0.425) {
    const r = 0.180625 - q * q;
    return q * (horner(CENTRE[0], r) / horner(CENTRE[1], r));
  }
  const r = Math.sqrt(-naturalLog(q < 0 ? p : 1 - p));
  const [[above, below], x] = r <= 5 ? [TAIL, r - 1.6] : [FAR_TAIL, r - 5];
  const z = horner(above, x) / horner(below, x);
  return q < 0 ? -z : z;
}
