// The report of one run, or the comparison of two, from the JSON in the page. This file follows
// charts.js, report_parts.js and report_compare.js in one script.

function secondsText(value) {
  return value === null || value === undefined ? "–" : seconds(value);
}

function runReport(data, root) {
  const page = frameOf(root, `Run ${data.run_id}`, data.verdict.text, data.software);
  summary(page, data);
  curves(page, data);
  bytesCard(page, data);
  timesCard(page, data);
  clientsCard(page, data);
  maskCard(page, data);
  incidentsCard(page, data);
  settingsCard(page, data);
  modelCard(page, data);
}

function frameOf(root, title, verdict, software) {
  const page = node("div", { class: "cards" });
  root.replaceChildren(
    node("header", { class: "bar" }, node("h1", {}, title), node("p", { class: "verdict" }, verdict)),
    node("main", {}, page),
    node("footer", { class: "foot" }, `Written by ssfl ${software}. The same numbers are in the JSON beside this file.`),
  );
  document.title = `${title}: ${verdict}`;
  return page;
}

function summary(page, data) {
  const made = card(page, "What came out");
  const { final, best, highest, by, mean_accuracy: mean, personal_accuracy: own } = data.quality;
  const rows = [];
  if (final && final.accuracy !== null) rows.push(["test accuracy", percentText(final.accuracy), `after ${counted(final.rounds_done, "round")}, by ${by}`]);
  if (final) rows.push(["test loss", lossText(final.loss), final.accuracy === null ? `after ${counted(final.rounds_done, "round")}, by ${by}` : ""]);
  for (const [name, value] of Object.entries(final?.metrics ?? {})) rows.push([name, lossText(value)]);
  if (best) rows.push(["best model", testText(best), `after ${counted(best.rounds_done, "round")}, ${chosenText(best)}`]);
  else if (highest) rows.push(["best test", testText(highest), `after ${counted(highest.rounds_done, "round")}, by all clients`]);
  if (mean !== null) rows.push(["mean over clients", percentText(mean), "test accuracy of the model that the newest round began with"]);
  if (own !== null) rows.push(["after own training", percentText(own), "mean over the clients of the newest round"]);
  if (data.personal) rows.push(["personal models", percentText(data.personal.personal.mean), `mean over ${ownersText(data.personal.own_models ?? null, data.personal.clients.length)}; the global model: ${percentText(data.personal.global.mean)}`]);
  rows.push(["strategy", data.strategy, optionsText(data.strategy_options)]);
  rows.push(["rounds", `${data.rounds_done}`, data.times.mean_s === null ? "" : `${secondsText(data.times.mean_s)} each on average`]);
  rows.push(["clients", `${data.clients.length}`]);
  if (data.mask && hasMask(data)) rows.push(["kept weights", percentText(data.mask.num_kept / data.mask.num_masked), `${grouped(data.mask.num_kept)} of ${grouped(data.mask.num_masked)}`]);
  for (const [name, way] of [["updates up", "up"], ["models down", "down"]]) {
    const { values, dense, ratio } = data.bytes[way];
    if (dense) rows.push([name, bytes(values), `${percentText(ratio)} of dense, ${bytes(dense)}`]);
  }
  const once = data.bytes.one_off.up + data.bytes.one_off.down;
  rows.push(["one-off", bytes(once), "model, scores and mask"]);
  facts(made, rows);
  if (!final) words(made, "Nothing has been tested yet.", "notice");
}

function optionsText(options) {
  return Object.entries(options).map(([name, value]) => `${name} ${value}`).join(", ");
}

function hasMask(data) {
  return data.has_mask;
}

function testText({ accuracy, loss }) {
  return accuracy === null ? `loss ${lossText(loss)}` : percentText(accuracy);
}

function chosenText(best) {
  if (best.chosen_on === "test") return "chosen on the test data";
  const there = testText({ accuracy: best.chosen_accuracy, loss: best.chosen_loss });
  return `chosen on the ${best.chosen_on} data: ${there} there`;
}

function curves(page, data) {
  const of = (read) => testSeries(data.curve, data.evaluations, read);
  const measure = measureOf([...data.evaluations, ...data.curve]);
  if (measure) {
    const look = measure.isShare ? { format: percent, within: [0, 1], zoom: true } : {};
    lineChart(place(card(page, `Test ${measure.name}`, { half: true })), {
      label: `Test ${measure.name} by round`, series: of(measure.of), xLabel: "rounds done", ...look,
    });
  }
  lineChart(place(card(page, "Test loss", { half: Boolean(measure) })), {
    label: "Test loss by round", series: of((one) => one.loss), xLabel: "rounds done", empty: "nothing has been tested yet",
  });
  const key = measure?.isShare ? "accuracy" : "loss";
  overBytes(card(page, "What a byte buys", { half: true, note: "all messages, both ways, one-off included" }), key, [
    { name: "this run", data, look: hasMask(data) ? SPARSE : DENSE },
  ]);
  ownCurves(page, data);
  const [unit, name] = byteUnit(Math.max(...data.curve.map((one) => Math.max(one.up_bytes, one.down_bytes)), 0));
  lineChart(place(card(page, "Values sent in a round", { half: true, note: "payload, all clients together, to train on and to test" })), {
    label: "Payload bytes by round", xLabel: "round", yLabel: name, within: [0, Infinity], empty: "no round is done yet",
    series: ["up", "down"].map((way) => ({ name: way, points: data.curve.map((one) => [one.round, one[`${way}_bytes`] / unit]) })),
  });
}

