// Elements, grids of cells and maps of heads: how the page draws, whatever it draws.

// Text is only ever put in as text, so that no symbol can be taken for markup.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [property, to] of Object.entries(value)) made.style.setProperty(property, to);
    }
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

function svgElement(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Control characters of a symbol, shown as codes
function printable(text) {
  const codeOf = (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`;
  return text.replace(/[\p{C}\u2028\u2029]/gu, codeOf);
}

// Colours of weights: each head has its own, and a weight is a shade of it.

const HEAD_COLOURS = [
  [0, 114, 178], [194, 80, 10], [0, 128, 90], [168, 68, 126],
  [138, 106, 0], [47, 127, 181], [122, 81, 149], [92, 107, 0],
];

function headColour(head) {
  return HEAD_COLOURS[head % HEAD_COLOURS.length];
}

const PREFERS_STILLNESS = matchMedia("(prefers-reduced-motion: reduce)");
const DARK = matchMedia("(prefers-color-scheme: dark)");

// [red, green, blue] of a weight from 0 to 1
function shadeOf(colour, weight) {
  const isDark = DARK.matches, paper = isDark ? 48 : 236;
  return colour.map((value) => {
    const full = isDark ? (value + 255) / 2 : value;
    return Math.round(paper + (full - paper) * weight);
  });
}

// Black or white, whichever can be read on a shade: one of the two always has a contrast of 4.5
function inkOn(shade) {
  const [red, green, blue] = shade.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

// One stop of the Tab key for a group of elements, in rows; arrows, Home and End move in it.
// rows: a function that gives them. moved(element): called when a key has moved to one
function roving(host, rows, moved = () => {}) {
  host.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const ends = { Home: 0, End: Infinity };
    if (!(event.key in steps) && !(event.key in ends)) return;
    const all = rows(), i = all.findIndex((row) => row.includes(event.target));
    if (i < 0) return;
    event.preventDefault();
    const [down, right] = steps[event.key] || [0, 0];
    const row = all[Math.min(Math.max(i + down, 0), all.length - 1)];
    const j = event.key in ends ? ends[event.key] : all[i].indexOf(event.target) + right;
    const next = row[Math.min(Math.max(j, 0), row.length - 1)];
    setTabStop(all, next);
    next.focus();
    moved(next);
  });
}

function setTabStop(rows, chosen) {
  for (const each of rows.flat()) each.tabIndex = each === chosen ? 0 : -1;
}

// A table of cells with queries down and keys across. Cells are changed in place as long as the
// shape stays, because to make a table anew takes most of the time of a change.
class Grid {
  // label: what the whole is called. act(row, column): a cell was clicked, or reached by a key.
  // look(row, column): a pointer is on a cell; without arguments it has left
  constructor(host, label, kind, act, look = () => {}) {
    this.host = host;
    this.label = label;
    this.kind = kind;
    this.act = act;
    this.cells = [];
    this.table = null;
    const place = (target) => {
      const cell = target.closest("td[data-column]");
      return cell && [Number(cell.dataset.row), Number(cell.dataset.column)];
    };
    const at = (act) => (event) => {
      const found = place(event.target);
      if (found) act(...found);
    };
    host.addEventListener("click", at(act));
    host.addEventListener("pointerover", at(look));
    host.addEventListener("pointerleave", () => look());
    roving(host, () => this.cells, (cell) => act(...place(cell)));
  }

  // rows, columns: { text, kind } of each heading. cell(row, column): { text, kind, says, shade }
  show(rows, columns, cell) {
    if (this.cells.length !== rows.length || (this.cells[0] || []).length !== columns.length) {
      this.build(rows.length, columns.length);
    }
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const room = this.host.clientWidth / rem - 3.4;  // beside the headings of rows
    const size = Math.max(0.8, Math.min(2, room / columns.length - 0.12));
    this.table.style.setProperty("--cell", `${size.toFixed(2)}rem`);
    this.table.classList.toggle("tight", size < 1.6);
    this.table.setAttribute("aria-label", this.label);
    columns.forEach((heading, j) => this.dress(this.columnHeads[j], heading));
    rows.forEach((heading, i) => {
      this.dress(this.rowHeads[i], heading);
      columns.forEach((_, j) => this.dress(this.cells[i][j], cell(i, j)));
    });
  }

  build(rows, columns) {
    this.columnHeads = Array.from({ length: columns }, () => element("th", { scope: "col" }));
    this.rowHeads = Array.from({ length: rows }, () => element("th", { scope: "row" }));
    const cellAt = (row, column) => element("td",
      { "data-row": row, "data-column": column, tabindex: row + column ? -1 : 0 });
    this.cells = Array.from({ length: rows }, (_, row) =>
      Array.from({ length: columns }, (_, column) => cellAt(row, column)));
    const body = this.cells.map((cells, row) => element("tr", {}, this.rowHeads[row], cells));
    this.table = element("table", { class: `grid ${this.kind}`, role: "grid" },
      element("thead", {}, element("tr", {}, element("td"), this.columnHeads)),
      element("tbody", {}, body));
    this.host.replaceChildren(this.table);
  }

  dress(node, { text, kind = "", says = "", shade = null }) {
    setText(node, text);
    if (node.dataset.kind !== kind) node.dataset.kind = kind;
    if (says && node.getAttribute("aria-label") !== says) node.setAttribute("aria-label", says);
    if (shade) {
      node.style.setProperty("--shade", `rgb(${shade})`);
      node.style.setProperty("--on-shade", inkOn(shade));
    }
  }

  // Mark a row, and one of its cells
  mark(row, column = null) {
    this.cells.forEach((cells, i) => {
      cells[0].parentElement.classList.toggle("here", i === row);
      cells.forEach((cell, j) => cell.classList.toggle("picked", i === row && j === column));
    });
    const chosen = this.cells[row]?.[column ?? 0];
    if (chosen) setTabStop(this.cells, chosen);
  }
}

// The weights of one head as a small picture, a pixel each; other rows than `row` are paler, and
// what the mask closes is empty
function drawMap(canvas, attention, head, row) {
  const { rows, keys } = attention.mask;
  canvas.width = keys;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(keys, rows);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < keys; j++) {
      if (!attention.mask.isOpen(i, j)) continue;
      const weight = attention.weights[(head * rows + i) * keys + j] ** 0.7;
      const shade = shadeOf(headColour(head), weight * (row === i ? 1 : 0.65));
      image.data.set([...shade, 255], 4 * (i * keys + j));
    }
  }
  context.putImageData(image, 0, 0);
}

// A curve of points [x, y] in a box of 100 by 30, the highest y at its top
function curveOf(points) {
  const first = points[0][0], width = points.at(-1)[0] - first || 1;
  const highest = Math.max(...points.map(([, y]) => y));
  const placed = points.map(([x, y]) => [100 * (x - first) / width, 29 - 28 * y / highest]);
  return placed.map((place) => place.map((number) => number.toFixed(2)).join()).join(" ");
}
