// An independent reader of wire format version 1, written from docs/wire-format.md alone. Bytes that
// the page forbids throw WireError; received bytes never throw anything else.
//
// Values are Float32Arrays (as raw memory: NaN payloads survive), masks are Uint8Arrays of packed
// bits, payloads are Uint8Arrays.

import { crc32, zstdDecompressSync } from "node:zlib";

import { demand, WireError } from "./errors.mjs";
import { sha256 } from "./manifest.mjs";

export { WireError } from "./errors.mjs";
export { exactMean, fractionBits, largestScores, numKept, scoreFractionBits } from "./exact.mjs";
export { flatOrder, initialVector, manifestDigest, readManifest, sha256 } from "./manifest.mjs";

const BLOCK = 65536;
const MAX_CHUNK_BYTES = 1 << 20;
const MAX_PARAMETERS = 2 ** 31;
const ZSTD_MAGIC = 0xfd2fb528;
const NUM_CLASSES = 64;

if (new Uint8Array(Uint32Array.of(1).buffer)[0] !== 1) {
  throw new Error("this reader needs a little-endian machine");
}

const ceilDiv = (a, b) => Math.floor((a + b - 1) / b);
const numBlocks = (count) => ceilDiv(count, BLOCK);
const bitsOf = (values) => new Int32Array(values.buffer, values.byteOffset, values.length);

// --- Bytes in order, and sections ---

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.at = 0;
  }

  // Return the start of the next `count` bytes, and skip them.
  skip(count) {
    demand(count <= this.bytes.length - this.at, "bytes are missing");
    this.at += count;
    return this.at - count;
  }

  take(count) {
    const start = this.skip(count);
    return this.bytes.subarray(start, start + count);
  }

  u8() {
    return this.view.getUint8(this.skip(1));
  }

  u16() {
    return this.view.getUint16(this.skip(2), true);
  }

  u32() {
    return this.view.getUint32(this.skip(4), true);
  }

  float32s(count) {
    return float32s(this.take(4 * count));
  }

  section(size) {
    const length = this.u32();
    demand(length <= size, `a section of ${size} bytes has a length of ${length}`);
    const data = this.take(length);
    return length === size ? data : unpackFrame(data, size);
  }

  end() {
    demand(this.at === this.bytes.length, "bytes are left over");
  }
}

function float32s(bytes) {
  const values = new Float32Array(bytes.length / 4);
  new Uint8Array(values.buffer).set(bytes);
  return values;
}

// Return the content of the one zstd frame that `data` is; it must be `size` bytes.
function unpackFrame(data, size) {
  checkFrame(data, size);
  let content;
  try {
    content = zstdDecompressSync(data, { maxOutputLength: size });
  } catch (error) {
    throw new WireError(`not a zstd frame: ${error.message}`);
  }
  demand(content.length === size, "the frame does not hold what it states");
  return content;
}

// RFC 8878, 3.1.1: the frame states its size, names no dictionary, and ends where the data ends.
function checkFrame(data, size) {
  const frame = new Reader(data);
  demand(frame.u32() === ZSTD_MAGIC, "not a zstd frame");
  const descriptor = frame.u8();
  demand((descriptor & 0x08) === 0, "a reserved bit of the frame is set");
  const singleSegment = (descriptor >> 5) & 1;
  if (!singleSegment) frame.skip(1); // window descriptor
  const dictionary = frame.take([0, 1, 2, 4][descriptor & 3]);
  demand(dictionary.every((byte) => byte === 0), "the frame uses a dictionary");
  const width = [singleSegment, 2, 4, 8][descriptor >> 6];
  demand(width !== 0, "the frame does not state its content size");
  const stated = frame.take(width).reduceRight((sum, byte) => sum * 256 + byte, 0);
  demand(stated + (width === 2 ? 256 : 0) === size, "the frame states another content size");
  for (let last = false; !last; ) {
    const [low, middle, high] = frame.take(3);
    const header = low | (middle << 8) | (high << 16);
    last = (header & 1) === 1;
    const type = (header >> 1) & 3;
    demand(type !== 3, "a reserved block type");
    frame.skip(type === 1 ? 1 : header >> 3); // 1: one byte, repeated
  }
  if (descriptor & 0x04) frame.skip(4); // checksum, verified by zstd
  frame.end();
}

