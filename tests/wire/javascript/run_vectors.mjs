// Reproduce every vector of docs/wire-format.md, and every stored payload, with decoder.mjs.
//
//     node run_vectors.mjs docs/wire-format.md [tests/wire/golden/v1]
//
// Prints one line per vector. The first difference, an unknown vector, or a vector that the page no
// longer has ends the script with status 1; nothing is skipped.

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import * as wire from "./decoder.mjs";

const hex = (text) => Uint8Array.from(Buffer.from(text, "hex"));
const asHex = (array) =>
  Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("hex");
const floats = (bytes) => new Float32Array(Uint8Array.from(bytes).buffer);
const numbers = (text) => Float32Array.from(text.split(" "), Number);

function pack(digits) {
  const packed = new Uint8Array(Math.ceil(digits.length / 8));
  [...digits].forEach((digit, i) => (packed[i >> 3] |= Number(digit) << (i & 7)));
  return packed;
}

// Return the vectors of the page as a Map, in its order.
export function readVectors(page) {
  const vectors = new Map();
  for (const [, block] of page.matchAll(/^```vector\n(.*?)^```$/gms)) {
    for (const line of block.trimEnd().split("\n")) {
      const [, name, value] = /^(\w+) = (.*)$/.exec(line) ?? assert.fail(`not a vector: ${line}`);
      assert(!vectors.has(name), `two vectors are called ${name}`);
      vectors.set(name, value);
    }
  }
  assert(vectors.size > 0, "the page has no vectors");
  return vectors;
}

function sameHex(array, expected) {
  assert.equal(asHex(array), expected);
}

const sharedFrames = Float32Array.from({ length: 64 }, (_, i) => (i + 1) / 64);

function checkLossy(encoding, v) {
  const reference = floats(hex(v.lossy_base));
  const values = wire.decodeValues(encoding, hex(v[`${encoding}_payload`]), 4, reference);
  sameHex(values, asHex(numbers(v[`${encoding}_values`])));
}

function checkSorted(payload, v, weights) {
  const shapes = v.sorted_shapes.split(" ").map((shape) => shape.split("x").map(Number));
  const width = v.sorted_bits.length;
  const about = { shapes, weights };
  const packed = wire.decodeMask("bitmask_sorted", hex(payload), width, about);
  sameHex(packed, asHex(pack(v.sorted_bits)));
  // The same payload as a difference to a mask: the exclusive or.
  const reference = pack("0110011010");
  const other = wire.decodeMask("bitmask_sorted", hex(payload), width, { ...about, reference });
  sameHex(other.map((byte, i) => byte ^ reference[i]), asHex(packed));
}

function checkReference(payload, values, reference) {
  sameHex(wire.decodeValues("reference", hex(payload), values.length, reference), asHex(values));
}

