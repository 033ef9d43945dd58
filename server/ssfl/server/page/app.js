// The status page: polls the coordinator every two seconds and shows its answers.
//
// One request (api/v1/look) returns the status, the clients and new events. The status has marks that
// change with curves, timeline and layers, which are fetched only then. A hidden page polls rarely. If
// the coordinator does not answer, the page shows since when, keeps its contents, polls less and less
// often, and reconnects by itself. Text from the network is inserted as text, never as HTML.

import {
  DENSE, SPARSE, bars, bytes, counted, densityBars, grouped, lineChart, measureOf, percent, phaseBars, plainNumber, seconds,
  testSeries, timeline,
} from "./charts.js";

// A busy coordinator takes longer to answer, and the page then polls less often. The pause between
// two polls is this factor times the Server-Timing of the answers (without the network), within bounds.
const PAUSE_FACTOR = 500;
const MIN_PAUSE_MS = 2000;
const MAX_PAUSE_MS = 10000;
const CHARTS_EVERY_MS = 10000; // shortest interval of fetching curves, timeline and layers during rounds
const HIDDEN_PAUSE_MS = 30000; // while the tab is hidden
const MAX_RETRY_MS = 15000; // longest pause while the coordinator does not answer
const TIMEOUT_MS = 8000; // of one request
const CLIENTS_PER_PAGE = 50;
const MAX_EVENTS = 400;
const NEWEST_EVENTS = 15; // shown until the reader asks for all
const MAX_INLINE_FIELDS = 8; // an event with more fields shows them in a fold
const PHASE_TITLES = {
  gathering: "Gathering clients",
  score: "Agreeing on a mask",
  train: "Training",
  evaluate: "Testing the model",
  personalize: "Training personal models",
  waiting: "Waiting",
  paused: "Paused by an operator",
  finished: "Finished",
  stopped: "Stopped by an operator",
};
const COLUMNS = [
  ["name", "client", (row) => row.name],
  ["state", "state", (row) => row.state],
  ["last_seen_s", "last seen", (row) => lastSeen(row)],
  ["samples", "samples", (row) => grouped(row.samples)],
  ["steps_done", "minibatches", (row) => (row.steps_all ? `${grouped(row.steps_done)} of ${grouped(row.steps_all)}` : "–")],
  ["work_s", "training", (row) => known(row.work_s, seconds)],
  ["upload_s", "upload", (row) => known(row.upload_s, seconds)],
  ["bytes_per_s", "throughput", (row) => known(row.bytes_per_s, (rate) => `${bytes(rate)}/s`)],
  ["refusals", "refused", (row) => grouped(row.refusals)],
];

const at = (id) => document.getElementById(id);
const seen = { mark: "", events: 0, masks: -1, started: 0, phase: "", drawnAt: 0 };
const table = { filter: "", state: "", sort: "name", order: "ascending", offset: 0 };
let rounds = [];
let picked = "newest";
let allEvents = false;
let questions = 0; // number of requests for clients so far
let reachedAt = null; // time of the last answer
let failures = 0;
let timer = 0;
let asking = false;
let answeredMs = 0; // time that the coordinator took for the answers of one poll

// ---- requests

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), credentials: "same-origin" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  answeredMs += Number(/dur=([\d.]+)/.exec(answer.headers.get("server-timing"))?.[1] ?? 0);
  return answer.json();
}

async function poll() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  answeredMs = 0;
  try {
    await askAll();
    failures = 0;
    reachedAt = new Date();
  } catch (error) {
    failures += 1;
    console.info("the coordinator was not reached:", error.message);
  }
  asking = false;
  showConnection();
  const retry = Math.min(MAX_RETRY_MS, MIN_PAUSE_MS * 2 ** Math.min(failures, 4));
  const pause = Math.min(MAX_PAUSE_MS, Math.max(MIN_PAUSE_MS, PAUSE_FACTOR * answeredMs));
  timer = setTimeout(poll, failures ? retry : document.hidden ? HIDDEN_PAUSE_MS : pause);
}

