// The comparison of two runs. This file follows report_parts.js in one script.

function comparison(data, root) {
  const names = data.names;
  const verdicts = data.runs.map((run, k) => `${names[k]}: ${run.run_id}, ${run.verdict.text}`);
  const page = frameOf(root, `${names[0]} and ${names[1]}: two runs compared`, verdicts.join("; "), data.runs[0].software);
  outcomes(page, data);
  const isAccuracy = data.measure === "accuracy";
  const form = isAccuracy ? percent : plainNumber;
  const looks = runLooks(data.runs);
  const runs = data.runs.map((run, k) => ({ name: names[k], data: run, look: looks[k] }));
  lineChart(place(card(page, `Test ${data.measure}`, { half: true })), {
    label: `Test ${data.measure} by round`, xLabel: "rounds done", format: form, empty: "nothing has been tested yet",
    within: isAccuracy ? [0, 1] : undefined, zoom: isAccuracy,
    series: runs.map((one) => ({ name: one.name, look: one.look, points: testsByRound(one.data, data.measure) })),
  });
  overBytes(card(page, "What a byte buys", { half: true, note: "all messages, both ways, one-off included" }), data.measure, runs);
  atEqual(card(page, "At equal rounds", { half: true }), data, data.at_equal_rounds, "rounds", grouped, form);
  atEqual(card(page, "At equal bytes", { half: true }), data, data.at_equal_bytes, "bytes sent", bytes, form);
  comparedBytes(page, data, looks);
  const haveMasks = data.runs.every(hasMask);
  if (haveMasks) overlapCard(page, data);
  differences(page, data, haveMasks);
}

/** Return the look of each run: SPARSE or DENSE; the second of two runs of the same kind gets another look. */
function runLooks(runs) {
  const [first, second] = runs.map((run) => (hasMask(run) ? SPARSE : DENSE));
  return [first, first === second ? first + 2 : second];
}

function testsByRound(run, key) {
  const found = new Map(run.curve.map((one) => [one.round, one[key]]));
  for (const one of run.evaluations) found.set(one.rounds_done, one[key]);
  return [...found].filter(([, y]) => y !== null).sort((a, b) => a[0] - b[0]);
}

function outcomes(page, data) {
  const made = card(page, "What came out");
  const of = (read) => data.runs.map(read);
  const rows = [
    ["test accuracy", of((run) => run.quality.final?.accuracy), percentText],
    ["test loss", of((run) => run.quality.final?.loss), lossText],
    ["test accuracy of the best model", of((run) => run.quality.best?.accuracy), percentText],
    ["rounds", of((run) => run.rounds_done), grouped],
    ["kept weights", of((run) => (run.mask ? run.mask.num_kept / run.mask.num_masked : null)), percentText],
    ["messages up", of((run) => run.bytes.total.up.message_bytes), bytes],
    ["messages down", of((run) => run.bytes.total.down.message_bytes), bytes],
    ["on the connections", of((run) => run.bytes.total.up.socket_bytes + run.bytes.total.down.socket_bytes), bytes],
    ["updates up, of dense", of((run) => run.bytes.up.ratio), percentText],
    ["models down, of dense", of((run) => run.bytes.down.ratio), percentText],
    ["one-off payload", of((run) => run.bytes.one_off.up + run.bytes.one_off.down), bytes],
    ["mean round", of((run) => run.times.mean_s), secondsText],
    ["slowest round", of((run) => run.times.slowest_s), secondsText],
    ["from beginning to end", of((run) => run.times.whole_s), secondsText],
    ["all rounds", of((run) => (run.times.num_timed ? run.times.seconds : null)), secondsText],
    ...phaseRows(data),
  ].map(([name, values, as]) => ({ name, values: values.map((one) => one ?? null), as }));
  table(made, `${data.names[1]} / ${data.names[0]}: the ratio`, [
    { name: "what", of: (row) => row.name, words: true },
    ...data.names.map((name, k) => ({ name, of: (row) => (row.values[k] === null ? null : row.as(row.values[k])) })),
    { name: "ratio", of: (row) => (row.values[0] && row.values[1] !== null ? row.values[1] / row.values[0] : null), as: ratioText },
  ], rows, { whole: true }); // prettier-ignore
  words(made, modelsText(data), "faint");
}