/** What the strategy measures in each round: its masks, and the clients' own models. */
function ownCurves(page, data) {
  const share = { format: percent, within: [0, 1], zoom: true, xLabel: "round" };
  const moved = data.curve.filter((one) => one.mask);
  const names = { density: "density", changed: "changed bits", client_density: "clients: density", client_changed: "clients: changed bits" };
  if (moved.length) {
    lineChart(place(card(page, "Masks by round", { half: true, note: "of the model, and the mean over the clients' masks" })), {
      label: "Density and change of masks by round", ...share,
      series: Object.entries(names).map(([key, name]) => ({ name, points: moved.map((one) => [one.round, one.mask[key]]) })),
    });
  }
  if (data.has_personal_models) {
    lineChart(place(card(page, "Personal models", { half: true, note: "mean over the clients of a round, on their own test samples" })), {
      label: "Accuracy of personal models by round", ...share, empty: "no personal model has been tested",
      series: [{ name: "personal", points: data.curve.filter((one) => one.personal !== undefined).map((one) => [one.round, one.personal]) }],
    });
  }
}

/** Draw accuracy or loss over the bytes sent so far; runs: [{name, data, look}]. */
function overBytes(made, key, runs) {
  const spent = runs.map(({ name, data, look = SPARSE }) => ({ name, look, points: pointsOverBytes(data, key) }));
  const most = Math.max(...spent.flatMap((one) => one.points.map(([x]) => x)), 0);
  const [unit, unitName] = byteUnit(most);
  lineChart(place(made), {
    label: `Test ${key} against bytes sent`, xLabel: `${unitName} sent`, format: key === "accuracy" ? percent : plainNumber,
    within: key === "accuracy" ? [0, 1] : undefined, zoom: key === "accuracy", empty: "nothing has been tested yet",
    series: spent.map((one) => ({ ...one, points: one.points.map(([x, y]) => [x / unit, y]) })),
  });
}

function pointsOverBytes(data, key) {
  const tests = data.curve.some((one) => one[key] !== null) ? data.curve : [];
  const last = data.evaluations[data.evaluations.length - 1];
  const points = tests.map((one) => [one.sent_bytes, one[key]]);
  if (last && last[key] !== null) points.push([last.sent_bytes, last[key]]);
  return points.sort((a, b) => a[0] - b[0]);
}

function bytesCard(page, data) {
  const made = card(page, "Bytes against dense and the paper", { note: "payload: encoded tensors alone" });
  made.classList.add("long");
  const lines = data.bytes.formulas ?? [];
  if (lines.length) {
    bars(place(made), {
      label: "Bytes of the rounds: dense, the paper's formula, kept values as float32, and here", parts: ["bytes"], format: bytes,
      nameLabel: "what",
      rows: lines.slice(0, 2).flatMap((one) => [
        { name: `${one.what}: dense, 4P`, parts: [one.dense_bytes], fill: DENSE },
        { name: `${one.what}: the paper, 4sP`, parts: [one.paper_bytes], fill: 3 },
        { name: `${one.what}: kept float32, 4(k+D)`, parts: [one.kept_bytes], fill: 2 },
        { name: `${one.what}: here`, parts: [one.bytes], fill: SPARSE, note: one.to_dense === null ? "" : `${percent(one.to_dense)} of dense` },
      ]),
    });
    table(made, "P: values of the model, W: masked, D = P − W, k: kept, s = k / W", [
      { name: "what", of: (one) => one.what, words: true },
      { name: "transfers", of: (one) => one.transfers, as: grouped },
      { name: "dense 4P", of: (one) => one.dense_bytes, as: bytes },
      { name: "formula", of: (one) => one.formula },
      { name: "by the paper", of: (one) => one.paper_bytes, as: bytes },
      { name: "here", of: (one) => one.bytes, as: bytes },
      { name: "here / paper", of: (one) => one.to_paper, as: ratioText },
      { name: "here / dense", of: (one) => one.to_dense, as: ratioText },
    ], lines); // prettier-ignore
    words(made, breakEven(data));
    words(made, "Models down: sent as values to train on, to test or to score, to clients that did not hold them yet. The first model, built from the seed or sent as initial, has a row of its own.", "faint");
  }
  table(made, "Ledger: every byte by phase, direction and encoding", [
    { name: "phase", of: (row) => row.phase, words: true },
    { name: "direction", of: (row) => row.direction, words: true },
    { name: "encoding", of: (row) => row.encoding || (row.phase === "connection" ? "–" : "none: headers"), words: true },
    { name: "payload", of: (row) => row.payload_bytes, as: bytes },
    { name: "messages", of: (row) => row.message_bytes, as: bytes },
    { name: "TCP", of: (row) => row.socket_bytes, as: bytes },
    { name: "bytes of messages", of: (row) => row.message_bytes, as: grouped },
  ], data.bytes.rows, { sorts: true, whole: true }); // prettier-ignore
  const total = data.bytes.total;
  words(made, ["up", "down"].map((way) => `${way}: ${bytes(total[way].payload_bytes)} of payload in ${bytes(total[way].message_bytes)} of messages, ${bytes(total[way].socket_bytes)} on the connections`).join("; ") + ".");
}