async function askAll() {
  const question = (questions += 1);
  const query = new URLSearchParams({ ...table, limit: CLIENTS_PER_PAGE, after: seen.events });
  let { status, clients, events } = await ask(`api/v1/look?${query}`);
  if (status.started !== seen.started) {
    if (seen.events) events = await ask("api/v1/events"); // a restarted coordinator numbers its events from the start
    Object.assign(seen, { mark: "", events: 0, masks: -1, started: status.started, drawnAt: 0 });
  }
  showStatus(status);
  await showFound(clients, question);
  if (events.last !== seen.events || !at("events").childElementCount) {
    showEvents(events.events, seen.events === 0);
    seen.events = events.last;
  }
  const moves = ["train", "evaluate"].includes(status.phase) && ["train", "evaluate"].includes(seen.phase);
  if (status.history.mark !== seen.mark && (!moves || Date.now() - seen.drawnAt >= CHARTS_EVERY_MS)) {
    const { mark, masks } = status.history;
    const names = ["rounds", "timeline", ...(masks === seen.masks ? [] : ["layers"])];
    const [curves, newest, mask] = await Promise.all(names.map((name) => ask(`api/v1/${name}`)));
    showCurves(curves);
    showRounds(newest.rounds);
    if (mask) showLayers(mask, status);
    Object.assign(seen, { mark, masks, phase: status.phase, drawnAt: Date.now() });
  }
}

async function askClients() {
  const question = (questions += 1);
  const query = new URLSearchParams({ ...table, limit: CLIENTS_PER_PAGE });
  return showFound(await ask(`api/v1/clients?${query}`), question);
}

async function showFound(found, question) {
  if (question !== questions) return; // a newer request, perhaps with another filter, is under way
  if (table.offset && table.offset >= found.matching) {
    table.offset = Math.max(0, Math.floor((found.matching - 1) / CLIENTS_PER_PAGE) * CLIENTS_PER_PAGE);
    return askClients();
  }
  showClients(found);
}

function showConnection() {
  const away = at("away");
  away.hidden = failures === 0;
  set(at("connection"), failures ? "not connected" : `live · ${clock(reachedAt)}`);
  if (!failures) return;
  const since = reachedAt ? `since ${clock(reachedAt)}` : "yet";
  set(away, `Coordinator not reached ${since}. The page shows the state of that moment and keeps trying.`);
}

// ---- display

function showStatus(status) {
  const word = status.paused && status.phase !== "paused" ? `${PHASE_TITLES[status.phase]}, then paused` : (PHASE_TITLES[status.phase] ?? status.phase);
  document.title = `${word}${status.rounds.done ? ` ${status.rounds.done}/${status.rounds.all}` : ""} · ssfl`;
  set(at("run-id"), status.run_id || "(not begun)");
  set(at("version"), `ssfl ${status.version}`);
  set(at("phase"), word);
  set(at("waiting"), waitingText(status));
  at("progress").max = Math.max(1, status.rounds.all);
  at("progress").value = status.rounds.done;
  set(at("announcer"), status.stall ? `${word}: ${status.stall.reason}` : word);
  showFacts(status);
  showNotices(status);
  showBytes(status.bytes);
}

function waitingText(status) {
  const done = { finished: "the model is written", stopped: "the model so far is written" }[status.phase];
  if (done) return status.ended_early ? `${done}; ended early: ${status.ended_early}` : done;
  return status.waiting_for ? `waits for ${status.waiting_for}` : "";
}

function optionsText(options) {
  return Object.entries(options).map(([name, value]) => `${name} ${value}`).join(", ");
}

/** What the newest round did with masks, if the strategy moves them. */
function maskFacts(moved) {
  if (!moved) return [];
  return [
    ["Mask change", percent(moved.changed), "of its bits in the newest round"],
    ["Clients' masks", percent(moved.client_density), `density, mean over clients; ${percent(moved.client_changed)} of the bits changed`],
  ];
}

function showFacts(status) {
  const { mask, step, clients } = status;
  const here = clients.working + clients.waiting + clients.reported;
  const all = Object.values(clients).reduce((sum, one) => sum + one, 0);
  const ratio = (way) => (status.bytes[way].ratio === null ? "–" : percent(status.bytes[way].ratio));
  const facts = [
    ["Round", `${grouped(status.rounds.done)} of ${grouped(status.rounds.all)}`, step ? `${step.work}: ${step.reported} of ${step.asked} reported` : ""],
    ["Time left", ["finished", "stopped"].includes(status.phase) ? "none" : known(status.seconds_left, seconds), status.seconds_per_round === null ? "" : `${seconds(status.seconds_per_round)} a round`],
    ...qualityFacts(status),
    ["Clients here", `${grouped(here)} of ${grouped(all)}`, clientsNote(clients)],
    ["Strategy", status.strategy, optionsText(status.strategy_options)],
    ...(status.personal === null ? [] : [["Personal models", percent(status.personal), "accuracy, mean over the newest round's clients"]]),
    status.has_mask
      ? ["Mask density", known(mask.density, percent), mask.density === null ? "" : `${grouped(mask.kept)} kept, mask no. ${mask.epoch}`]
      : ["Mask", "none", `strategy ${status.strategy}`],
    ...maskFacts(status.round_mask),
    ["Sent up", ratio("up"), "of dense values"],
    ["Sent down", ratio("down"), "of dense values"],
    ["Memory", bytes(status.memory.peak_bytes), "at its peak"],
    ["Disk free", bytes(status.disk.free_bytes), `of ${bytes(status.disk.size_bytes)}`],
  ];
  const list = at("facts");
  while (list.childElementCount > facts.length) list.lastChild.remove();
  while (list.childElementCount < facts.length) {
    const group = make("div");
    const value = make("dd");
    value.append(make("span"), make("small"));
    group.append(make("dt"), value);
    list.append(group);
  }
  facts.forEach(([name, value, note], k) => {
    const [term, shown] = list.children[k].children;
    set(term, name);
    set(shown.children[0], value);
    set(shown.children[1], note);
  });
}