// Yield where each block begins and how many values it has.
function* blocks(count) {
  for (let start = 0; start < count; start += BLOCK) yield [start, Math.min(BLOCK, count - start)];
}

// Return `count` unsigned integers of `width` bytes from as many planes.
function planes(reader, count, width) {
  const integers = new Uint32Array(count);
  for (let plane = 0; plane < width; plane += 1) {
    const bytes = reader.section(count);
    for (let i = 0; i < count; i += 1) integers[i] |= bytes[i] << (8 * plane);
  }
  return integers;
}

const unzigzag = (code) => (code >>> 1) ^ -(code & 1);

// --- Sizes: the limits of num_bytes, checked before the payload is read ---

const SIZES = {
  values_only: (bytes, n) => bytes === 4 * n,
  dense: (bytes, n) => bytes === 4 * n,
  bitmask: (bytes, n) => bytes === ceilDiv(n, 8),
  bitmask_zstd: (bytes, n) => bytes < ceilDiv(n, 8),
  reference: (bytes, n) => bytes <= 4 * n + 16 * numBlocks(n),
  bfloat16: (bytes, n) => bytes <= 2 * n + 8 * numBlocks(n),
  int8: (bytes, n) => bytes <= n + 4 * ceilDiv(n, 256) + 4 * numBlocks(n),
  grid: (bytes, n) => bytes <= 4 * n + 17 * numBlocks(n),
  scores: (bytes, n) => bytes <= n + 3 + 4 * numBlocks(n),
  // Every class that has coordinates costs 4 bytes of length and at most one byte of rest.
  bitmask_sorted: (bytes, n, shapes) =>
    bytes <= 2 + 4 + sideSize(shapes) + Math.floor(n / 8) + 5 * Math.min(NUM_CLASSES, n),
};

// Refuse a number of bytes that `count` values or coordinates cannot have.
export function checkNumBytes(encoding, numBytes, count, shapes = []) {
  demand(Object.hasOwn(SIZES, encoding), `there is no encoding ${encoding}`);
  const possible = Number.isSafeInteger(count) && count >= 0 && count <= MAX_PARAMETERS;
  demand(possible, `${count} values`);
  const fits = SIZES[encoding](numBytes, count, shapes);
  demand(fits, `${encoding} of ${count} cannot have ${numBytes} bytes`);
}

// --- Values ---

function decodePlain(payload) {
  return float32s(payload);
}

const ordered = (bits) => (bits < 0 ? bits ^ 0x7fffffff : bits);

function decodeReference(payload, count, reference) {
  const reader = new Reader(payload);
  const values = new Float32Array(count);
  const [from, to] = [bitsOf(reference), bitsOf(values)];
  for (const [start, size] of blocks(count)) {
    planes(reader, size, 4).forEach((code, i) => {
      to[start + i] = ordered((ordered(from[start + i]) + unzigzag(code)) | 0);
    });
  }
  reader.end();
  return values;
}

// The three lossy encodings differ only in how a block of changes is read.
const decodeChanges = (readChanges) => (payload, count, reference) => {
  const reader = new Reader(payload);
  const values = new Float32Array(count);
  for (const [start, size] of blocks(count)) {
    const changes = readChanges(reader, size);
    for (let i = 0; i < size; i += 1) {
      demand(Number.isFinite(changes[i]), "a change is not finite");
      // A double holds the sum of two float32 well enough to be rounded as if it were exact.
      values[start + i] = reference[start + i] + changes[i];
    }
  }
  reader.end();
  return values;
};

