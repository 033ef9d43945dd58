// Bytes that a receiver must refuse, and sums done by hand.
//
//     node run_hostile.mjs docs/wire-format.md
//
// Prints one line per case. A payload that is decoded although it must be refused, or for which the
// reader throws anything but WireError, ends the script with status 1. Each family starts with the
// valid payload from which the bad ones are made; it must be read.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { constants, crc32, zstdCompressSync } from "node:zlib";

import * as wire from "./decoder.mjs";
import { readVectors } from "./run_vectors.mjs";

const hex = (text) => Uint8Array.from(Buffer.from(text, "hex"));
const floats = (bytes) => new Float32Array(Uint8Array.from(bytes).buffer);
const join = (...pieces) => Uint8Array.from(Buffer.concat(pieces.map((one) => Buffer.from(one))));
const u32 = (number) => new Uint8Array(Uint32Array.of(number).buffer);
const section = (content) => join(u32(content.length), content);
const withByte = (bytes, at, value) => bytes.map((byte, i) => (i === at ? value : byte));

function sound(name, read) {
  read();
  console.log(`sound ${name}: read`);
}

function refused(name, read, status = "INVALID_ARGUMENT") {
  try {
    read();
  } catch (error) {
    const typed = error instanceof wire.WireError;
    if (!typed) throw new Error(`${name}: wrong error`, { cause: error });
    assert.equal(error.status, status, name);
    console.log(`refused ${name}: ${error.message}`);
    return;
  }
  assert.fail(`${name} was read`);
}

// Every encoding with a payload of the page, as [name, payload, read].
function readers(v) {
  const values = (encoding, count, reference) => (bytes) =>
    wire.decodeValues(encoding, bytes, count, reference);
  const mask = (encoding, width, about) => (bytes) =>
    wire.decodeMask(encoding, bytes, width, about);
  const lossy = floats(hex(v.lossy_base));
  const shapes = v.sorted_shapes.split(" ").map((shape) => shape.split("x").map(Number));
  const weights = floats(hex(v.sorted_weights));
  const ramp = Float32Array.from({ length: 64 }, (_, i) => (i + 1) / 64);
  return [
    ["values_only", hex(v.values_payload), values("values_only", 3)],
    ["dense", hex(v.values_payload), values("dense", 3)],
    ["bitmask", hex(v.mask_packed), mask("bitmask", v.mask_bits.length)],
    ["bitmask_zstd", join(zstdCompressSync(new Uint8Array(100), FRAME)), mask("bitmask_zstd", 800)],
    ["reference", hex(v.reference_payload), values("reference", 4, floats(hex(v.reference_base)))],
    ["reference frames", hex(v.reference_frames_payload), values("reference", 64, ramp)],
    ["bfloat16", hex(v.bfloat16_payload), values("bfloat16", 4, lossy)],
    ["int8", hex(v.int8_payload), values("int8", 4, lossy)],
    ["grid", hex(v.grid_payload), values("grid", 4, lossy)],
    ["scores", hex(v.scores_payload), values("scores", 4)],
    ["sorted", hex(v.sorted_payload), mask("bitmask_sorted", 10, { shapes })],
    [
      "sorted weights",
      hex(v.sorted_weights_payload),
      mask("bitmask_sorted", 10, { shapes, weights }),
    ],
  ];
}

// zstdCompressSync states the content size only if that size is given.
const FRAME = { pledgedSrcSize: 100 };

const FLIPS = [1, 2, 4, 8, 16, 32, 64, 128, 127, 255];

// Cut anywhere, longer by a byte, or with any byte changed.
function checkEveryEncoding(v) {
  for (const [name, payload, read] of readers(v)) {
    sound(name, () => read(payload));
    for (let length = 0; length < payload.length; length += 1) {
      refused(`${name}, cut to ${length} bytes`, () => read(payload.slice(0, length)));
    }
    refused(`${name}, one byte more`, () => read(join(payload, [0])));
    let decoded = 0;
    for (let at = 0; at < payload.length; at += 1) {
      for (const flipped of FLIPS) {
        try {
          read(withByte(payload, at, payload[at] ^ flipped));
          decoded += 1;
        } catch (error) {
          if (!(error instanceof wire.WireError)) throw error;
        }
      }
    }
    const all = FLIPS.length * payload.length;
    console.log(`changed ${name}: ${all - decoded} refused, ${decoded} read`);
  }
}

