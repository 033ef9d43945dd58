// Parts of a report: cards, tables, facts, pictures of a mask. This file follows charts.js in one
// script. Text is inserted as text, never as HTML.

const UNKNOWN = "unknown";

/** Return a new element; children are elements or text. */
function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children.filter((one) => one !== null && one !== undefined));
  return made;
}

/** Add a card with a heading to `page`, and return it. */
function card(page, title, { half = false, note = "" } = {}) {
  const id = `part-${page.childElementCount + 1}`;
  const made = node("section", { class: half ? "card half" : "card", "aria-labelledby": id });
  const head = node("header", {}, node("h2", { id }, title));
  if (note) head.append(node("p", { class: "faint" }, note));
  made.append(head);
  page.append(made);
  return made;
}

function words(parent, content, look = "") {
  parent.append(node("p", look ? { class: look } : {}, content));
}

/** Add an element for a chart to `parent`, and return it. */
function place(parent) {
  const made = node("div");
  parent.append(made);
  return made;
}

/** Add a list of facts; rows: [[name, value, small print]]. */
function facts(parent, rows) {
  const list = node("dl", { class: "facts" });
  for (const [name, value, more] of rows) {
    const said = node("dd", {}, value);
    if (more) said.append(node("small", {}, more));
    list.append(node("div", {}, node("dt", {}, name), said));
  }
  parent.append(list);
}

/**
 * Add a table; columns: [{name, of: row => value, as: value => text, words}]. With `sorts`, a click on
 * the name of a column sorts the rows by it. A long table scrolls, unless it is `whole`.
 */
function table(parent, caption, columns, rows, { sorts = false, whole = false } = {}) {
  const made = node("table");
  const heads = columns.map((column, at) => {
    const head = node("th", { scope: "col", ...(column.words ? { class: "words" } : {}) });
    if (!sorts) head.append(column.name);
    else {
      const button = node("button", { type: "button", class: "sorts" }, column.name);
      button.addEventListener("click", () => sortBy(at));
      head.append(button);
    }
    return head;
  });
  const body = node("tbody");
  made.append(node("thead", {}, node("tr", {}, ...heads)), body);
  const fillIn = (ordered) => body.replaceChildren(...ordered.map((row) => tableRow(columns, row)));
  fillIn(rows);
  let [by, falling] = [-1, false];
  function sortBy(at) {
    [by, falling] = [at, at === by ? !falling : typeof columns[at].of(rows[0] ?? {}) === "number"];
    heads.forEach((head, k) => {
      if (k === at) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const order = (a, b) => compared(columns[at].of(a), columns[at].of(b));
    fillIn([...rows].sort((a, b) => (falling ? order(b, a) : order(a, b))));
  }
  const look = whole ? "table-scroll whole" : "table-scroll";
  // The caption is outside the table, so that it does not scroll with the columns.
  parent.append(node("p", { class: "caption" }, caption));
  parent.append(node("div", { class: look, tabindex: "0", role: "region", "aria-label": caption }, made));
}

function tableRow(columns, row) {
  return node(
    "tr",
    {},
    ...columns.map((column, at) => {
      const value = column.of(row);
      const content = value === null || value === undefined ? "–" : (column.as ?? String)(value);
      const look = column.words ? { class: "words" } : {};
      return at ? node("td", look, content) : node("th", { scope: "row", title: content, ...look }, content);
    }),
  );
}

function compared(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

/** Add an element that a click unfolds, and return it; in print it is always unfolded. */
function folded(parent, title) {
  const made = node("details", { class: "folded" }, node("summary", {}, title));
  parent.append(made);
  return made;
}

/** Add lines of code or commands. */
function listing(parent, label, lines) {
  parent.append(node("pre", { tabindex: "0", role: "region", "aria-label": label }, node("code", {}, lines.join("\n"))));
}

/** Return the unit of an axis whose largest value is `most` bytes: its size and its name. */
function byteUnit(most) {
  return most >= 5e9 ? [1e9, "GB"] : most >= 5e6 ? [1e6, "MB"] : [1e3, "kB"];
}

function ratioText(value) {
  return value === null || value === undefined ? "–" : `${Number(value.toPrecision(3))}`;
}

/** Return date and time in UTC, so that the text does not depend on the reader's time zone. */
function dateText(value) {
  return value === null || value === undefined ? "–" : `${new Date(1000 * value).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function percentText(value) {
  return value === null || value === undefined ? UNKNOWN : percent(value);
}

function lossText(value) {
  return value === null || value === undefined ? UNKNOWN : plainNumber(value);
}

// ---- the mask itself

const SCALE_STEPS = 32; // colours in the legend of the pictures

/** Draw each masked tensor as a picture; a row is an output of the layer, and brighter blocks keep more. */
function maskPictures(parent, pictures) {
  const most = Math.max(...pictures.map((one) => one.most), 1e-9);
  const grid = node("div", { class: "pictures" });
  for (const one of pictures) {
    const shape = one.shape.join(" × ");
    const label = `${one.name}, ${shape}: kept share of ${one.rows} × ${one.columns} blocks, at most ${percent(one.most)}`;
    const canvas = node("canvas", { width: one.columns, height: one.rows, role: "img", "aria-label": label });
    paint(canvas, one, most);
    grid.append(node("figure", {}, canvas, node("figcaption", {}, one.name, node("small", {}, shape))));
  }
  parent.append(grid);
  const scale = node("canvas", { width: SCALE_STEPS, height: 1, class: "scale", "aria-hidden": "true" });
  const steps = Array.from({ length: SCALE_STEPS }, (_, k) => (255 * k) / (SCALE_STEPS - 1));
  paint(scale, { rows: 1, columns: SCALE_STEPS, most, values: steps }, most);
  parent.append(node("p", { class: "scale-line faint" }, "kept of a block: 0 ", scale, ` ${percent(most)}`));
}

function paint(canvas, one, most) {
  const values = one.values ?? Uint8Array.from(atob(one.data), (letter) => letter.charCodeAt(0));
  const context = canvas.getContext("2d");
  const image = context.createImageData(one.columns, one.rows);
  for (let at = 0; at < one.rows * one.columns; at += 1) {
    image.data.set(heat(((values[at] / 255) * one.most) / most), 4 * at);
  }
  context.putImageData(image, 0, 0);
}

// From dark blue through green to yellow. Lightness increases, so the order is visible in greyscale too.
const HEAT_COLOURS = [[17, 24, 64], [38, 70, 128], [30, 127, 128], [72, 176, 96], [170, 214, 62], [253, 240, 120]]; // prettier-ignore

function heat(share) {
  const along = Math.max(0, Math.min(1, share)) * (HEAT_COLOURS.length - 1);
  const at = Math.min(HEAT_COLOURS.length - 2, Math.floor(along));
  const mixed = HEAT_COLOURS[at].map((low, k) => low + (HEAT_COLOURS[at + 1][k] - low) * (along - at));
  return [...mixed, 255];
}