function bfloat16Changes(reader, size) {
  const changes = new Float32Array(size);
  const bits = bitsOf(changes);
  planes(reader, size, 2).forEach((code, i) => {
    bits[i] = ((code >>> 1) | (code << 15)) << 16; // the sign is the lowest bit of the code
  });
  return changes;
}

function int8Changes(reader, size) {
  const steps = reader.float32s(ceilDiv(size, 256));
  const codes = planes(reader, size, 1);
  return Float32Array.from(codes, (code, i) => unzigzag(code) * steps[i >> 8]);
}

function gridChanges(reader, size) {
  const g = reader.u8();
  demand(g >= 1 && g <= 40, `a grid of 2^-${g}`);
  return Float32Array.from(planes(reader, size, 4), (code) => unzigzag(code) * 2 ** -g);
}

function decodeScores(payload, count) {
  const reader = new Reader(payload);
  const [m, lowest] = [reader.u8(), reader.u16()];
  demand(m <= 7, `${m} mantissa bits`);
  demand(lowest >= 1, "the lowest code is 0");
  const scores = new Float32Array(count);
  const bits = bitsOf(scores);
  for (const [start, size] of blocks(count)) {
    reader.section(size).forEach((code, i) => {
      if (code === 0) return;
      const cut = lowest + code - 1;
      demand(cut < 255 << m, "a score is not finite");
      bits[start + i] = cut << (23 - m);
    });
  }
  reader.end();
  return scores;
}

const VALUES = {
  values_only: decodePlain,
  dense: decodePlain,
  reference: decodeReference,
  bfloat16: decodeChanges(bfloat16Changes),
  int8: decodeChanges(int8Changes),
  grid: decodeChanges(gridChanges),
  scores: decodeScores,
};

// Return `count` values; `reference` is a Float32Array of that length, or null for all zeros.
export function decodeValues(encoding, payload, count, reference = null) {
  demand(Object.hasOwn(VALUES, encoding), `${encoding} holds no values`);
  checkNumBytes(encoding, payload.length, count);
  const against = reference ?? new Float32Array(count);
  demand(against.length === count, "the reference has another length");
  return VALUES[encoding](payload, count, against);
}

// Return the values to send: the kept coordinates of a flat vector, then all after the mask.
export function travelling(vector, mask, width) {
  return vector.filter((_, i) => i >= width || (mask[i >> 3] >> (i & 7)) & 1);
}

// --- Masks ---

function checkEnd(packed, count) {
  const used = count % 8;
  const clear = used === 0 || packed[packed.length - 1] >> used === 0;
  demand(clear, "bits behind the last coordinate are set");
  return packed;
}

function decodeBitmask(payload, width) {
  return checkEnd(Uint8Array.from(payload), width);
}

function decodeBitmaskZstd(payload, width) {
  return checkEnd(Uint8Array.from(unpackFrame(payload, ceilDiv(width, 8))), width);
}

const channels = ([outputs, inputs = 1]) => ({ outputs, inputs });

// Return the bytes of the side information: middle, inputs and outputs of every tensor.
function sideSize(shapes) {
  return shapes.map(channels).reduce((sum, { outputs, inputs }) => sum + 2 + inputs + outputs, 0);
}

function decodeBitmaskSorted(payload, width, { shapes, weights }) {
  const reader = new Reader(payload);
  const [flags, levelBits] = [reader.u8(), reader.u8()];
  demand(flags <= 1, `flags ${flags}`);
  demand(levelBits >= 2 && levelBits <= 7, `width ${levelBits}`);
  demand(flags === 0 || weights?.length >= width, "the mask needs the initial weights");
  const side = new Reader(reader.section(sideSize(shapes)));
  const classes = classify(side, shapes, width, levelBits, flags ? bitsOf(weights) : null);
  const coordinates = Array.from({ length: NUM_CLASSES }, () => []);
  classes.forEach((one, coordinate) => coordinates[one].push(coordinate));
  const packed = new Uint8Array(ceilDiv(width, 8));
  for (const members of coordinates) {
    if (members.length === 0) continue;
    const bits = checkEnd(reader.section(ceilDiv(members.length, 8)), members.length);
    members.forEach((coordinate, i) => {
      packed[coordinate >> 3] |= ((bits[i >> 3] >> (i & 7)) & 1) << (coordinate & 7);
    });
  }
  reader.end();
  return packed;
}