/** Return the facts on accuracy and loss. A task without accuracy has its first metric instead, or only the loss. */
function qualityFacts({ accuracy, loss, metrics }) {
  const more = Object.entries(metrics).filter(([name]) => name !== "accuracy");
  const lossFact = ["Loss", known(loss, (value) => value.toPrecision(4)), ""];
  const first = accuracy === null && loss !== null ? more.shift() : null;
  if (first === undefined) return [lossFact];
  const note = more.slice(0, 2).map(([name, value]) => `${name} ${value.toPrecision(3)}`).join(", ");
  return [first ? [first[0], plainNumber(first[1]), note] : ["Accuracy", known(accuracy, percent), note], lossFact];
}

function clientsNote(clients) {
  const names = ["working", "reported", "lost", "left", "removed"];
  return names.filter((name) => clients[name]).map((name) => `${clients[name]} ${name}`).join(", ");
}

function showNotices(status) {
  const notices = [];
  const { stall } = status;
  if (stall) {
    const more = stall.num_missing - stall.missing.length;
    const missing = stall.missing.join(", ") + (more > 0 ? ` and ${more} more` : "");
    notices.push(["bad", `The run cannot continue: ${stall.reason}, for ${seconds(stall.seconds)} now. Missing: ${missing || "no known client"}. It takes ${stall.unblock}.`]);
  }
  if (status.disk.full) notices.push(["bad", "The disk is full: free some space, and the run continues."]);
  else if (status.disk.free_bytes < 0.05 * status.disk.size_bytes) notices.push(["", `Less than 5 % of the disk is free: ${bytes(status.disk.free_bytes)}.`]);
  const refused = Object.entries(status.refusals).map(([reason, count]) => `${reason.replaceAll("_", " ")} ${grouped(count)}`);
  if (refused.length) notices.push(["", `Calls refused since the coordinator started: ${refused.join(", ")}.`]);
  if (status.history.read < 1) notices.push(["", `Reading what the run did so far: ${percent(status.history.read)}.`]);
  const list = at("notices");
  while (list.childElementCount > notices.length) list.lastChild.remove();
  notices.forEach(([look, text], k) => {
    const one = list.children[k] ?? list.appendChild(make("p"));
    one.className = `notice ${look}`;
    set(one, text);
  });
}

function showBytes(sent) {
  const rows = ["up", "down"].flatMap((way) => {
    const { values, dense, ratio } = sent[way];
    const share = ratio === null ? "" : ` (${percent(ratio)})`;
    return [
      { name: `${way}: sent`, parts: [values], ending: `${bytes(values)}${share}`, fill: SPARSE },
      { name: `${way}: dense`, parts: [dense], ending: bytes(dense), fill: DENSE },
    ];
  });
  const once = sent.one_off.up + sent.one_off.down;
  if (once) rows.push({ name: "initial, scores, masks", parts: [once], ending: bytes(once), fill: 2 });
  const none = rows.every((row) => row.parts[0] === 0);
  bars(at("bytes"), { label: "Bytes of values against sending every value as float32", nameLabel: "what", parts: ["bytes"], format: bytes, rows: none ? [] : rows, empty: "nothing has been sent yet" });
  at("bytes-rows").hidden = none;
  set(at("bytes-note"), none ? "" : "values to train on and to test, up to the newest step that ended");
  byteRows = sent.rows;
  if (at("bytes-rows").open) fillByteRows();
}

let byteRows = [];