// What each vector is checked with. A name: the vector is an input or a result of that check.
export const CHECKS = {
  manifest_json: (v) => {
    const tensors = wire.readManifest(Buffer.from(v.manifest_json));
    assert.deepEqual(
      tensors.map(({ name, role, rule, scale, size }) => [name, role, rule, scale, size]),
      [
        ["fc.weight", "masked", "normal", 1, 4],
        ["fc.bias", "dense", "zeros", 0, 2],
      ],
    );
  },
  manifest_digest: (v) =>
    sameHex(wire.manifestDigest(Buffer.from(v.manifest_json)), v.manifest_digest),
  initial_seed: "initial_vector",
  initial_vector: (v) => {
    const tensors = wire.readManifest(Buffer.from(v.manifest_json));
    sameHex(wire.initialVector(tensors, v.initial_seed), v.initial_vector);
  },
  initial_digest: (v) => sameHex(wire.sha256(hex(v.initial_vector)), v.initial_digest),
  tails_manifest: "tails_initial_digest",
  tails_initial_digest: (v) => {
    const tensors = wire.readManifest(Buffer.from(v.tails_manifest));
    const vector = wire.initialVector(tensors, v.initial_seed);
    sameHex(wire.sha256(new Uint8Array(vector.buffer)), v.tails_initial_digest);
  },
  paper_manifest: (v) => {
    const tensors = wire.readManifest(Buffer.from(v.paper_manifest));
    assert.deepEqual(
      tensors.map(({ name, rule, scale }) => [name, rule, scale]),
      [
        ["conv.weight", "normal", Math.sqrt(2 / 4)],
        ["conv.bias", "uniform", 1 / Math.sqrt(4)],
        ["norm.weight", "ones", 0],
        ["norm.bias", "zeros", 0],
        ["linear.weight", "uniform", 1 / Math.sqrt(2)],
        ["linear.bias", "uniform", 1 / Math.sqrt(2)],
      ],
    );
  },
  paper_initial_vector: (v) => {
    const tensors = wire.readManifest(Buffer.from(v.paper_manifest));
    sameHex(wire.initialVector(tensors, v.initial_seed), v.paper_initial_vector);
  },
  chunk_data: "chunk_crc32",
  chunk_crc32: (v) => {
    const data = hex(v.chunk_data);
    const transfer = new wire.Transfer(data.length, wire.sha256(data));
    transfer.add({ offset: 0, data, crc32: Number.parseInt(v.chunk_crc32, 16) });
    sameHex(transfer.finish(), v.chunk_data);
  },
  mask_zstd_size: "mask_zstd_payload",
  mask_zstd_kept: "mask_zstd_payload",
  mask_zstd_payload: (v) => {
    const size = Number(v.mask_zstd_size);
    const kept = new Set(v.mask_zstd_kept.split(" ").map(Number));
    const digits = Array.from({ length: size }, (_, i) => (kept.has(i) ? "1" : "0")).join("");
    const packed = wire.decodeMask("bitmask_zstd", hex(v.mask_zstd_payload), size);
    sameHex(packed, asHex(pack(digits)));
  },
  difference_held: "difference_payload",
  difference_mask: "difference_payload",
  difference_payload: (v) => {
    const reference = pack(v.difference_held);
    const width = v.difference_held.length;
    const packed = wire.decodeMask("bitmask", hex(v.difference_payload), width, { reference });
    sameHex(packed, asHex(pack(v.difference_mask)));
  },
  sum_values: "sum_mean",
  sum_weights: "sum_mean",
  sum_fraction_bits: (v) => {
    const weight = v.sum_weights.split(" ").reduce((sum, one) => sum + BigInt(one), 0n);
    assert.equal(wire.fractionBits(1024, weight), Number(v.sum_fraction_bits));
  },
  sum_mean: (v) => {
    const vectors = v.sum_values.split(" ").map((one) => floats(hex(one)));
    const samples = v.sum_weights.split(" ").map(BigInt);
    sameHex(wire.exactMean(vectors, samples, Number(v.sum_fraction_bits)), v.sum_mean);
  },
  coded_mean: "coded_next_residual",
  coded_residual: "coded_next_residual",
  coded_payload: "coded_values",
  coded_values: (v) =>
    sameHex(wire.decodeValues("int8", hex(v.coded_payload), 4, null), v.coded_values),
  coded_next_residual: (v) => {
    const [mean, residual, values] = ["coded_mean", "coded_residual", "coded_values"].map((name) =>
      floats(hex(v[name])),
    );
    const left = mean.map((m, i) => Math.fround(m + residual[i]) - values[i]);
    sameHex(left, v.coded_next_residual);
  },
  values_mask: "values_payload",
  values_vector: "values_payload",
  values_payload: (v) => {
    const kept = wire.travelling(
      numbers(v.values_vector),
      pack(v.values_mask),
      v.values_mask.length,
    );
    const payload = hex(v.values_payload);
    for (const encoding of ["values_only", "dense"]) {
      sameHex(wire.decodeValues(encoding, payload, kept.length), asHex(kept));
    }
  },
  mask_bits: "mask_packed",
  mask_packed: (v) => {
    const packed = wire.decodeMask("bitmask", hex(v.mask_packed), v.mask_bits.length);
    sameHex(packed, asHex(pack(v.mask_bits)));
  },
  mask_digest: (v) =>
    sameHex(wire.maskDigest(hex(v.mask_packed), v.mask_bits.length), v.mask_digest),
  reference_base: "reference_payload",
  reference_values: "reference_payload",
  reference_payload: (v) =>
    checkReference(
      v.reference_payload,
      floats(hex(v.reference_values)),
      floats(hex(v.reference_base)),
    ),
  reference_none_payload: (v) =>
    checkReference(v.reference_none_payload, floats(hex(v.reference_values)), null),
  reference_frames_payload: (v) => {
    const values = sharedFrames.map((value, i) => (i % 7 === 0 ? value + 2 ** -20 : value));
    checkReference(v.reference_frames_payload, values, sharedFrames);
  },
  lossy_base: "bfloat16_payload",
  bfloat16_payload: (v) => checkLossy("bfloat16", v),
  bfloat16_values: "bfloat16_payload",
  int8_payload: (v) => checkLossy("int8", v),
  int8_values: "int8_payload",
  grid_payload: (v) => checkLossy("grid", v),
  grid_values: "grid_payload",
  scores_payload: (v) => {
    const scores = wire.decodeValues("scores", hex(v.scores_payload), 4);
    sameHex(scores, v.scores_values);
  },
  scores_values: "scores_payload",
  sorted_shapes: "sorted_payload",
  sorted_weights: "sorted_weights_payload",
  sorted_bits: "sorted_payload",
  sorted_payload: (v) => checkSorted(v.sorted_payload, v, null),
  sorted_weights_payload: (v) =>
    checkSorted(v.sorted_weights_payload, v, floats(hex(v.sorted_weights))),
};