// Return the class of every coordinate.
function classify(side, shapes, width, levelBits, weightBits) {
  const classes = new Uint8Array(width);
  let coordinate = 0;
  for (const shape of shapes) {
    const { outputs, inputs } = channels(shape);
    const rest = shape.slice(2).reduce((product, length) => product * length, 1);
    const middle = side.view.getInt16(side.skip(2), true);
    const [input, output] = [inputs, outputs].map((count) => Int8Array.from(side.take(count)));
    for (let o = 0; o < outputs; o += 1) {
      for (let i = 0; i < inputs; i += 1) {
        for (let r = 0; r < rest; r += 1, coordinate += 1) {
          let level = input[i] + output[o];
          if (weightBits) level += ((weightBits[coordinate] & 0x7fffffff) >> 19) - middle;
          classes[coordinate] = Math.min(Math.max((level >> levelBits) + 32, 0), 63);
        }
      }
    }
  }
  return classes;
}

const MASKS = {
  bitmask: decodeBitmask,
  bitmask_zstd: decodeBitmaskZstd,
  bitmask_sorted: decodeBitmaskSorted,
};

export const MASK_ENCODINGS = Object.keys(MASKS);

// Return the packed bits of a mask of `width` coordinates. `about` holds what the receiver has:
// `shapes` of the masked tensors and initial `weights` (bitmask_sorted), and `reference`, the
// packed bits of the mask that the payload is a difference to.
export function decodeMask(encoding, payload, width, about = {}) {
  demand(Object.hasOwn(MASKS, encoding), `${encoding} holds no mask`);
  const { shapes = [], weights = null, reference = null } = about;
  checkNumBytes(encoding, payload.length, width, shapes);
  if (encoding === "bitmask_sorted") {
    const total = shapes.reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0);
    demand(total === width, "the shapes hold another number of coordinates");
  }
  const packed = MASKS[encoding](payload, width, { shapes, weights });
  if (reference === null) return packed;
  demand(reference.length === packed.length, "the reference mask has another length");
  return packed.map((byte, i) => byte ^ reference[i]);
}

// Return the SHA-256 of the number of coordinates (8 bytes) and the packed bits.
export function maskDigest(packed, width) {
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(width));
  return sha256(length, packed);
}

// --- Transfers ---

// Collects one announced payload from its chunks. `start` is the offset of its first byte: that of
// a task's second payload is the length of the first. Check `numBytes` (checkNumBytes) before.
export class Transfer {
  constructor(numBytes, digest, start = 0) {
    this.start = start;
    this.digest = digest;
    this.payload = new Uint8Array(numBytes);
    this.received = 0;
  }

  add({ offset, data, crc32: checksum }) {
    const possible = data.length >= 1 && data.length <= MAX_CHUNK_BYTES;
    demand(possible, `a chunk of ${data.length} bytes`);
    const expected = this.start + this.received;
    demand(offset === expected, `a chunk at ${offset}, not at ${expected}`);
    const room = this.payload.length - this.received;
    demand(data.length <= room, "a chunk passes the announced end");
    demand(crc32(data) === checksum, "the CRC-32 of a chunk differs", "DATA_LOSS");
    this.payload.set(data, this.received);
    this.received += data.length;
  }

  finish() {
    demand(this.received === this.payload.length, "chunks are missing");
    const same = sha256(this.payload).equals(this.digest);
    demand(same, "the digest of the payload differs", "DATA_LOSS");
    return this.payload;
  }
}
