// Charts, drawn as SVG into an element. There is no library, no import and no build step.
//
//   lineChart(element, {label, series: [{name, points: [[x, y]], look, end}], xLabel, yLabel, format, zoom})
//   stackedBars(element, {label, columns: [{name, parts: [number]}], parts: [name], xLabel, format})
//   bars(element, {label, rows: [{name, parts: [number], note}], parts: [name], format})
//   phaseBars(element, rounds, {label})     seconds by phase, a column for each round
//   timeline(element, round, {label})       one round (the newest of a list), a row for each client
//   densityBars(element, layers, {label})   share of each layer that the mask keeps
//
// Every chart is accessible with a keyboard and a screen reader. It is one stop of the Tab key. The
// arrow keys, Home and End move between its points, and a screen reader reads each (a slider with a
// value text). The same numbers are in a table below the chart. Series differ by line style, mark or
// pattern, never by colour alone. Colours come from style.css (light and dark). Names of clients and
// layers come from the network, so text is inserted as text, never as HTML.
//
// A chart is drawn at the width of its element, and again when that changes. Drawing into an element
// that has a chart replaces the chart; the selected point stays selected.

const SVG = "http://www.w3.org/2000/svg";
const FONT_SIZE = 12;
const CHARACTER_WIDTH = 6.6; // average, in pixels, at this font size
const MAX_TICKS = 6;
const MAX_TABLE_ROWS = 1000;
const MIN_SPAN = 0.1; // smallest range of accuracy on an axis that does not show the lowest values
// A look is a number that selects a colour of style.css, a line style, a mark and a pattern. In every
// chart, sparse runs have the look SPARSE and dense runs DENSE. No other line uses DENSE.
export const SPARSE = 0;
export const DENSE = 1;
const LINE_LOOKS = [0, 2, 3, 5];
const PHASE_LOOKS = { broadcast: 5, training: 0, collection: 2, aggregation: 3, commit: 4 };
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "1 3", "12 4"];
const MARKS = ["circle", "square", "triangle", "diamond", "square", "circle"];
const PATTERNS = ["plain", "dots", "stripes", "cross", "hatch", "lines"];

const charts = new WeakMap(); // element -> frame of the chart drawn in it
let lastId = 0;

// ---- charts that the page and the report draw

/**
 * Draw lines over a numeric x axis, with a gap where y is null. `within` is the range of possible y
 * values, as [min, max]. With `zoom`, the y axis begins where most of the values are (axisFloor). A
 * series may have a `look`, and an `end`: a point of another series to which its line is extended.
 */