// Run a check; report an error with the name of the vector.
function inCase(name, check) {
  try {
    check();
  } catch (error) {
    throw new Error(`${name} differs`, { cause: error });
  }
}

function checkVectors(page) {
  const vectors = readVectors(page);
  for (const name of vectors.keys()) assert(name in CHECKS, `unknown vector: ${name}`);
  for (const name of Object.keys(CHECKS)) assert(vectors.has(name), `not in the page: ${name}`);
  const values = Object.fromEntries(vectors);
  for (const name of vectors.keys()) {
    const check = CHECKS[name];
    if (typeof check === "string") {
      inCase(name, () => CHECKS[check](values));
      console.log(`vector ${name}: used by ${check}`);
    } else {
      inCase(name, () => check(values));
      console.log(`vector ${name}: reproduced`);
    }
  }
}

function checkPayload(folder, name) {
  const read = (file) => Uint8Array.from(readFileSync(join(folder, file)));
  const about = JSON.parse(readFileSync(join(folder, `${name}.json`), "utf8"));
  const keys = ["encoding", "count", "reference", "values", "shapes", "weights"];
  assert.deepEqual(Object.keys(about).sort(), keys.sort(), `${name}.json has other keys`);
  const { encoding, count, shapes } = about;
  const [reference, weights] = [about.reference, about.weights].map((file) => file && read(file));
  const payload = read(`${name}.payload`);
  const decoded = wire.MASK_ENCODINGS.includes(encoding)
    ? wire.decodeMask(encoding, payload, count, {
        shapes,
        reference,
        weights: weights && floats(weights),
      })
    : wire.decodeValues(encoding, payload, count, reference && floats(reference));
  sameHex(decoded, asHex(read(about.values)));
}

// Decode every payload of a folder and compare all bits with the file that its JSON names.
function checkGolden(folder) {
  if (!existsSync(folder)) {
    console.log(`golden: there is no ${folder}`);
    return;
  }
  const named = (ending) =>
    readdirSync(folder)
      .filter((file) => file.endsWith(ending))
      .map((file) => file.slice(0, -ending.length))
      .sort();
  assert.deepEqual(named(".json"), named(".payload"), "a payload lacks its JSON, or the reverse");
  for (const name of named(".payload")) {
    inCase(name, () => checkPayload(folder, name));
    console.log(`golden ${name}: reproduced`);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const here = dirname(fileURLToPath(import.meta.url));
  const [page, golden = join(here, "..", "golden", "v1")] = process.argv.slice(2);
  try {
    assert(page, "name the page: node run_vectors.mjs docs/wire-format.md");
    checkVectors(readFileSync(page, "utf8"));
    checkGolden(golden);
  } catch (error) {
    console.error(error);
    process.exit(1);
  }
}