function checkSections() {
  const zeros = new Uint8Array(100);
  const read = (data) => () =>
    wire.decodeValues("scores", join([3, 0, 3], u32(data.length), data), 100);
  const frame = join(zstdCompressSync(zeros, FRAME));
  const other = (size) => join(zstdCompressSync(new Uint8Array(size), { pledgedSrcSize: size }));
  sound("section, raw", read(zeros));
  sound("section, a frame", read(frame));
  // The first block is a frame, so that the whole is not too long: its second section is.
  const first = section(zstdCompressSync(new Uint8Array(65536), { pledgedSrcSize: 65536 }));
  const two = (length) => () =>
    wire.decodeValues("scores", join([3, 0, 3], first, section(new Uint8Array(length))), 65537);
  sound("section, of the second block", two(1));
  refused("section, longer than its size", two(2));
  refused("section, 4 GiB announced", () =>
    wire.decodeValues("scores", join([3, 0, 3], u32(0xffffffff), zeros), 100),
  );
  refused("section, empty", read(new Uint8Array(0)));
  refused("section, a frame without its size", read(streamed(zeros)));
  refused("section, a frame of less", read(other(99)));
  refused("section, a frame of more", read(other(101)));
  refused("section, a frame of 1 MiB", read(other(2 ** 20)));
  refused("section, two frames of half", read(join(other(50), other(50))));
  refused("section, an empty frame behind", read(join(frame, other(0))));
  refused("section, a skippable frame behind", read(join(frame, hex("502a4d1800000000"))));
  refused("section, a byte behind the frame", read(join(frame, [0])));
  refused("section, a skippable frame before", read(join(hex("502a4d1800000000"), frame)));
  refused("section, a dictionary", read(withDictionary(frame)));
  // 64 zeros, stated as 100: the header is valid, the content is not.
  const liar = other(64);
  refused("section, a frame that lies", read(withByte(liar, liar.indexOf(64, 5), 100)));
}

const streamed = (content) =>
  join(zstdCompressSync(content, { params: { [constants.ZSTD_c_contentSizeFlag]: 0 } }));

// Descriptor with a dictionary id of one byte, and that id.
const withDictionary = (frame) => join(frame.slice(0, 4), [frame[4] | 1, 7], frame.slice(5));

function checkFields(v) {
  const four = floats(hex(v.lossy_base));
  const planes = (...all) => join(...all.map(section));
  const grid = (g) => () =>
    wire.decodeValues("grid", join([g], planes([0], [0], [0], [0])), 1);
  sound("grid of 1", grid(1));
  sound("grid of 40", grid(40));
  refused("grid of 0", grid(0));
  refused("grid of 41", grid(41));

  const bfloat16 = (code) => () =>
    wire.decodeValues("bfloat16", planes([code & 255], [code >> 8]), 1);
  sound("bfloat16, the largest change", bfloat16((0x7f7f << 1) | 1));
  refused("bfloat16, an infinity", bfloat16(0x7f80 << 1));
  refused("bfloat16, NaN", bfloat16((0x7fc0 << 1) | 1));

  const int8 = (step, code) => () => {
    const steps = new Uint8Array(Float32Array.of(step).buffer);
    return wire.decodeValues("int8", join(steps, section([code])), 1);
  };
  sound("int8, code -128", int8(1, 255));
  refused("int8, a step of infinity", int8(Infinity, 0));
  refused("int8, a step of NaN", int8(NaN, 2));
  refused("int8, a change beyond the largest float", int8(3e38, 4));

  const scores = (m, lowest, code) => () =>
    wire.decodeValues("scores", join([m, lowest & 255, lowest >> 8], section([code])), 1);
  sound("scores, the largest float of 3 bits", scores(3, 255 * 8 - 1, 1));
  refused("scores, beyond the largest float", scores(3, 255 * 8 - 1, 2));
  refused("scores, 65535 of 0 bits", scores(0, 65535, 255));
  refused("scores, 8 mantissa bits", scores(8, 1, 1));
  refused("scores, lowest 0", scores(3, 0, 1));

  refused("a reference of another length", () =>
    wire.decodeValues("reference", hex(v.reference_payload), 4, four.slice(1)),
  );
  refused("an unknown encoding", () => wire.decodeValues("constructor", hex(""), 0));
  refused("a mask as values", () => wire.decodeValues("bitmask", hex("00"), 1));
}