function breakEven(data) {
  const { round, paper } = data.bytes.break_even;
  const here = round === null ? "Less than a dense run: not yet" : `Less than a dense run after ${round} ${round === 1 ? "round" : "rounds"}`;
  const formula = paper === null ? "the mask keeps everything" : `by the paper's formulas after ${plainNumber(paper)} rounds of a client, (4P + 4W + W/8) / 8(W − k)`;
  return `${here}; ${formula}.`;
}

function timesCard(page, data) {
  const timed = data.timeline;
  const made = card(page, "Time");
  made.classList.add("long");
  const over = data.verdict.word !== "not finished";
  facts(made, [
    ["began", dateText(data.times.began), "the first round, or test"],
    [over ? "ended" : "newest step ended", dateText(data.times.ended)],
    ["in all", secondsText(data.times.whole_s), "with whatever was waited for"],
    ["rounds, together", secondsText(data.times.num_timed ? data.times.seconds : null), data.times.num_timed < data.times.num_rounds ? `of ${data.times.num_timed} of ${data.times.num_rounds}: the rest is not known` : ""],
    ["on average", secondsText(data.times.mean_s)],
    ["slowest", secondsText(data.times.slowest_s)],
    ...Object.entries(data.times.phases).map(([name, value]) => [name, secondsText(value), "over all rounds"]),
  ]);
  if (timed.some((one) => one.phases)) {
    made.append(node("h3", {}, "Newest rounds by phase"));
    phaseBars(place(made), timed, { yLabel: "time" });
  }
  made.append(node("h3", {}, "Every round"));
  lineChart(place(made), {
    label: "Time of every round", xLabel: "round", yLabel: "time", zero: true, within: [0, Infinity], format: seconds, empty: "no round's time is known",
    series: [{ name: "round", points: data.curve.filter((one) => one.seconds !== null).map((one) => [one.round, one.seconds]) }],
  });
  if (!timed.length) return;
  made.append(node("h3", {}, "A round by client"));
  const choice = node("select", {}, ...timed.map((one, at) => node("option", { value: at }, `round ${one.round}`)));
  choice.value = String(timed.length - 1);
  made.append(node("div", { class: "tools" }, node("label", {}, "of the newest", choice)));
  const drawn = place(made);
  const more = node("p", { class: "faint" });
  made.append(more);
  const draw = () => {
    const one = timed[Number(choice.value)];
    timeline(drawn, one);
    const lost = one.num_missing ? `did not report: ${one.missing.join(", ")}${one.num_missing > one.missing.length ? " …" : ""}` : "";
    const others = one.others ? `${grouped(one.others)} faster clients are not shown` : "";
    more.textContent = [lost, others].filter(Boolean).join("; ");
  };
  choice.addEventListener("change", draw);
  draw();
}

function clientsCard(page, data) {
  const made = card(page, "Clients", { note: `${grouped(data.clients.length)}; a click on a column sorts` });
  made.classList.add("long");
  table(made, "Each client over the run", [
    { name: "client", of: (row) => row.client, words: true },
    { name: "samples", of: (row) => row.samples, as: grouped },
    { name: "asked", of: (row) => row.selected, as: grouped },
    { name: "reported", of: (row) => row.reported, as: grouped },
    { name: "missed", of: (row) => row.missed, as: grouped },
    { name: "work", of: (row) => row.work_s, as: seconds },
    { name: "slowest work", of: (row) => row.slowest_work_s, as: seconds },
    { name: "upload", of: (row) => row.upload_s, as: seconds },
    { name: "upload per s", of: (row) => row.upload_bytes_per_s, as: bytes },
    { name: "up", of: (row) => row.up_bytes, as: bytes },
    { name: "down", of: (row) => row.down_bytes, as: bytes },
    { name: "newest loss", of: (row) => row.loss, as: plainNumber },
  ], data.clients, { sorts: true }); // prettier-ignore
  words(made, "Work and upload are means over the rounds a client reported in; up and down are all its messages.", "faint");
}