function modelsText({ names, runs }) {
  const without = names.filter((_, k) => !runs[k].model_digest);
  if (without.length) return `${without.join(" and ")} ${without.length === 1 ? "has" : "have"} no model yet.`;
  const newest = runs.some((run) => run.verdict.word === "not finished") ? "newest" : "final";
  return runs[0].model_digest === runs[1].model_digest ? `The ${newest} models are the same, bit for bit.` : `The ${newest} models differ.`;
}

function phaseRows(data) {
  const phases = [...new Set(data.runs.flatMap((run) => Object.keys(run.times.phases)))];
  return phases.map((name) => [`time in ${name}`, data.runs.map((run) => run.times.phases[name]), secondsText]);
}

function atEqual(made, data, lines, what, whereText, form) {
  if (!lines.length) return words(made, "The runs were not both tested where they could be compared.");
  const sign = (value) => `${value > 0 ? "+" : ""}${data.measure === "accuracy" ? `${Number((100 * value).toPrecision(2))} points` : plainNumber(value)}`;
  table(made, `Test ${data.measure} of the newest model tested, at equal ${what}`, [
    { name: what, of: (one) => one.at, as: whereText },
    ...data.names.map((name, k) => ({ name, of: (one) => one.values[k], as: form })),
    { name: `${data.names[1]} − ${data.names[0]}`, of: (one) => one.difference, as: sign },
  ], lines); // prettier-ignore
}

function comparedBytes(page, data, looks) {
  const made = card(page, "Bytes side by side");
  made.classList.add("long");
  bars(place(made), {
    label: "Messages of the whole run", parts: ["bytes"], format: bytes, nameLabel: "what",
    rows: ["up", "down"].flatMap((way) =>
      data.runs.map((run, k) => ({ name: `${way}: ${data.names[k]}`, parts: [run.bytes.total[way].message_bytes], fill: looks[k] })),
    ),
  });
  const each = (what, read, as) => data.names.map((name, k) => ({ name: `${name}: ${what}`, of: (row) => read(row)[k], as }));
  const coded = (row) => row.encodings.map((one) => one.join(", ") || "–");
  table(made, `By phase and direction; messages, or TCP for connections; ratio: ${data.names[1]} / ${data.names[0]}`, [
    { name: "phase", of: (row) => row.phase, words: true },
    { name: "direction", of: (row) => row.direction, words: true },
    ...each("payload", (row) => row.payload_bytes, bytes),
    ...each("messages", (row) => row.bytes, bytes),
    { name: "ratio", of: (row) => row.ratio, as: ratioText },
    ...each("encodings", coded, String).map((one) => ({ ...one, words: true })),
  ], data.ledger, { whole: true }); // prettier-ignore
}

function overlapCard(page, data) {
  const found = data.overlap;
  const made = card(page, "Masks", { half: true });
  if (found.why_not) return words(made, `They cannot be compared: ${found.why_not}.`);
  words(made, `Both keep ${grouped(found.common)} weights: ${percentText(found.share)} of those that either keeps (by chance ${percentText(found.chance)}).`);
  table(made, "Common kept weights by layer", [
    { name: "layer", of: (row) => row.name, words: true },
    ...data.names.map((name, k) => ({ name, of: (row) => row.kept[k], as: grouped })),
    { name: "both", of: (row) => row.common, as: grouped },
    { name: "of either", of: (row) => row.share, as: percent },
    { name: "by chance", of: (row) => row.chance, as: percent },
  ], found.layers); // prettier-ignore
}

function differences(page, data, half) {
  const made = card(page, "Settings that differ", { half });
  if (!data.settings.length) return words(made, "All settings are the same.");
  const text = (value) => (value === null ? "–" : String(value) || '""');
  table(made, "The others are the same", [
    { name: "setting", of: (row) => row.name, words: true },
    ...data.names.map((name, k) => ({ name, of: (row) => text(row.values[k]), words: true })),
  ], data.settings); // prettier-ignore
}