function checkMasks(v) {
  const bits = (encoding, bytes, width) => () => wire.decodeMask(encoding, bytes, width);
  sound("mask of 10", bits("bitmask", hex("0d02"), 10));
  sound("mask of none", bits("bitmask", hex(""), 0));
  refused("mask, a bit behind the end", bits("bitmask", hex("0d04"), 10));
  const set = new Uint8Array(100).fill(255);
  const frame = join(zstdCompressSync(set, FRAME));
  sound("zstd mask of 800", bits("bitmask_zstd", frame, 800));
  refused("zstd mask, bits behind the end", bits("bitmask_zstd", frame, 799));
  refused("zstd mask, of another size", bits("bitmask_zstd", frame, 801));
  refused("zstd mask, not smaller", bits("bitmask_zstd", join(zstdCompressSync(hex("01"))), 8));

  const [, payload, read] = readers(v).find(([name]) => name === "sorted");
  const last = payload.length - 1;
  refused("sorted, flag 2", () => read(withByte(payload, 0, 2)));
  refused("sorted, width 1", () => read(withByte(payload, 1, 1)));
  refused("sorted, width 8", () => read(withByte(payload, 1, 8)));
  refused("sorted, bits behind the end of a class", () => read(withByte(payload, last, 0x97)));
  refused("sorted, weights that are not held", () => read(withByte(payload, 0, 1)));
  refused("sorted, shapes of another model", () =>
    wire.decodeMask("bitmask_sorted", payload, 10, { shapes: [[2, 3]] }),
  );
  refused("a difference to a mask of another length", () =>
    wire.decodeMask("bitmask", hex("0d02"), 10, { reference: hex("00") }),
  );
}

const SWAPPED = ['"rule":"zeros","scale":"0x0.0p+0"', '"scale":"0x0.0p+0","rule":"zeros"'];

function checkManifest(v) {
  const read = (text) => () => wire.readManifest(Buffer.from(text));
  const change = (from, to) => {
    assert(v.manifest_json.includes(from));
    return read(v.manifest_json.replace(from, to));
  };
  sound("manifest", read(v.manifest_json));
  sound("manifest, a letter as \\u", change('"tiny"', '"\\u00e9\\ud83d\\ude00\\n"'));
  refused("manifest, a space", change(":1", ": 1"));
  refused("manifest, a line behind", read(`${v.manifest_json}\n`));
  refused("manifest, keys in another order", change(...SWAPPED));
  refused("manifest, a key too few", change('"dtype":"float32",', ""));
  refused("manifest, a key twice", change('"format":1', '"format":1,"format":1'));
  refused("manifest, an unknown key", change('"format":1', '"format":1,"g":1'));
  refused("manifest, a letter of UTF-8", change("tiny", "é"));
  refused("manifest, an ASCII letter as \\u", change("tiny", "\\u0074iny"));
  refused("manifest, capital hexadecimal", change("tiny", "\\u00E9"));
  refused("manifest, half a pair", change("tiny", "\\ud83d"));
  refused("manifest, a decimal float", change('"0x0.0p+0"', "0.0"));
  refused("manifest, a float as printf writes it", change("0x1.0000000000000p+0", "0x1p+0"));
  refused("manifest, an infinite scale", change("000p+0", "000p+1024"));
  refused("manifest, format 2", change(":1,", ":2,"));
  refused("manifest, a size of 0", change("[2]", "[0]"));
  refused("manifest, a size as 2e0", change("[2]", "[2e0]"));
  refused("manifest, 2^31 values and more", change("[2]", "[65536,32768]"));
  refused("manifest, nine dimensions", change("[2]", "[1,1,1,1,1,1,1,1,2]"));
  refused("manifest, two tensors of one name", change("fc.bias", "fc.weight"));
  refused("manifest, a control character", change("fc.bias", "fc\\u0007bias"));
  refused("manifest, another dtype", change("float32", "float64"));
  refused("manifest, an unknown role", change("dense", "sparse"));
  refused("manifest, an unknown rule", change("zeros", "twos"));
  refused("manifest, 100,000 lists", read("[".repeat(100_000)));
  refused("manifest, more than 1 MiB", change("tiny", "t".repeat(1 << 20)));
  refused("manifest, cut", read(v.manifest_json.slice(0, -1)));
  refused("weights that are sent have no seed", () =>
    wire.initialVector(change("zeros", "sent")(), 7),
  );
}