function maskCard(page, data) {
  const made = card(page, "Mask");
  if (!hasMask(data)) return words(made, `Strategy ${data.strategy} has no mask: every weight is trained and sent.`);
  made.classList.add("long");
  densityBars(place(made), data.layers);
  if (data.pictures.length) {
    made.append(node("h3", {}, "The mask itself"));
    words(made, "A picture for each masked tensor: rows are the outputs of the layer, columns its inputs, in at most 64 × 64 blocks.", "faint");
    maskPictures(made, data.pictures);
    if (data.pictures.length < data.layers.length) words(made, `The ${data.pictures.length} largest of ${data.layers.length} tensors.`, "faint");
  }
  if (!data.masks.length) return;
  table(made, data.num_masks > data.masks.length ? `The newest ${data.masks.length} of ${data.num_masks} masks` : "Every mask that was agreed", [
    { name: "mask", of: (one) => one.epoch },
    { name: "after rounds", of: (one) => one.rounds_done },
    { name: "why", of: (one) => one.reason || "the first", words: true },
    { name: "criterion", of: (one) => one.criterion, words: true },
    { name: "kept", of: (one) => one.num_kept, as: grouped },
    { name: "digest", of: (one) => one.digest?.slice(0, 12) },
  ], data.masks); // prettier-ignore
}

function incidentsCard(page, data) {
  if (!data.incidents.length && !data.num_void && !data.not_voted.length) return;
  const made = card(page, "What went wrong", { note: "as far as the history tells; refusals are in the coordinator's log" });
  if (data.num_void) words(made, `${data.num_void} ${data.num_void === 1 ? "step was" : "steps were"} void: too few clients reported, and it was tried again.`);
  if (data.not_voted.length) words(made, `Had no say in the newest mask: ${data.not_voted.join(", ")}.`);
  if (!data.incidents.length) return;
  const some = (names, all) => names.join(", ") + (all > names.length ? " …" : "");
  table(made, "Rounds that clients missed or held up, or that were tried again", [
    { name: "round", of: (one) => one.round },
    { name: "void attempts", of: (one) => one.void_attempts },
    { name: "missed by", of: (one) => one.num_missing },
    { name: "who", of: (one) => some(one.missing, one.num_missing), words: true },
    { name: "waited for, until it was back", of: (one) => some(one.late.map((row) => `${row.client} ${seconds(row.asked_s)}`), one.num_late), words: true },
  ], data.incidents); // prettier-ignore
}

const SETTING_COLUMNS = [
  { name: "setting", of: (row) => row.name, words: true },
  { name: "value", of: (row) => String(row.value) || '""', words: true },
  { name: "default", of: (row) => (row.default === null ? "–" : String(row.default) || '""'), words: true },
];

function settingsCard(page, data) {
  const made = card(page, "Settings", { half: true });
  made.classList.add("long");
  const changed = data.settings.filter((row) => row.changed);
  if (changed.length) table(made, "Not the default", SETTING_COLUMNS, changed);
  else words(made, "All settings are the defaults.");
  words(made, `Values were sent, as the links and --reference-coding had it, ${["up", "down"].map((way) => `${way} as ${data.encodings[way].join(", ") || "nothing yet"}`).join(" and ")}.`, "faint");
  const rest = folded(made, `the ${data.settings.length - changed.length} that are the default`);
  table(rest, "The default", SETTING_COLUMNS.slice(0, 2), data.settings.filter((row) => !row.changed));
}

function modelCard(page, data) {
  const made = card(page, "Model", { half: true });
  words(made, data.verdict.word === "not finished" ? "The newest model's digest:" : "The final model's digest:");
  words(made, data.model_digest || "there is none yet", "mono digest");
  if (data.verdict.word !== "not finished") {
    words(made, "To load it, beside this file:");
    listing(made, "how to load the model", [
      "from safetensors.torch import load_file",
      "",
      'model.load_state_dict(load_file("model.safetensors"))',
    ]);
    words(made, "To test it on a shard, and to compute the run again from its journal:");
    listing(made, "how to test and audit the model", ["ssfl model evaluate . --data SHARD", "ssfl audit STATE_DIR"]);
  }
}

const reportData = JSON.parse(document.getElementById("data").textContent);
const reportRoot = document.getElementById("report");
if (reportData.kind === "comparison") comparison(reportData, reportRoot);
else runReport(reportData, reportRoot);