export function lineChart(element, chart) {
  const series = chart.series.map((one, k) => ({
    look: LINE_LOOKS[k % LINE_LOOKS.length],
    ...one,
    points: one.points.filter(([x]) => Number.isFinite(x)),
  }));
  const xs = [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  const format = chart.format ?? plainNumber;
  const byX = series.map((one) => new Map(one.points));
  show(element, {
    ...chart,
    count: xs.length,
    legend: series.map((one) => ({ name: one.name, line: one.look })),
    tell: (at) =>
      `${chart.xLabel} ${plainNumber(xs[at])}: ` +
      series
        .map((one, k) => [one.name, byX[k].get(xs[at])])
        .filter(([, y]) => Number.isFinite(y))
        .map(([name, y]) => `${name} ${format(y)}`)
        .join(", "),
    head: [chart.xLabel, ...series.map((one) => one.name)],
    row: (at) => [plainNumber(xs[at]), ...byX.map((one) => shown(one.get(xs[at]), format))],
    draw: (board) => drawLines(board, chart, series, xs, byX, format),
  });
}

/** Draw vertical columns of stacked parts. */
export function stackedBars(element, chart) {
  const format = chart.format ?? plainNumber;
  const total = (column) => column.parts.reduce((sum, value) => sum + (value ?? 0), 0);
  show(element, {
    ...chart,
    count: chart.columns.length,
    legend: chart.parts.map((name, k) => ({ name, fill: chart.looks?.[k] ?? k })),
    tell: (at) => {
      const column = chart.columns[at];
      const parts = chart.parts.map((name, k) => `${name} ${shown(column.parts[k], format)}`);
      return `${chart.xLabel} ${column.name}: ${format(total(column))}; ${parts.join(", ")}`;
    },
    head: [chart.xLabel, ...chart.parts, "together"],
    row: (at) => {
      const column = chart.columns[at];
      const parts = chart.parts.map((_, k) => shown(column.parts[k], format));
      return [column.name, ...parts, format(total(column))];
    },
    draw: (board) => drawColumns(board, chart, total, format),
  });
}

/** Draw horizontal bars of stacked parts, each with its name, and with its `note` at the end. */
export function bars(element, chart) {
  const format = chart.format ?? plainNumber;
  show(element, {
    ...chart,
    count: chart.rows.length,
    legend: chart.parts.map((name, k) => ({ name, fill: k })),
    tell: (at) => {
      const row = chart.rows[at];
      const parts = row.parts.map((value, k) => `${chart.parts[k]} ${shown(value, format)}`);
      return `${row.name}: ${[...parts, ...(row.note ? [row.note] : [])].join(", ")}`;
    },
    head: [chart.nameLabel ?? "", ...chart.parts, ""],
    row: (at) => {
      const row = chart.rows[at];
      const parts = chart.parts.map((_, k) => shown(row.parts[k], format));
      return [row.name, ...parts, row.note ?? ""];
    },
    draw: (board) => drawBars(board, chart, format),
  });
}

/** Draw the seconds of each timed round, by phase. */
export function phaseBars(element, rounds, options = {}) {
  const timed = rounds.filter((one) => one.phases);
  const parts = [...new Set(timed.flatMap((one) => Object.keys(one.phases)))];
  stackedBars(element, {
    label: "Seconds of the newest rounds by phase", xLabel: "round", format: seconds, ...options, parts,
    looks: parts.map((name, k) => PHASE_LOOKS[name] ?? k),
    columns: timed.map((one) => ({ name: String(one.round), parts: parts.map((name) => one.phases[name] ?? 0) })),
  }); // prettier-ignore
}

/** Draw how each client spent one round (PIECES), the slowest client first. */
export function timeline(element, rounds, options = {}) {
  const round = Array.isArray(rounds) ? rounds[rounds.length - 1] : rounds;
  const rows = (round?.clients ?? [])
    .filter((row) => Number.isFinite(row.received_s))
    .sort((a, b) => b.received_s - a.received_s);
  const end = Math.max(round?.seconds ?? 0, ...rows.map((row) => row.received_s), 0.001);
  const pieces = rows.map((row) => piecesOf(row, end));
  show(element, {
    label: options.label ?? `Round ${round?.round}: who did what when`,
    empty: options.empty ?? "no round has been completed yet",
    count: rows.length,
    scrolls: true,
    legend: PIECE_LEGEND,
    tell: (at) =>
      `${rows[at].client}: ` + pieces[at].map((one) => `${one.name} ${seconds(one.length)}`).join(", "),
    head: ["client", ...PIECES, "received after"],
    row: (at) => [
      rows[at].client,
      ...PIECES.map((name) => seconds(pieces[at].find((one) => one.name === name)?.length ?? 0)),
      seconds(rows[at].received_s),
    ],
    draw: (board) => drawTimeline(board, rows, pieces, end, round),
  });
}

/** Draw the share of each layer that the mask keeps: bars, or columns for more than 24 layers. */
export function densityBars(element, layers, options = {}) {
  const label = options.label ?? "Kept weights by layer";
  const note = (one) => `${grouped(one.kept)} of ${grouped(one.size)}`;
  const kept = layers.reduce((sum, one) => sum + one.kept, 0);
  const size = layers.reduce((sum, one) => sum + one.size, 0);
  const empty = options.empty ?? "no mask has been agreed yet";
  const reference = size ? { value: kept / size, name: `whole mask ${percent(kept / size)}` } : null;
  if (layers.length > 24) {
    stackedBars(element, {
      label, empty, reference, parts: ["kept"], format: percent, xLabel: "layer", names: false,
      columns: layers.map((one) => ({ name: one.name, parts: [one.density], note: note(one) })),
    });
  } else {
    bars(element, {
      label, empty, reference, most: 1, parts: ["kept"], format: percent, nameLabel: "layer",
      rows: layers.map((one) => ({ name: one.name, parts: [one.density], note: note(one) })),
    });
  }
}

// ---- numbers as text

/** Return a number as text: 1,235, 12.35; below 1,000 with at most four significant digits. */
export function plainNumber(value) {
  if (!Number.isFinite(value)) return String(value);
  const digits = Math.abs(value) >= 1000 ? 0 : 4;
  return digits ? String(Number(value.toPrecision(digits))) : grouped(Math.round(value));
}

export function grouped(value) {
  return value.toLocaleString("en-US");
}

/** Return a count with its noun: 1 client, 2 clients. */
export function counted(count, one) {
  return `${grouped(count)} ${one}${count === 1 ? "" : "s"}`;
}

/** Return which clients a mean of personal models covers; an earlier version did not count them. */
export function ownersText(having, asked) {
  return having === null || having === asked ? "clients" : `the ${grouped(having)} of ${counted(asked, "client")} that have one`;
}

/**
 * Return two series of test results by round: tests by the clients of the round, and by all clients.
 * The first line is extended to the newest test by all clients, if that is later than its last point.
 */
export function testSeries(curve, evaluations, of) {
  const known = (points) => points.filter(([, y]) => y !== null);
  const byRound = curve.map((one) => [one.round, of(one)]);
  const byAll = evaluations.map((one) => [one.rounds_done, of(one)]);
  const [last, end] = [known(byRound).at(-1), known(byAll).at(-1)];
  return [
    { name: "clients of the round", points: byRound, end: last && end && end[0] > last[0] ? end : undefined },
    { name: "all clients", points: byAll },
  ]
    .map((one, k) => ({ ...one, look: LINE_LOOKS[k] }))
    .filter((one) => known(one.points).length);
}

/** Return the measure to draw: accuracy or, for a task without it, the first metric; null if only the loss is known. */
export function measureOf(points) {
  if (points.some((one) => one.accuracy !== null)) return { name: "accuracy", of: (one) => one.accuracy, isShare: true };
  const name = points.flatMap((one) => Object.keys(one.metrics ?? {}))[0];
  return name === undefined ? null : { name, of: (one) => one.metrics?.[name] ?? null, isShare: false };
}

/** Return a share as a percentage: 12.3 %. From 99 % to 101 % it has two decimals; only 1 gives 100 %. */
export function percent(value) {
  const hundredfold = 100 * value;
  if (value === 1 || hundredfold < 99 || hundredfold > 101) return `${Number(hundredfold.toPrecision(3))} %`;
  const rounded = Number(hundredfold.toFixed(2));
  return `${rounded !== 100 ? rounded : value < 1 ? 99.99 : 100.01} %`;
}

/** Return a number of bytes with its unit: 850 B, 12.3 kB, 1.2 GB. */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${at ? Number(value.toPrecision(3)) : Math.round(value)} ${units[at]}`;
}

/** Return a duration with its units: 35 ms, 2.4 s, 3 min 20 s, 5 h 12 min. */
export function seconds(value) {
  if (value < 0.9995) return `${Math.round(1000 * value)} ms`;
  if (value < 99.95) return `${Number(value.toPrecision(3))} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function shown(value, format) {
  return value === null || value === undefined ? "unknown" : format(value);
}

// ---- the frame of every chart: focus, tooltip, legend, table

function show(element, chart) {
  const before = charts.get(element);
  if (before) {
    const followed = before.at >= before.chart.count - 1; // a selected newest point moves to the new newest one
    before.chart = chart;
    before.at = followed ? chart.count - 1 : Math.min(before.at, chart.count - 1);
    return refresh(before);
  }
  const frame = { element, chart, at: -1, width: 0, id: `chart-${(lastId += 1)}` };
  charts.set(element, frame);
  build(frame);
  refresh(frame);
  new ResizeObserver(() => {
    if (element.clientWidth !== frame.width) refresh(frame);
  }).observe(element);
}

function build(frame) {
  const { element } = frame;
  element.classList.add("chart");
  frame.scroll = html("div", { class: "chart-scroll" });
  frame.plot = html("div", { class: "chart-plot", role: "slider", tabindex: "0" });
  frame.tip = html("div", { class: "chart-tip", "aria-hidden": "true", hidden: "" });
  frame.empty = html("p", { class: "chart-empty" });
  frame.legend = html("ul", { class: "chart-legend", "aria-hidden": "true" });
  frame.details = html("details", { class: "chart-table" });
  frame.details.append(html("summary", {}, "as a table"));
  frame.table = html("div", { class: "table-scroll", tabindex: "0", role: "region" });
  frame.details.append(frame.table);
  frame.scroll.append(frame.plot);
  element.replaceChildren(frame.scroll, frame.tip, frame.empty, frame.legend, frame.details);
  frame.details.addEventListener("toggle", () => fillTable(frame));
  frame.plot.addEventListener("keydown", (event) => key(frame, event));
  frame.plot.addEventListener("focus", () => point(frame, frame.at < 0 ? frame.chart.count - 1 : frame.at));
  frame.plot.addEventListener("blur", () => hideTip(frame));
  frame.plot.addEventListener("pointermove", (event) => point(frame, nearest(frame, event)));
  frame.plot.addEventListener("pointerdown", (event) => point(frame, nearest(frame, event)));
  frame.plot.addEventListener("pointerleave", () => {
    if (document.activeElement !== frame.plot) hideTip(frame);
  });
}

function refresh(frame) {
  const { chart, plot } = frame;
  const there = chart.count > 0;
  frame.width = frame.element.clientWidth;
  for (const part of [frame.scroll, frame.legend, frame.details]) part.hidden = !there;
  frame.empty.hidden = there;
  frame.empty.textContent = chart.empty ?? "nothing to show yet";
  if (!there) return hideTip(frame);
  const board = newBoard(frame);
  chart.draw(board);
  plot.replaceChildren(board.svg);
  frame.board = board;
  plot.setAttribute("aria-label", chart.label);
  plot.setAttribute("aria-valuemin", "1");
  plot.setAttribute("aria-valuemax", String(chart.count));
  frame.table.setAttribute("aria-label", `${chart.label}, as a table`);
  frame.scroll.classList.toggle("scrolls", Boolean(chart.scrolls));
  announce(frame);
  fillLegend(frame);
  fillTable(frame);
  if (!frame.tip.hidden) point(frame, frame.at);
}

function announce(frame) {
  const at = frame.at < 0 ? frame.chart.count - 1 : frame.at;
  frame.plot.setAttribute("aria-valuenow", String(at + 1));
  frame.plot.setAttribute("aria-valuetext", frame.chart.tell(at));
}

function key(frame, event) {
  const last = frame.chart.count - 1;
  const at = frame.at < 0 ? last : frame.at;
  const page = Math.max(1, Math.round(last / 10));
  const to = {
    ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1,
    PageDown: at + page, PageUp: at - page, Home: 0, End: last,
  }[event.key]; // prettier-ignore
  if (event.key === "Escape") hideTip(frame);
  if (to === undefined) return;
  event.preventDefault();
  point(frame, Math.max(0, Math.min(last, to)));
}

/** Show the tooltip of point `at`. */
function point(frame, at) {
  if (at < 0 || at >= frame.chart.count) return;
  frame.at = at;
  announce(frame);
  const [x, y] = frame.board.places[at];
  const tip = frame.tip;
  tip.textContent = frame.chart.tell(at);
  tip.hidden = false;
  frame.board.cursor(at);
  if (frame.chart.scrolls && document.activeElement === frame.plot) {
    const top = y - frame.scroll.clientHeight / 2;
    if (Math.abs(y - frame.scroll.scrollTop - frame.scroll.clientHeight / 2) > frame.scroll.clientHeight / 2 - 24)
      frame.scroll.scrollTop = top;
  }
  const shift = Math.max(0, Math.min(frame.width - tip.offsetWidth, x - tip.offsetWidth / 2));
  const above = y - frame.scroll.scrollTop - tip.offsetHeight - 10;
  tip.style.left = `${shift}px`;
  tip.style.top = `${above < -tip.offsetHeight ? y - frame.scroll.scrollTop + 14 : above}px`;
}

function hideTip(frame) {
  frame.tip.hidden = true;
  frame.board?.cursor(-1);
}

function nearest(frame, event) {
  const box = frame.plot.getBoundingClientRect();
  const place = [event.clientX - box.left, event.clientY - box.top];
  const along = frame.board.level ? 1 : 0;
  let best = -1;
  let distance = Infinity;
  frame.board.places.forEach((one, at) => {
    const off = Math.abs(one[along] - place[along]);
    if (off < distance) [best, distance] = [at, off];
  });
  return best;
}

function fillLegend(frame) {
  const key = JSON.stringify(frame.chart.legend);
  frame.legend.hidden = frame.chart.legend.length < 2;
  if (frame.legendKey === key) return;
  frame.legendKey = key;
  frame.legend.replaceChildren(
    ...frame.chart.legend.map((one, k) => {
      const item = html("li", {});
      const swatch = svg("svg", { width: 26, height: 14, class: "swatch" });
      if (one.fill !== undefined) {
        patterns(swatch, `${frame.id}-key-${k}`);
        block(swatch, { id: `${frame.id}-key-${k}` }, 1, 1, 24, 12, one.fill);
      } else {
        line(swatch, one.line, [[1, 7], [25, 7]]);
        mark(swatch, one.line, 13, 7);
      }
      item.append(swatch, document.createTextNode(one.name));
      return item;
    }),
  );
}

function fillTable(frame) {
  const { chart, details, table } = frame;
  if (!details.open || !chart.count) return;
  const rows = Math.min(chart.count, MAX_TABLE_ROWS);
  const made = html("table", {});
  const head = html("tr", {});
  for (const name of chart.head) head.append(name ? html("th", { scope: "col" }, name) : html("td", {}));
  const body = html("tbody", {});
  for (let at = chart.count - rows; at < chart.count; at += 1) {
    const row = html("tr", {});
    chart.row(at).forEach((text, k) => row.append(html(k ? "td" : "th", k ? {} : { scope: "row" }, text)));
    body.append(row);
  }
  const top = html("thead", {});
  top.append(head);
  made.append(top, body);
  const scrolled = table.scrollTop;
  table.replaceChildren(made);
  table.scrollTop = scrolled;
}

// ---- drawing

function newBoard(frame) {
  const width = Math.max(240, frame.width || 640);
  const picture = svg("svg", { "aria-hidden": "true", focusable: "false" });
  patterns(picture, frame.id);
  const board = { svg: picture, id: frame.id, width, places: [], level: false, cursor: () => {} };
  board.size = (height) => {
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("width", String(width));
    picture.setAttribute("height", String(height));
  };
  return board;
}

function drawLines(board, chart, series, xs, byX, format) {
  const values = series.flatMap((one) => one.points.map(([, y]) => y)).filter(Number.isFinite);
  const floor = chart.zoom ? axisFloor(values) : null;
  const low = floor ?? Math.min(...values, ...(chart.zero ? [0] : []));
  const y = scale(low, Math.max(...values), format, { within: chart.within });
  const x = scale(xs[0], xs[xs.length - 1], plainNumber, { whole: true, room: board.width - 80 });
  const height = chart.tall ?? 240;
  const note = floor === null ? {} : { yLabel: `the axis begins at ${y.format(y.low)}` };
  const area = axes(board, height, y, x, { ...chart, ...note });
  const put = (px, py) => [area.x(px), area.y(py)];
  const within = clipped(board, area);
  for (const one of series) {
    const pieces = piecesBetweenGaps(one.points);
    for (const piece of pieces) {
      line(within, one.look, piece.map(([px, py]) => put(px, py)));
      const every = Math.max(1, Math.ceil(piece.length / 8)); // marks distinguish lines, so a few are enough
      piece.forEach(([px, py], at) => {
        const marked = piece.length < 12 || at % every === 0 || at === piece.length - 1;
        if (marked && py >= y.low) mark(board.svg, one.look, ...put(px, py));
      });
    }
    if (one.end && pieces.length) line(within, one.look, [put(...pieces.at(-1).at(-1)), put(...one.end)]);
  }
  const cursor = svg("g", { class: "cursor" });
  board.svg.append(cursor);
  board.places = xs.map((at) => {
    const known = byX.map((one) => one.get(at)).filter(Number.isFinite);
    return [area.x(at), known.length ? Math.min(area.bottom, ...known.map(area.y)) : area.top];
  });
  board.cursor = (at) => {
    cursor.replaceChildren();
    if (at < 0) return;
    const px = area.x(xs[at]);
    cursor.append(svg("line", { x1: px, x2: px, y1: area.top, y2: area.bottom, class: "rule" }));
    byX.forEach((one, k) => {
      const value = one.get(xs[at]);
      if (Number.isFinite(value) && value >= y.low) mark(cursor, series[k].look, px, area.y(value), 5);
    });
  };
}

function drawColumns(board, chart, total, format) {
  const { columns } = chart;
  const most = chart.most ?? Math.max(...columns.map(total), 1e-9);
  const y = scale(0, most, format);
  const area = axes(board, chart.tall ?? 240, y, null, chart);
  const step = (area.right - area.left) / columns.length;
  const thick = Math.max(1, Math.min(48, step * 0.8));
  const middle = (at) => area.left + step * (at + 0.5);
  columns.forEach((column, at) => {
    let below = 0;
    column.parts.forEach((value, k) => {
      const [low, high] = [area.y(below), area.y(below + (value ?? 0))];
      block(board.svg, board, middle(at) - thick / 2, high, thick, low - high, chart.looks?.[k] ?? k, thick < 4);
      below += value ?? 0;
    });
  });
  if (chart.names !== false) {
    const widest = Math.max(...columns.map((column) => column.name.length), 1) * CHARACTER_WIDTH + 10;
    const every = Math.max(1, Math.ceil(widest / step));
    columns.forEach((column, at) => {
      if (at % every === 0) text(board.svg, middle(at), area.bottom + 16, column.name, "middle");
    });
  }
  reference(board, chart, area);
  const cursor = outline(board);
  board.places = columns.map((column, at) => [middle(at), area.y(total(column))]);
  board.cursor = (at) =>
    cursor(at < 0 ? null : [middle(at) - thick / 2 - 2, area.top, thick + 4, area.bottom - area.top]);
}

function drawBars(board, chart, format) {
  const { rows } = chart;
  const narrow = board.width < 480; // on a phone, names are above their bars
  const names = Math.max(...rows.map((row) => row.name.length)) * CHARACTER_WIDTH + 12;
  const notes = Math.max(...rows.map((row) => ending(chart, row, format).length)) * CHARACTER_WIDTH + 12;
  const left = narrow ? 0 : Math.min(names, board.width * 0.34);
  const right = board.width - Math.min(notes, board.width * (narrow ? 0.5 : 0.34));
  const tall = narrow ? 40 : 26;
  const most = chart.most ?? Math.max(...rows.map((row) => sum(row.parts)), 1e-9);
  const x = (value) => left + ((right - left) * value) / most;
  const height = rows.length * tall + (chart.reference ? 20 : 4);
  board.size(height);
  board.level = true;
  rows.forEach((row, at) => {
    const top = at * tall + (narrow ? 18 : 4);
    const room = narrow ? board.width : left - 12;
    if (narrow) text(board.svg, 0, top - 5, shortened(row.name, room), "start", "halo");
    else text(board.svg, left - 8, top + 13, shortened(row.name, room), "end");
    let before = 0;
    row.parts.forEach((value, k) => {
      block(board.svg, board, x(before), top, x(before + value) - x(before), 18, row.fill ?? k);
      before += value;
    });
    // With a reference line, the texts after the bars form a column that the line does not cross.
    const from = (chart.reference ? right : x(before)) + 6;
    text(board.svg, from, top + 13, ending(chart, row, format), "start", "strong halo");
    if (chart.reference) {
      const px = x(chart.reference.value);
      const [y1, y2] = narrow ? [top - 2, top + 20] : [at * tall, (at + 1) * tall];
      board.svg.append(svg("line", { x1: px, x2: px, y1, y2, class: "reference" }));
    }
  });
  if (chart.reference) text(board.svg, left, rows.length * tall + 15, `dashed: ${chart.reference.name}`, "start");
  const cursor = outline(board);
  board.places = rows.map((row, at) => [x(sum(row.parts)), at * tall + tall / 2]);
  board.cursor = (at) => cursor(at < 0 ? null : [1, at * tall, board.width - 2, tall]);
}

function ending(chart, row, format) {
  return row.ending ?? `${format(sum(row.parts))}${row.note && !chart.terse ? `, ${row.note}` : ""}`;
}

const PIECES = ["until it took its task", "broadcast", "training", "queue to upload", "upload", "wait for the round's end"];
const PIECE_FILLS = [4, 5, 0, 3, 2, 4];
const PIECE_LEGEND = [...PIECES.slice(1, -1).map((name, k) => ({ name, fill: PIECE_FILLS[k + 1] })), { name: "waiting", fill: 4 }];

/** Return a client's time in a round as one piece for each name in PIECES. */
function piecesOf(row, end) {
  const received = Math.max(0, row.received_s);
  const upload = Math.min(Math.max(0, row.upload_s ?? 0), received);
  const work = Math.min(Math.max(0, row.work_s ?? 0), received - upload);
  const rest = received - upload - work;
  const away = Math.min(Math.max(0, row.asked_s ?? 0), rest);
  const broadcast = Math.min(Math.max(0, (row.sent_s ?? row.asked_s ?? rest) - away), rest - away);
  const lengths = [away, broadcast, work, rest - away - broadcast, upload, Math.max(0, end - received)];
  let start = 0;
  return PIECES.map((name, k) => {
    const piece = { name, start, length: lengths[k], fill: PIECE_FILLS[k] };
    start += lengths[k];
    return piece;
  });
}

function drawTimeline(board, rows, pieces, end, round) {
  const narrow = board.width < 480;
  const names = Math.max(...rows.map((row) => row.client.length)) * CHARACTER_WIDTH + 12;
  const left = narrow ? 0 : Math.min(names, board.width * 0.3);
  const right = board.width - 12;
  const tall = narrow ? 36 : 22;
  const top = 38;
  const x = (value) => left + ((right - left) * value) / end;
  const height = top + rows.length * tall + 6;
  board.size(height);
  board.level = true;
  text(board.svg, left, 12, "time since the round began", "start", "strong");
  for (const { at, text: label } of timeTicks(end, right - left)) {
    board.svg.append(svg("line", { x1: x(at), x2: x(at), y1: top - 4, y2: height, class: "grid" }));
    const anchor = at === 0 ? "start" : x(at) > right - (label.length * CHARACTER_WIDTH) / 2 ? "end" : "middle";
    text(board.svg, x(at), 29, label, anchor);
  }
  rows.forEach((row, at) => {
    const y = top + at * tall + (narrow ? 16 : 2);
    if (narrow) text(board.svg, 0, y - 4, shortened(row.client, board.width), "start", "halo");
    else text(board.svg, left - 8, y + 13, shortened(row.client, left - 12), "end", row.client === round.last ? "strong" : "");
    for (const piece of pieces[at]) {
      const width = x(piece.start + piece.length) - x(piece.start);
      block(board.svg, board, x(piece.start), y, width, 16, piece.fill, width < 3);
    }
  });
  const cursor = outline(board);
  board.places = rows.map((row, at) => [x(row.received_s), top + at * tall + tall / 2]);
  board.cursor = (at) => cursor(at < 0 ? null : [1, top + at * tall, board.width - 2, tall]);
}

function axes(board, height, y, x, chart) {
  const left = Math.max(...y.ticks.map((tick) => y.format(tick).length)) * CHARACTER_WIDTH + 14;
  const area = { left, right: board.width - 14, top: chart.yLabel || chart.reference ? 26 : 12, bottom: height - (chart.xLabel ? 40 : 22) };
  area.y = (value) => area.bottom - ((area.bottom - area.top) * (value - y.low)) / (y.high - y.low);
  area.x = (value) => area.left + ((area.right - area.left) * (value - x.low)) / (x.high - x.low);
  board.size(height);
  for (const tick of y.ticks) {
    const at = area.y(tick);
    board.svg.append(svg("line", { x1: area.left, x2: area.right, y1: at, y2: at, class: "grid" }));
    text(board.svg, area.left - 8, at + 4, y.format(tick), "end");
  }
  for (const tick of x?.ticks ?? []) text(board.svg, area.x(tick), area.bottom + 17, x.format(tick), "middle");
  if (chart.yLabel) text(board.svg, 0, 12, chart.yLabel, "start", "strong");
  if (chart.xLabel) text(board.svg, area.right, height - 4, chart.xLabel, "end", "strong");
  board.svg.append(svg("line", { x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom, class: "axis" }));
  return area;
}

function reference(board, chart, area) {
  if (!chart.reference) return;
  const at = area.y(chart.reference.value);
  board.svg.append(svg("line", { x1: area.left, x2: area.right, y1: at, y2: at, class: "reference" }));
  text(board.svg, area.right, area.top - 2, `dashed: ${chart.reference.name}`, "end", "strong halo");
}

function outline(board) {
  const group = svg("g", { class: "cursor" });
  board.svg.append(group);
  return (box) => {
    group.replaceChildren();
    if (!box) return;
    const [px, py, width, height] = box;
    group.append(svg("rect", { x: px, y: py, width, height, class: "outline" }));
  };
}

/**
 * Return the scale of an axis: a range that contains low and high, its ticks at round numbers, and the
 * format of their labels. With `room`, the length of the axis in pixels, the labels do not overlap.
 */
function scale(low, high, format, { whole = false, within = [-Infinity, Infinity], room = Infinity } = {}) {
  if (!Number.isFinite(low) || !Number.isFinite(high)) [low, high] = [0, 1];
  if (low === high) [low, high] = whole ? [low - 1, high + 1] : [low - 0.5 * Math.abs(low || 1), high + 0.5 * Math.abs(high || 1)];
  if (whole) {
    const ticks = fitting(room, format, high - low, (most) => ticksOf(low, high, wholeStep(high - low, most)));
    return { low, high, ticks, format };
  }
  const isTime = format === seconds;
  const step = (isTime ? timeStep : decimalStep)(high - low, MAX_TICKS);
  const bottom = Math.max(within[0], Math.floor(low / step + 1e-9) * step);
  const top = Math.min(within[1], Math.ceil(high / step - 1e-9) * step);
  const tickFormat = isTime ? (tick) => timeText(tick, top) : format;
  return { low: bottom, high: top, ticks: ticksOf(bottom, top, step), format: tickFormat };
}

/** Return the ticks of a time axis from 0 to `end`, `room` pixels long: position and label of each. */
export function timeTicks(end, room) {
  const label = (tick) => timeText(tick, end);
  return fitting(room, label, end, (most) => ticksOf(0, end, timeStep(end, most))).map((at) => ({ at, text: label(at) }));
}

/** Return as many ticks as have room for their labels, with space for the outer labels to move inwards. */
function fitting(room, format, length, ticksFor) {
  for (let most = MAX_TICKS; most > 2; most -= 1) {
    const ticks = ticksFor(most);
    const widest = Math.max(...ticks.map((tick) => format(tick).length)) * CHARACTER_WIDTH;
    if (ticks.length < 2 || 1.5 * widest + 8 <= (room * (ticks[1] - ticks[0])) / length) return ticks;
  }
  return ticksFor(2);
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** Return the distance between the ticks of a time axis: one of TIME_STEPS, a part of a second, or days. */
function timeStep(length, most) {
  const rough = length / (most - 1);
  if (rough <= 0.5) return decimalStep(length, most);
  return TIME_STEPS.find((one) => one >= rough - 1e-9) ?? 86400 * Math.max(1, decimalStep(length / 86400, most));
}

/** Return the label of a time tick, in units that suit an axis up to `end`: 250 ms, 7.5 s, 1 min 30 s, 2 h. */
function timeText(value, end) {
  if (value === 0) return "0";
  if (end < 1) return `${Number((1000 * value).toPrecision(6))} ms`;
  if (end < 100) return `${Number(value.toPrecision(6))} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]; // prettier-ignore
  let rest = Math.round(value);
  const parts = units.map(([name, size]) => {
    const count = Math.floor(rest / size);
    rest -= count * size;
    return count ? `${count} ${name}` : "";
  });
  return parts.filter(Boolean).join(" ");
}

function decimalStep(length, most) {
  const rough = length / (most - 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough - 1e-12 * power);
}

function wholeStep(length, most) {
  return Math.max(1, Math.round(decimalStep(length, most)));
}

/**
 * Return where an axis of shares begins, so that most of the values can be distinguished: at their
 * lower quartile, if the values above it are close together, and at least MIN_SPAN below the largest,
 * so that noise stays small. Return null if the axis shows every value.
 */
export function axisFloor(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const [low, high] = [sorted[0], sorted[sorted.length - 1]];
  const place = 0.25 * (sorted.length - 1);
  const below = sorted[Math.floor(place)];
  const quarter = below + (place % 1) * (sorted[Math.ceil(place)] - below);
  const floor = Math.min(quarter, high - MIN_SPAN);
  return high - quarter > (high - low) / 2 || floor <= low ? null : floor;
}

function ticksOf(low, high, step) {
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1)
    ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

/** Add a group to the board that clips its lines at the borders of the area, and return it. */
function clipped(board, area) {
  const id = `${board.id}-area`;
  const clip = svg("clipPath", { id });
  const size = { width: area.right - area.left + 4, height: area.bottom - area.top + 4 };
  clip.append(svg("rect", { x: area.left - 2, y: area.top - 2, ...size }));
  const group = svg("g", { "clip-path": `url(#${id})` });
  board.svg.append(clip, group);
  return group;
}

function piecesBetweenGaps(points) {
  const pieces = [[]];
  for (const one of points) {
    if (Number.isFinite(one[1])) pieces[pieces.length - 1].push(one);
    else if (pieces[pieces.length - 1].length) pieces.push([]);
  }
  return pieces.filter((piece) => piece.length);
}

function line(parent, k, places) {
  const path = places.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  const dash = DASHES[k % DASHES.length];
  const more = dash ? { "stroke-dasharray": dash } : {};
  parent.append(svg("path", { d: path, class: `line stroke-${k % 6}`, ...more }));
}

function mark(parent, k, x, y, size = 3.5) {
  const look = { class: `mark fill-${k % 6}` };
  const paths = {
    square: `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
    triangle: `M${x} ${y - size * 1.2}l${size * 1.2} ${size * 2.1}h${-size * 2.4}z`,
    diamond: `M${x} ${y - size * 1.3}l${size * 1.3} ${size * 1.3}l${-size * 1.3} ${size * 1.3}l${-size * 1.3} ${-size * 1.3}z`,
  };
  const kind = MARKS[k % MARKS.length];
  parent.append(
    kind === "circle" ? svg("circle", { cx: x, cy: y, r: size, ...look }) : svg("path", { d: paths[kind], ...look }),
  );
}

/** Draw a filled box in the look `k`; a `small` box has no pattern and no edge. */
function block(parent, board, x, y, width, height, k, small = false) {
  if (width <= 0 || height <= 0) return;
  const box = { x, y, width, height };
  parent.append(svg("rect", { ...box, class: `fill-${k % 6}${small ? "" : " edged"}` }));
  if (!small && PATTERNS[k % 6] !== "plain")
    parent.append(svg("rect", { ...box, fill: `url(#${board.id}-${PATTERNS[k % 6]})` }));
}

function patterns(picture, id) {
  const defs = svg("defs", {});
  const tile = (name, size, ...shapes) => {
    const one = svg("pattern", { id: `${id}-${name}`, width: size, height: size, patternUnits: "userSpaceOnUse" });
    one.append(...shapes);
    defs.append(one);
  };
  const ink = (d) => svg("path", { d, class: "ink" });
  tile("dots", 6, svg("circle", { cx: 3, cy: 3, r: 1, class: "ink-dot" }));
  tile("stripes", 6, ink("M-1 7L7 -1M-1 1L1 -1M5 7L7 5"));
  tile("cross", 6, ink("M0 3H6M3 0V6"));
  tile("lines", 5, ink("M2.5 0V5"));
  tile("hatch", 7, svg("path", { d: "M-1 -1L8 8M-1 6L1 8M6 -1L8 1", class: "ink-wait" }));
  picture.append(defs);
}

function text(parent, x, y, content, anchor, look = "") {
  parent.append(svg("text", { x, y, "text-anchor": anchor, "font-size": FONT_SIZE, class: look }, content));
}

/** Shorten a long name in its middle, because names may differ at either end. */
export function shortened(name, room) {
  const most = Math.max(6, Math.floor(room / CHARACTER_WIDTH + 1e-6)); // 1e-6: against rounding down by one
  if (name.length <= most) return name;
  const head = Math.ceil((most - 1) / 2);
  return `${name.slice(0, head)}…${name.slice(name.length - (most - 1 - head))}`;
}

function sum(values) {
  return values.reduce((all, one) => all + (one ?? 0), 0);
}

function svg(name, attributes, content) {
  return fill(document.createElementNS(SVG, name), attributes, content);
}

function html(name, attributes, content) {
  return fill(document.createElement(name), attributes, content);
}

function fill(node, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) if (value !== "" || name === "hidden") node.setAttribute(name, String(value));
  if (content !== undefined) node.textContent = content;
  return node;
}