function checkTransfers() {
  const payload = Buffer.from("123456789");
  const digest = wire.sha256(payload);
  const chunk = (offset, end) => {
    const data = payload.subarray(offset, end);
    return { offset, data, crc32: crc32(data) };
  };
  assert.equal(chunk(0, 9).crc32, 0xcbf43926); // the check value of CRC-32
  const send = (...chunks) => () => {
    const transfer = new wire.Transfer(9, digest);
    chunks.forEach((one) => transfer.add(one));
    return transfer.finish();
  };
  sound("two chunks", send(chunk(0, 4), chunk(4, 9)));
  sound("the second payload of a task", () => {
    const transfer = new wire.Transfer(9, digest, 100);
    transfer.add({ ...chunk(0, 9), offset: 100 });
    transfer.finish();
  });
  refused("a gap", send(chunk(0, 4), chunk(5, 9)));
  refused("a repeat", send(chunk(0, 4), chunk(0, 4)));
  refused("an empty chunk", send(chunk(0, 0)));
  refused("a chunk of more than 1 MiB", () => {
    const data = new Uint8Array((1 << 20) + 1);
    new wire.Transfer(data.length, digest).add({ offset: 0, data, crc32: crc32(data) });
  });
  refused("a chunk beyond the end", () => new wire.Transfer(8, digest).add(chunk(0, 9)));
  refused("a missing chunk", send(chunk(0, 4)));
  refused("a wrong CRC-32", send({ ...chunk(0, 9), crc32: 0 }), "DATA_LOSS");
  const other = Buffer.from("123456780");
  const wrong = { offset: 0, data: other, crc32: crc32(other) };
  refused("a wrong digest", send(wrong), "DATA_LOSS");
  for (const encoding of ["values_only", "reference", "bitmask", "bitmask_sorted", "scores"]) {
    refused(`${encoding}, 2^40 bytes announced`, () => wire.checkNumBytes(encoding, 2 ** 40, 1000));
  }
}

// Numbers by hand, from the sentences of section Sums.
function checkSums() {
  const same = (name, actual, expected) => {
    assert.deepEqual(actual, expected, name);
    console.log(`sum ${name}: ${actual}`);
  };
  // 1024 · 10 · 2^F < 2^62: 2^10 · 10 is above 2^13, so F = 36 fits.
  same("F of a small cohort", wire.fractionBits(1024, 10n), 36);
  // 2^10 · 2^31 · 2^F < 2^62: F = 20, and not 21, which gives 2^62 itself.
  same("F of 2^31 samples", wire.fractionBits(1024, 2n ** 31n), 20);
  same("F of a million such clients", wire.fractionBits(1024, 10n ** 6n * 2n ** 31n), 1);
  same("F of scores of 2^-30", wire.scoreFractionBits(2 ** -30, 1n), 80);
  same("F of scores of 2^100", wire.scoreFractionBits(2 ** 100, 4n), -41);
  // (1 · 2 + 2 · 5) / 3 = 4.
  same("mean of 2 and 5", [...wire.exactMean([[2], [5]], [1n, 2n], 36)], [4]);
  same("mean of a third", [...wire.exactMean([[1], [0]], [1n, 2n], 36)], [Math.fround(1 / 3)]);
  // 2^-37 lies half way between 0 and 2^-36: to even, 0; three of it to 2 · 2^-36.
  same("ties to even", [...wire.exactMean([[2 ** -37, 3 * 2 ** -37]], [1n], 36)], [0, 2 ** -35]);
  same("negative F", [...wire.exactMean([[2 ** 100]], [4n], -41)], [2 ** 100]);
  same("kept of 10 at 0.7", wire.numKept("0.7", 10), 3);
  same("kept of 10 at 0.9", wire.numKept("0.9", 10), 1); // in doubles: 0.9999999999999998
  same("ties to the lowest", [...wire.largestScores([1, 3, 2, 3, 2], 3)], [0, 1, 1, 1, 0]);
  refused("NaN in a sum", () => wire.exactMean([[NaN]], [1n], 36));
}

try {
  const vectors = Object.fromEntries(readVectors(readFileSync(process.argv[2], "utf8")));
  checkEveryEncoding(vectors);
  checkSections();
  checkFields(vectors);
  checkMasks(vectors);
  checkManifest(vectors);
  checkTransfers();
  checkSums();
} catch (error) {
  console.error(error);
  process.exit(1);
}