function fillByteRows() {
  const made = make("table");
  const head = make("tr");
  for (const name of ["phase", "direction", "encoding", "tensors", "messages", "TCP"]) {
    const cell = make("th", name);
    cell.scope = "col";
    head.append(cell);
  }
  const top = make("thead");
  top.append(head);
  const body = make("tbody");
  for (const one of byteRows) {
    const row = make("tr");
    const name = make("th", one.phase);
    name.scope = "row";
    row.append(name, ...[one.direction, one.encoding || "–", bytes(one.payload_bytes), bytes(one.message_bytes), known(one.socket_bytes, bytes)].map((text) => make("td", text)));
    body.append(row);
  }
  made.append(top, body);
  at("bytes-rows").querySelector(".table-scroll").replaceChildren(made);
}

function showCurves({ curve, evaluations }) {
  const series = (of) => testSeries(curve, evaluations, of);
  const loss = series((point) => point.loss);
  const found = measureOf([...evaluations, ...curve]);
  const measure = found ?? { name: "accuracy", of: (point) => point.accuracy, isShare: true };
  const alone = loss.length > 0 && !found; // the task has a loss and nothing else
  at("accuracy").closest(".card").hidden = alone;
  at("loss").closest(".card").classList.toggle("half", !alone);
  const title = measure.isShare ? "Accuracy" : measure.name;
  set(at("accuracy-title"), title);
  const look = measure.isShare ? { format: percent, within: [0, 1], zoom: true } : {};
  lineChart(at("accuracy"), { label: `${title} by round`, series: series(measure.of), xLabel: "rounds done", ...look, empty: "no round has been tested yet" });
  lineChart(at("loss"), { label: "Loss by round", series: loss, xLabel: "rounds done", empty: "no round has been tested yet" });
}

function showRounds(newest) {
  rounds = newest;
  phaseBars(at("phases"), newest, { yLabel: "time", tall: 220, empty: "no round has been timed yet" });
  const choice = at("round");
  const names = ["newest", ...newest.map((one) => String(one.round)).reverse()];
  if (names.length !== choice.length || [...choice.options].some((one, k) => one.value !== names[k])) {
    choice.replaceChildren(...names.map((name) => new Option(name, name)));
    if (!names.includes(picked)) picked = "newest";
    choice.value = picked;
  }
  showTimeline();
}

function showTimeline() {
  const round = picked === "newest" ? rounds[rounds.length - 1] : rounds.find((one) => String(one.round) === picked);
  timeline(at("timeline"), round);
  if (!round) return set(at("timeline-note"), "");
  const notes = [`round ${round.round}`];
  if (round.seconds !== null && round.seconds !== undefined) notes.push(seconds(round.seconds));
  notes.push(round.others ? `the slowest ${round.clients.length} of ${round.clients.length + round.others} clients` : `${counted(round.clients.length, "client")}, the slowest first`);
  const missing = round.num_missing ?? round.missing.length;
  if (missing) notes.push(`${missing} did not report: ${round.missing.slice(0, 5).join(", ")}${missing > 5 ? " …" : ""}`);
  set(at("timeline-note"), notes.join(" · "));
}

function showLayers({ layers, masks }, status) {
  const hasMask = status.has_mask && (layers.length > 0 || !status.moves_mask);
  at("layers").closest(".card").hidden = !hasMask;
  at("bytes").closest(".card").classList.toggle("half", hasMask);
  if (hasMask) densityBars(at("layers"), layers, { empty: "no mask has been agreed yet" });
  set(at("layers-note"), layers.length ? `${layers.length} layers, mask no. ${masks.at(-1).epoch}` : "");
}

function showClients(found) {
  const { clients, all, matching, offset, states } = found;
  set(at("clients-note"), all === matching ? `${grouped(all)} joined` : `${grouped(matching)} of ${grouped(all)}`);
  const choice = at("state");
  const names = ["", ...Object.keys(states)];
  if (!choice.length) choice.replaceChildren(...names.map((name) => new Option(name, name)));
  names.forEach((name, k) => set(choice.options[k], name ? `${name} (${grouped(states[name])})` : "all"));
  const body = at("clients").tBodies[0];
  while (body.rows.length > clients.length) body.lastChild.remove();
  clients.forEach((client, k) => {
    const row = body.rows[k] ?? body.appendChild(newRow());
    COLUMNS.forEach(([name, , text], cell) => {
      const place = name === "state" ? row.cells[cell].firstChild : row.cells[cell];
      set(place, text(client));
      if (name === "state" && place.className !== `word ${client.state}`) place.className = `word ${client.state}`;
      if (name === "name" && place.title !== client.name) place.title = client.name;
    });
  });
  at("pages").hidden = matching <= CLIENTS_PER_PAGE;
  set(at("page-note"), `${grouped(offset + 1)} to ${grouped(offset + clients.length)} of ${grouped(matching)}`);
  at("back").disabled = offset === 0;
  at("next").disabled = offset + clients.length >= matching;
}

function newRow() {
  const row = make("tr");
  for (const [name] of COLUMNS) {
    const cell = make(name === "name" ? "th" : "td");
    if (name === "name") cell.scope = "row";
    if (name === "state") {
      cell.className = "words";
      cell.append(make("span"));
    }
    row.append(cell);
  }
  return row;
}

function buildHead() {
  const row = make("tr");
  for (const [name, label] of COLUMNS) {
    const cell = make("th");
    cell.scope = "col";
    if (name === "state") cell.className = "words";
    const button = make("button", label);
    button.type = "button";
    button.className = "sorts";
    button.addEventListener("click", () => {
      const turned = table.sort === name && table.order === "ascending" ? "descending" : "ascending";
      Object.assign(table, { sort: name, order: turned, offset: 0 });
      markSorted();
      refreshClients();
    });
    cell.append(button);
    row.append(cell);
  }
  at("clients").tHead.append(row);
  markSorted();
}

function markSorted() {
  COLUMNS.forEach(([name], k) => {
    const cell = at("clients").tHead.rows[0].cells[k];
    if (table.sort === name) cell.setAttribute("aria-sort", table.order);
    else cell.removeAttribute("aria-sort");
  });
}

function showEvents(news, restarted) {
  const list = at("events");
  if (restarted) list.replaceChildren();
  for (const one of news) list.prepend(newEvent(one));
  while (list.childElementCount > MAX_EVENTS) list.lastChild.remove();
  if (!list.childElementCount) list.append(make("li", "nothing has happened yet"));
  hideEvents();
}

function newEvent({ time, level, event, fields }) {
  const item = make("li");
  item.className = level;
  const when = make("time", clock(new Date(1000 * time)));
  when.dateTime = new Date(1000 * time).toISOString();
  const what = make("div");
  what.className = "what";
  if (level !== "info") {
    const word = make("span", `${level} `);
    word.className = "level";
    what.append(word);
  }
  const [first, ...rest] = event.split("\n");
  what.append(make("span", first));
  const words = Object.entries(fields).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  const shown = make("span", words.length ? ` ${words.join(" ")}` : "");
  shown.className = "fields";
  if (words.length <= MAX_INLINE_FIELDS) what.append(shown);
  else rest.push(...words);
  if (rest.length) {
    const details = make("details");
    const whole = make("div", rest.join("\n"));
    whole.className = "fields";
    details.append(make("summary", `${rest.length} more lines`), whole);
    what.append(details);
  }
  item.append(when, what);
  return item;
}

/** Show the newest events, or all of them, and hide the others. */
function hideEvents() {
  const only = at("only-bad").checked;
  const items = [...at("events").children];
  const wanted = items.filter((item) => !(only && item.className === "info"));
  const shown = new Set(allEvents ? wanted : wanted.slice(0, NEWEST_EVENTS));
  for (const item of items) item.hidden = !shown.has(item);
  at("all-events").hidden = wanted.length <= NEWEST_EVENTS;
  set(at("all-events"), allEvents ? `show the newest ${NEWEST_EVENTS}` : `show all ${grouped(wanted.length)}`);
}

// ---- helpers

function lastSeen({ state, last_seen_s: silent }) {
  if (["left", "removed"].includes(state) || silent === null) return "–";
  return silent < 1 ? "now" : `${seconds(silent)} ago`;
}

function known(value, format) {
  return value === null || value === undefined ? "–" : format(value);
}

function clock(date) {
  return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

/** Set a text only if it differs: this keeps the selection, and a screen reader does not repeat the text. */
function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function make(name, text) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Request the clients at once, after a change of filter, state, order or page. */
async function refreshClients() {
  try {
    await askClients();
  } catch (error) {
    console.info("the coordinator was not reached:", error.message);
  }
}

at("filter").addEventListener("input", (event) => {
  Object.assign(table, { filter: event.target.value, offset: 0 });
  refreshClients();
});
at("state").addEventListener("change", (event) => {
  Object.assign(table, { state: event.target.value, offset: 0 });
  refreshClients();
});
at("round").addEventListener("change", (event) => {
  picked = event.target.value;
  showTimeline();
});
at("back").addEventListener("click", () => {
  table.offset = Math.max(0, table.offset - CLIENTS_PER_PAGE);
  refreshClients();
});
at("next").addEventListener("click", () => {
  table.offset += CLIENTS_PER_PAGE;
  refreshClients();
});
at("only-bad").addEventListener("change", hideEvents);
at("all-events").addEventListener("click", () => {
  allEvents = !allEvents;
  hideEvents();
});
at("bytes-rows").addEventListener("toggle", fillByteRows);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) poll();
});
buildHead();
poll();
