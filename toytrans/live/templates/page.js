// The page: what the reader has chosen, what the model says to it, and how both are shown.
//
//     a choice -> state -> compute: the model runs -> show: every part of the page -> count, in slices
//
// Every number comes from Model. Weights may come from anywhere: modelAt gives the model of a step.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ABOUT = DATA.about;
const PAIRS = DATA.pairs.map(([source, answer, seen]) => ({ ...pairOf(source, answer), seen }));
const LONGER = DATA.longer.map(([source, answer]) => pairOf(source, answer));
const SHOWN = DATA.snapshots.find((each) => each.kind === "f4").step;
const PARTS = { encoder: "Encoder", decoder: "Decoder", cross: "Cross" };
const MOST_PADS = 6, MOST_SYMBOLS = 40;

// A switch of the page is one of model.js, or all three for pads.
const SWITCHES = {
  causal: { name: "causal mask", short: "causal", parts: ["causal"] },
  pad: { name: "pad mask", short: "pad", parts: ["encoderPads", "decoderPads", "crossPads"] },
  scale: { name: "scale", short: "scale", parts: ["scale"] },
  places: { name: "places", short: "places", parts: ["places"] },
};
const PADS_OF = { encoder: "encoderPads", decoder: "decoderPads", cross: "crossPads" };

const byId = (id) => document.getElementById(id);

function pairOf(source, answer) {
  return { source: symbolsIn(source), answer: symbolsIn(answer) };
}

function symbolsIn(text) {
  return text.trim() ? text.trim().split(/\s+/) : [];
}

// State -------------------------------------------------------------------------------------------

// What the reader has chosen. off: parts of model.js. step: a place of the decoder. place: one of
// the source. key: the chosen cell's column, null = the heaviest. at: the step of training.
function startingState() {
  const first = PAIRS.find((pair) => pair.source.length === Math.min(6, ABOUT.train_length[1])) || PAIRS[0];
  return {
    source: first.source, answer: first.answer, pads: 0, off: inOrder(ABOUT.learned_without), headOff: "",
    part: "cross", layer: ABOUT.model.n_decoder_layers, head: 1, step: 0, place: 0, key: null,
    at: SHOWN, experiment: 0, isBig: false,
  };
}

let state = startingState();

// Parts of model.js, without what is none, in its order
function inOrder(off) {
  return Object.keys(EVERYTHING).filter((part) => part !== "headOff" && [...off].includes(part));
}

function switchesOf({ off, headOff }) {
  return { ...EVERYTHING, ...Object.fromEntries(off.map((part) => [part, false])), headOff };
}

const AS_LEARNED = switchesOf(startingState());

// Change some of the state. Everything that follows from it is computed and shown.
function change(some) {
  state = { ...state, ...some };
  compute();
  show();
  count();
  writeAddress();
}

// Change what is looked at alone. Nothing is computed anew.
function look(some) {
  state = { ...state, ...some };
  showChosen();
  writeAddress();
}

function models() {
  const made = new Map();
  return (step) => {
    const { kind, weights } = DATA.snapshots.find((each) => each.step === step);
    if (!made.has(step)) made.set(step, new Model(ABOUT, unpacked(weights, kind, DATA.shapes)));
    return made.get(step);
  };
}

const modelAt = models();

// The address -------------------------------------------------------------------------------------

// Only what differs from the start, say #run=-causal&pads=3&src=5.0.5&head=cross.1.2&step=3
function addressOf(state) {
  const start = startingState(), words = [];
  const add = (name, value, usual) => value !== usual && words.push(`${name}=${value}`);
  const signs = Object.keys(EVERYTHING).filter((part) => part !== "headOff").map((part) => {
    const isOff = state.off.includes(part);
    return isOff === start.off.includes(part) ? "" : (isOff ? "-" : "+") + part;
  });
  const all = SWITCHES.pad.parts;
  add("run", signs.join("").replace(`-${all.join("-")}`, "-pad").replace(`+${all.join("+")}`, "+pad"), "");
  add("pads", state.pads, start.pads);
  add("src", wordsOf(state.source), wordsOf(start.source));
  if (wordsOf(state.source) !== wordsOf(start.source) && !isKnown(state)) {
    add("answer", state.answer && wordsOf(state.answer), null);
  }
  add("head", [state.part, state.layer, state.head].join("."), [start.part, start.layer, start.head].join("."));
  add("off", state.headOff, "");
  add("step", state.step, start.step);
  add("place", state.place, start.place);
  add("key", state.key, null);
  add("at", state.at, start.at);
  add("exp", state.experiment + 1, 1);
  add("view", state.isBig ? "big" : "", "");
  return words.length ? `#${words.join("&")}` : "";
}

function wordsOf(symbols) {
  return symbols.map((symbol) => encodeURIComponent(symbol).replaceAll(".", "%2E")).join(".");
}

function writeAddress() {
  if (location.protocol === "about:") return;  // in a cell of a notebook
  history.replaceState(null, "", location.pathname + location.search + addressOf(state));
}

// The state of an address. What it does not say, or says wrongly, stays as at the start.
function readAddress(hash) {
  const said = new Map(hash.slice(1).split("&").map((word) => word.split("=")));
  const start = startingState(), number = (name, least, most, usual) => {
    const value = Number(said.get(name) ?? NaN);
    return Number.isInteger(value) && value >= least && value <= most ? value : usual;
  };
  const symbols = (name) => {
    try {
      const found = said.get(name).split(".").filter(Boolean).map(decodeURIComponent);
      return problemWith(found) ? null : found;
    } catch {
      return null;
    }
  };
  const source = said.has("src") ? symbols("src") : null, off = new Set(start.off);
  for (const [, sign, name] of (said.get("run") || "").matchAll(/([+-])(\w+)/g)) {
    for (const part of Object.hasOwn(SWITCHES, name) ? SWITCHES[name].parts : [name]) {
      if (sign === "-") off.add(part);
      else off.delete(part);
    }
  }
  const [part, layer, head] = headNamed(said.get("head")) || [start.part, start.layer, start.head];
  return {
    ...start,
    ...(source ? { source, answer: symbols("answer") || answerTo(source) } : {}),
    off: inOrder(off), pads: number("pads", 0, MOST_PADS, 0), part, layer, head,
    headOff: headNamed(said.get("off")) ? said.get("off") : "",
    step: number("step", 0, 999, 0), place: number("place", 0, 999, 0), key: number("key", 0, 999, null),
    at: DATA.snapshots.some((each) => each.step === Number(said.get("at"))) ? Number(said.get("at")) : start.at,
    experiment: number("exp", 1, EXPERIMENTS.length, 1) - 1, isBig: said.get("view") === "big",
  };
}

// Part, layer and head of "cross.2.1"; null if there is no such head
function headNamed(text) {
  const [part, layer, head] = (text || "").split(".");
  const depth = ABOUT.model[part === "encoder" ? "n_encoder_layers" : "n_decoder_layers"];
  const isOne = Object.hasOwn(PARTS, part) && layer >= 1 && layer <= depth && head >= 1 && head <= ABOUT.model.n_heads;
  return isOne ? [part, Number(layer), Number(head)] : null;
}

function answerTo(source) {
  return [...PAIRS, ...LONGER].find((pair) => pair.source.join(" ") === source.join(" "))?.answer || null;
}

function isKnown({ source, answer }) {
  return answer !== null && answer.join(" ") === answerTo(source)?.join(" ");
}

// What is wrong with typed symbols, in a sentence; empty if nothing is
function problemWith(symbols) {
  const unknown = symbols.find((symbol) => !ABOUT.symbols.includes(symbol));
  const some = ABOUT.symbols.slice(0, 12).map(printable).join(" ") + (ABOUT.symbols.length > 12 ? " ..." : "");
  if (unknown !== undefined) return `${printable(unknown)} is no symbol of this model. It knows ${some}, with blanks between.`;
  const most = Math.min(MOST_SYMBOLS, (ABOUT.max_length ?? 99) - 2 - MOST_PADS);
  return symbols.length > most ? `${symbols.length} symbols are too many here; at most ${most}.` : "";
}

// What the model says -----------------------------------------------------------------------------

let now;  // what follows from the state: ids, passes, what is written

function compute() {
  const model = modelAt(state.at), switches = switchesOf(state), size = model.vocabularySize;
  const src = model.sourceIds(state.source, state.pads);
  const encoded = model.encode(src, switches);
  const alone = model.greedy(encoded, switches);
  const ids = (symbols) => symbols.map((symbol) => FIRST_SYMBOL + ABOUT.symbols.indexOf(symbol));
  const answer = state.answer && ids(state.answer);
  const read = answer || alone.map((step) => step.id).filter((id) => id !== EOS);
  const tgtIn = [BOS, ...read, ...Array(state.pads).fill(PAD)];
  const pass = { ...encoded, ...model.decode(tgtIn, encoded, switches) };
  const given = Array.from({ length: read.length + 1 }, (_, t) => {
    const logits = rowOf(pass.logits, t, size);
    return { id: likeliest(logits), logits };
  });
  const asLearned = model.forward(model.sourceIds(state.source), [BOS, ...read], AS_LEARNED);
  now = {
    model, switches, src, tgtIn, pass, alone, given, answer,
    labels: answer && [...answer, EOS],
    moved: largestDifference(pass.logits, asLearned.logits, given.length * size),
  };
  // what was chosen may not be there any more
  state.step = Math.min(state.step, Math.max(alone.length, given.length) - 1);
  state.place = Math.min(state.place, src.length - 1);
  if (state.key !== null) state.key = Math.min(state.key, axesOf(state.part).keys.length - 1);
}

function largestDifference(a, b, count) {
  let most = 0;
  for (let n = 0; n < count; n++) most = Math.max(most, Math.abs(a[n] - b[n]));
  return most;
}

// The ids of the queries and of the keys of an attention
function axesOf(part) {
  return {
    queries: part === "encoder" ? now.src : now.tgtIn,
    keys: part === "decoder" ? now.tgtIn : now.src,
  };
}

function attentionOf(part, layer) {
  return now.pass[part][layer - 1];
}

// The query that is looked at: a place of the source in the encoder, else the step of the decoder
function chosenQuery(part = state.part) {
  return part === "encoder" ? state.place : Math.min(state.step, now.tgtIn.length - 1);
}

function isAsLearned() {
  const start = startingState();
  return !state.headOff && state.off.join() === start.off.join();
}

// Counting ----------------------------------------------------------------------------------------

const counted = new Map();  // finished counts by what they were counted with
let counting = 0;

async function count() {
  const mine = ++counting, { model, switches } = now, { pads, at } = state;
  const key = JSON.stringify([at, pads, switches]);
  delete document.body.dataset.counted;
  let counts = counted.get(key);
  if (!counts) {
    await new Promise((resume) => setTimeout(resume, 50));  // what was changed is shown first
    if (mine !== counting) return;
    counts = await countRight(model, PAIRS, pads, switches, showCounts, () => mine === counting);
    if (!counts) return;
    counted.set(key, counts);
  }
  showCounts(counts);
  document.body.dataset.counted = `${counts.alone} ${counts.given} ${counts.all}`;
}

function showCounts(counts) {
  for (const way of ["alone", "given"]) {
    const right = counts[way], [low, high] = wilsonInterval(right, counts.done);
    setText(byId(`${way}-share`), percent(right / counts.done));
    setText(byId(`${way}-count`), `${right} of ${counts.done}; ${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)}%`);
  }
  const group = (name, { done, alone, given }) => done && `${done} ${name}: ${alone} alone, ${given} given.`;
  const groups = [group("never seen in training", counts.unseen), group("seen in training", counts.seen)];
  const how = counts.done < counts.all ? `Counting, ${counts.all} pairs in all. ` : "";
  setText(byId("counted"), how + groups.filter(Boolean).join(" "));
}

function percent(share) {
  const exact = 100 * share, whole = Math.round(exact);
  if ((whole === 100 && share < 1) || (whole === 0 && share > 0)) return `${exact.toFixed(1)}%`;
  return `${whole}%`;
}

// Showing -----------------------------------------------------------------------------------------

const NAMES = ["pad", "bos", "eos"];

function nameOf(id) {
  return id < FIRST_SYMBOL ? NAMES[id] : printable(ABOUT.symbols[id - FIRST_SYMBOL]);
}

function headingOf(id) {
  return { text: nameOf(id), kind: id === PAD ? "pad" : "" };
}

function show() {
  showLines();
  showRun();
  showSlider();
  showMasks();
  showHeads();
  showDecoding();
  showFate();
  showChosen();
  document.documentElement.classList.toggle("big", state.isBig);
  byId("big").setAttribute("aria-pressed", state.isBig);
}

// The source, and below it what the model writes alone and with the answer given
function showLines() {
  const { src, alone, given, labels } = now;
  const unlabelled = labels ? "" : " The answer is not known, so nothing is judged; type it to see what is right.";
  const line = (name, ids, chipOf, after = "") => element("div", { class: "line", "data-line": name },
    element("span", { class: "label" }, name), element("div", { class: "chips" }, ids.map(chipOf)),
    element("span", { class: "after" }, after));
  const outputs = (name, steps) => {
    const wanted = labels && name === "alone" ? Math.max(labels.length, steps.length) : steps.length;
    const ids = Array.from({ length: wanted }, (_, t) => steps[t]?.id);
    return line(name, ids, (id, t) => outputChip(name, id, t), verdictOf(name, ids));
  };
  byId("lines").replaceChildren(
    line("source", src, (id, place) => element("button", {
      type: "button", class: "chip", "data-kind": id < FIRST_SYMBOL ? NAMES[id] : "", "data-place": place, tabindex: -1,
      "aria-label": `source, place ${place}: ${nameOf(id)}`,
    }, nameOf(id)), lengthNote()),
    outputs("alone", alone), outputs("answer given", given),
  );
  setTabStop(chipRows(), chipRows()[1][0]);
  if (unlabelled) byId("lines").append(element("p", { class: "soft" }, unlabelled.trim()));
}

function chipRows() {
  return [...byId("lines").querySelectorAll(".line")].map((line) => [...line.querySelectorAll("button")]);
}

function outputChip(line, id, t) {
  const wanted = now.labels?.[t], isRight = id === wanted;
  const judged = now.labels ? (isRight ? "right" : "wrong") : "";
  const text = id === undefined ? "–" : nameOf(id);
  const should = judged === "wrong" ? (wanted === undefined ? "nothing" : nameOf(wanted)) : null;
  return element("button", {
    type: "button", class: `chip ${judged}`, "data-kind": id < FIRST_SYMBOL ? NAMES[id] : "", "data-step": t, tabindex: -1,
    "aria-label": `${line}, step ${t}: ${text}${judged && `, ${judged}`}${should ? `, the answer has ${should}` : ""}`,
  }, text, should && element("small", {}, should));
}

function verdictOf(line, ids) {
  if (!now.labels) return "";
  const wrong = ids.filter((id, t) => id !== now.labels[t]).length;
  return wrong ? `✗ ${wrong} of ${ids.length} wrong` : "✓ right";
}

function lengthNote() {
  const [low, high] = ABOUT.train_length, length = state.source.length;
  if (length > high) return `longer than it learned (${low} to ${high})`;
  return length < low ? `shorter than it learned (${low} to ${high})` : "";
}

function showRun() {
  for (const [name, { parts }] of Object.entries(SWITCHES)) {
    const on = parts.filter((part) => !state.off.includes(part)).length, box = byId(`switch-${name}`);
    box.checked = on === parts.length;
    box.indeterminate = on > 0 && on < parts.length;
  }
  setText(byId("pads"), String(state.pads));
  byId("fewer").disabled = state.pads === 0;
  byId("more").disabled = state.pads === MOST_PADS;
  byId("as-learned").disabled = isAsLearned() && state.pads === 0;
  setText(byId("status"), statusText());
  setText(byId("why"), whyText());
}

// What the model learned with, what it runs without, and how far its numbers have moved
function statusText() {
  const nameParts = (parts) => {
    const names = Object.values(SWITCHES).filter((each) => each.parts.every((part) => parts.includes(part))).map((each) => `the ${each.name}`);
    const some = SWITCHES.pad.parts.filter((part) => parts.includes(part));
    if (some.length && some.length < 3) names.push(some.map((part) => `the pad mask of the ${part.replace("Pads", "")}${part === "crossPads" ? " attention" : ""}`).join(" and "));
    return names.join(" and ");
  };
  const { learned_without: without } = ABOUT, learned = without.length ? `everything but ${nameParts(without)}` : "everything";
  const off = nameParts(state.off.filter((part) => !without.includes(part)));
  const back = nameParts(without.filter((part) => !state.off.includes(part)));
  const head = state.headOff && `head ${state.headOff.replaceAll(".", " ")}`;
  const runs = [[off, head].filter(Boolean).join(" and "), back].map((names, n) => names && `${n ? "with" : "without"} ${names}`).filter(Boolean);
  const first = `This model learned with ${learned}; it now runs ${runs.length ? runs.join(" and ") : "as it learned"}.`;
  if (!runs.length && !state.pads) return first;
  const by = now.moved ? `move by up to ${now.moved.toPrecision(2)}` : "stay equal to the last bit";
  return `${first} With the answer given, the scores of the next symbol (logits) ${by}.`;
}

function whyText() {
  if (state.off.includes("causal") && !ABOUT.learned_without.includes("causal")) {
    return "Writing alone, the model has no later symbols to read, so there is little for the causal mask to hide. With the answer given, every place now reads the very symbol that it must predict, which it has never learned to do. The mask is for learning all places in one pass: `toytrans train CONFIG --break no_causal` learns without it.";
  }
  if (SWITCHES.pad.parts.some((part) => state.off.includes(part)) && !state.pads) {
    return "There are no pads yet, so the pad mask has nothing to hide: add some.";
  }
  return isAsLearned() ? "" : "It was never trained this way: `toytrans train CONFIG --break FAULT` trains without a part, which is another experiment.";
}

// Masks -------------------------------------------------------------------------------------------

const LETTERS = {
  open: ["1", "open"], p: ["p", "closed: the key is a pad"], t: ["t", "closed: the key is a later place"],
  b: ["b", "closed: a pad and a later place"], q: ["q", "closed: the query is a pad"],
  wrong: ["!", "open, though the key is a pad or a later place"],
};

// Why a cell of a mask is as it is
function reasonOf(part, key, i, j, isOpen) {
  const isPad = key === PAD, isLater = part === "decoder" && j > i;
  if (isOpen) return isPad || isLater ? "wrong" : "open";
  const byPad = isPad && now.switches[PADS_OF[part]], byLater = isLater && now.switches.causal;
  if (byPad && byLater) return "b";
  return byPad ? "p" : byLater ? "t" : "q";
}

function showMasks() {
  for (const part of Object.keys(PARTS)) {
    const { queries, keys } = axesOf(part), { mask } = attentionOf(part, 1);
    maskGrids[part].show(queries.map(headingOf), keys.map(headingOf), (i, j) => {
      const kind = reasonOf(part, keys[j], i, j, mask.isOpen(i, j)), [text, why] = LETTERS[kind];
      return { text, kind, says: `${text}: query ${nameOf(queries[i])} at ${i}, key ${nameOf(keys[j])} at ${j}, ${why}` };
    });
    byId(`pads-of-${part}`).checked = !state.off.includes(PADS_OF[part]);
    const { pads, later } = leakOf(part), says = [];
    if (pads > 0) says.push(`${percent(pads)} on pads`);
    if (later > 0) says.push(`${percent(later)} on later places`);
    const leak = byId(`leak-${part}`);
    leak.classList.toggle("bad", says.length > 0);
    setText(leak, says.length
      ? `Of the attention of real tokens, ${says.join(" and ")}.`
      : `No real token reads a pad${part === "decoder" ? " or a later place" : ""}.`);
  }
  byId("causal-too").checked = !state.off.includes("causal");
}

// The mean share of attention that real queries give to pads and to later places
function leakOf(part) {
  const { queries, keys } = axesOf(part);
  let pads = 0, later = 0, rows = 0;
  for (const { weights } of now.pass[part]) {
    for (let head = 0; head < now.model.heads; head++) {
      queries.forEach((query, i) => {
        if (query === PAD) return;
        rows++;
        keys.forEach((key, j) => {
          const weight = weights[(head * queries.length + i) * keys.length + j];
          if (key === PAD) pads += weight;
          else if (part === "decoder" && j > i) later += weight;
        });
      });
    }
  }
  return { pads: pads / rows, later: later / rows };
}

// Heads -------------------------------------------------------------------------------------------

function showHeads() {
  const { part } = state, layers = now.pass[part].length;
  state.layer = Math.min(state.layer, layers);
  for (const tab of byId("part-tabs").children) {
    tab.setAttribute("aria-selected", tab.dataset.part === part);
    tab.tabIndex = tab.dataset.part === part ? 0 : -1;
  }
  const buttons = (part, layer) => Array.from({ length: now.model.heads }, (_, n) => headButton(part, layer, n + 1));
  byId("heads").replaceChildren(...Array.from({ length: layers }, (_, n) =>
    element("div", { class: "layer" }, element("span", { class: "soft" }, `layer ${n + 1}`), buttons(part, n + 1))));
  const last = now.pass.cross.length;
  byId("small-heads").replaceChildren(element("span", { class: "label" }, "cross heads"), ...buttons("cross", last));
  setTabStop(headRows("heads"), headRows("heads")[0][0]);
  setTabStop(headRows("small-heads"), headRows("small-heads")[0][0]);
}

function headRows(host) {
  const rows = host === "heads" ? [...byId(host).children] : [byId(host)];
  return rows.map((row) => [...row.querySelectorAll("button")]);
}

function headButton(part, layer, head) {
  const isOff = state.headOff === `${part}.${layer}.${head}`;
  return element("button", {
    type: "button", class: `head-button ${isOff ? "off" : ""}`, style: { "--colour": `rgb(${headColour(head - 1)})` },
    "data-head": `${part}.${layer}.${head}`, tabindex: -1,
    "aria-label": `${PARTS[part]} attention, layer ${layer}, head ${head}${isOff ? ", off" : ""}`,
  }, element("canvas", { "aria-hidden": "true" }), element("span", {}, isOff ? `${head} off` : `head ${head}`));
}

function paintHeads(query) {
  for (const button of document.querySelectorAll(".head-button")) {
    const [part, layer, head] = headNamed(button.dataset.head);
    const row = part === state.part ? query : chosenQuery(part);
    drawMap(button.firstChild, attentionOf(part, layer), head - 1, row);
    const isChosen = part === state.part && layer === state.layer && head === state.head;
    button.setAttribute("aria-pressed", isChosen);
  }
}

function showWeights() {
  const { part, layer, head } = state, { queries, keys } = axesOf(part), { mask, weights } = attentionOf(part, layer);
  const name = `${PARTS[part]} attention, layer ${layer}, head ${head}`;
  setText(byId("head-title"), `${name}: its weights`);
  byId("head-off").checked = state.headOff !== `${part}.${layer}.${head}`;
  setText(byId("head-off").nextSibling, byId("head-off").checked ? "this head is on" : "this head is off");
  weightGrid.label = `Weights, ${name}: queries down, keys across`;
  weightGrid.show(queries.map(headingOf), keys.map(headingOf), (i, j) => {
    const weight = weights[((head - 1) * queries.length + i) * keys.length + j], isOpen = mask.isOpen(i, j);
    const text = weight.toFixed(2).replace(/^0/, "");
    return {
      text: isOpen ? text : "", kind: isOpen ? "" : "shut", shade: shadeOf(headColour(head - 1), weight),
      says: `query ${nameOf(queries[i])} at ${i}, key ${nameOf(keys[j])} at ${j}: ${isOpen ? `weight ${weight.toFixed(3)}` : "closed"}`,
    };
  });
}

// What each head of the layer reads most at a query
function readingText(query) {
  const { part, layer } = state, { queries, keys } = axesOf(part), { weights } = attentionOf(part, layer);
  const reads = Array.from({ length: now.model.heads }, (_, head) => {
    const row = rowOf(weights, head * queries.length + query, keys.length), best = row.indexOf(Math.max(...row));
    return `head ${head + 1}: ${row[best] ? `${nameOf(keys[best])} at ${best} (${row[best].toFixed(2)})` : "nothing"}`;
  });
  const writes = part !== "encoder" && query < now.given.length ? ` and predicts ${nameOf(now.given[query].id)}` : "";
  return `Place ${query} holds ${nameOf(queries[query])}${writes}. In layer ${layer} it reads most, ${reads.join("; ")}.`;
}

// The arithmetic of the chosen cell, in a line; its vectors below
function showArithmetic(query) {
  const { part, layer, head } = state, attention = attentionOf(part, layer), { queries, keys } = axesOf(part);
  const row = rowOf(attention.weights, (head - 1) * queries.length + query, keys.length);
  const key = state.key ?? row.indexOf(Math.max(...row));
  const cell = now.model.cell(attention, head - 1, query, key, now.switches);
  const number = (value) => (Math.abs(value) < 1e-4 && value ? value.toExponential(1) : value.toFixed(3));
  const words = [`q·k = ${number(cell.product)}`];
  words.push(now.switches.scale ? `/ √${now.model.headWidth} → ${number(cell.scores)}` : "not scaled");
  if (ABOUT.model.score_cap) words.push(`cap ${ABOUT.model.score_cap} → ${number(cell.capped)}`);
  if (attention.bias) words.push(`+ ${number(cell.bias)} for the distance → ${number(cell.masked)}`);
  words.push(cell.isOpen ? "open" : "closed by the mask", `softmax → ${number(cell.weights)}`, `${number(cell.weights)} × v goes to the output`);
  const where = `${nameOf(queries[query])} at ${query} reads ${nameOf(keys[key])} at ${key}: `;
  setText(byId("sum"), where + words.join(", "));
  const vectors = Object.entries({ q: cell.q, k: cell.k, v: cell.v, "weights × v": cell.share });
  byId("vectors").replaceChildren(element("table", { class: "vectors" }, element("tbody", {}, vectors.map(([name, values]) =>
    element("tr", {}, element("th", { scope: "row" }, name), Array.from(values, (value) => element("td", {}, value.toFixed(3))))))));
  return key;
}

// Decoding ----------------------------------------------------------------------------------------

function showDecoding() {
  const { alone, given, tgtIn, labels } = now, places = Math.max(alone.length, given.length);
  const all = Array.from({ length: places }, (_, t) => t);
  const cell = (id, t, judged) => element("td", {
    class: id === undefined ? "none" : judged ? (id === labels?.[t] ? "right" : labels ? "wrong" : "") : "", "data-step": t,
  }, id === undefined ? "" : nameOf(id));
  const line = (name, idAt, judged) => element("tr", {}, element("th", { scope: "row" }, name), all.map((t) => cell(idAt(t), t, judged)));
  byId("places").replaceChildren(element("table", {}, element("caption", { class: "hidden" }, "The places of the decoder"),
    element("thead", {}, element("tr", {}, element("th", { scope: "row" }, "step"), all.map((t) => element("th", { scope: "col" }, String(t))))),
    element("tbody", {},
      line("reads", (t) => (t < given.length ? tgtIn[t] : undefined), false),
      line("answer given", (t) => given[t]?.id, true),
      line("answer", (t) => labels?.[t], false),
      line("alone", (t) => alone[t]?.id, true))));
}

function showStep() {
  const { step } = state, alone = now.alone[step], given = now.given[step], last = Math.max(now.alone.length, now.given.length) - 1;
  setText(byId("step-name"), `step ${step} of ${last}`);
  byId("first").disabled = byId("back").disabled = step === 0;
  byId("next").disabled = step === last;
  showBars(alone && softmax(alone.logits), given && softmax(given.logits), now.labels?.[step]);
  const same = sameText(step);
  byId("same").classList.toggle("bad", same.isApart);
  setText(byId("same"), same.text);
}

// Whether a row of the one pass is the step of decoding that has read the same tokens
function sameText(step) {
  const { alone, given, tgtIn } = now, read = [BOS, ...alone.map((each) => each.id)].slice(0, step + 1);
  if (!alone[step] || !given[step]) return { text: "One of the two has ended before this step.", isApart: false };
  if (read.join() !== tgtIn.slice(0, step + 1).join()) {
    return { text: "Alone, the model has read other symbols than the answer's by now.", isApart: false };
  }
  const apart = largestDifference(alone[step].logits, given[step].logits, alone[step].logits.length);
  const row = `Place ${step} of the one pass over the answer`;
  if (apart < 1e-9) {
    return { text: `${row} is step ${step} of writing alone: logits are ${apart ? `${apart.toExponential(0)} apart` : "equal to the last bit"}.`, isApart: false };
  }
  const why = now.switches.causal ? "pads" : "later places";
  return { text: `${row} is NOT step ${step} of writing alone: logits are ${apart.toPrecision(3)} apart, for the pass reads ${why}.`, isApart: true };
}

// Probabilities of the next symbol, and how training would pull: p - 1 at the answer, p elsewhere
function showBars(alone, given, label) {
  const by = alone || given;
  let ids = Array.from(by.keys()).filter((id) => id >= EOS);
  if (ids.length > 16) ids = ids.sort((a, b) => by[b] - by[a]).slice(0, 12);
  const bar = (share, kind) => share !== undefined && element("i", { class: `bar-${kind}`, style: { width: `${(100 * share).toFixed(2)}%` } });
  const pull = (id) => (label === undefined || !given ? "" : (given[id] - (id === label)).toFixed(3));
  byId("bars").replaceChildren(element("table", { class: "bars" },
    element("thead", {}, element("tr", {}, ["next", "probability", "alone", "given", "d loss / d logit"].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ids.map((id) => element("tr", { class: id === label ? "wanted" : "" },
      element("th", { scope: "row" }, nameOf(id)), element("td", { class: "both" }, bar(alone?.[id], "alone") || null, bar(given?.[id], "given") || null),
      element("td", {}, alone ? alone[id].toFixed(3) : ""), element("td", {}, given ? given[id].toFixed(3) : ""), element("td", {}, pull(id)))))));
}

// A symbol's fate ---------------------------------------------------------------------------------

// For each kept step of training, the probabilities at every place with the answer given
let fates = [];

function showFate() {
  byId("fate-card").hidden = DATA.snapshots.length < 2;
  if (DATA.snapshots.length < 2) return;
  fates = DATA.snapshots.map(({ step }) => {
    const model = modelAt(step), src = model.sourceIds(state.source, state.pads);
    const { logits } = model.forward(src, now.tgtIn, now.switches);
    return now.given.map((_, t) => softmax(rowOf(logits, t, model.vocabularySize)));
  });
}

function showFateOfStep() {
  if (DATA.snapshots.length < 2) return;
  const t = Math.min(state.step, now.given.length - 1), label = now.labels?.[t];
  const most = (id) => Math.max(...fates.map((places) => places[t][id]));
  const ids = Array.from(fates[0][t].keys()).filter((id) => id >= EOS).sort((a, b) => most(b) - most(a)).slice(0, 8);
  setText(byId("fate-text"), `The probability of each symbol at step ${t} with the answer given, after so many steps of training${label === undefined ? "" : `; the answer is ${nameOf(label)}`}. Click a column to run the model of that step.`);
  fateGrid.show(ids.map((id) => ({ text: nameOf(id), kind: id === label ? "wanted" : "" })), DATA.snapshots.map(({ step }) => ({ text: String(step) })), (row, column) => {
    const share = fates[column][t][ids[row]];
    return { text: share.toFixed(2).replace(/^0/, ""), shade: shadeOf(headColour(0), share), says: `step ${DATA.snapshots[column].step}: ${nameOf(ids[row])} ${share.toFixed(3)}` };
  });
  const at = DATA.snapshots.findIndex((each) => each.step === state.at);
  fateGrid.mark(Math.max(0, ids.indexOf(label)), at);
}

// What is looked at -------------------------------------------------------------------------------

// Show the chosen head, step and cell everywhere
function showChosen() {
  const query = chosenQuery();
  showWeights();
  paintHeads(query);
  const key = showArithmetic(query);
  weightGrid.mark(query, key);
  for (const part of Object.keys(PARTS)) maskGrids[part].mark(chosenQuery(part), part === state.part ? key : null);
  setText(byId("reading"), readingText(query));
  showStep();
  showFateOfStep();
  for (const chip of document.querySelectorAll("[data-step]")) chip.classList.toggle("here", Number(chip.dataset.step) === state.step);
  for (const chip of document.querySelectorAll("[data-place]")) chip.classList.toggle("here", state.part === "encoder" && Number(chip.dataset.place) === state.place);
  showFollow();
}

// A pointer over a cell previews its row; nothing is chosen by it
function preview(row) {
  const query = row ?? chosenQuery();
  weightGrid.mark(query, row === undefined ? state.key : null);
  setText(byId("reading"), readingText(query));
  paintHeads(query);
}

function choosePlace(part, query, key = null) {
  const where = part === "encoder" ? { place: query } : { step: query };
  const layer = part === state.part ? state.layer : now.pass[part].length;
  const isOther = part !== state.part;
  state = { ...state, part, layer, ...where, key };
  if (isOther) showHeads();
  look({});
}

// The answer again, at the top, once its card has left the screen
function showFollow() {
  const of = (name) => `${name} ${byId(`${name === "alone" ? "alone" : "given"}-share`).textContent}`;
  const chips = [...byId("lines").querySelectorAll('[data-line="alone"] .chip')].map((chip) =>
    element("span", { class: chip.className, "data-kind": chip.dataset.kind }, chip.firstChild.textContent));
  byId("follow").replaceChildren(element("span", { class: "soft" }, "alone"), ...chips, element("b", {}, `${of("alone")}, ${of("given")}`));
}

// Experiments -------------------------------------------------------------------------------------

// Sentences whose underlined words throw a switch. They promise nothing: the numbers answer.
const EXPERIMENTS = [
  {
    says: [["Give it a longer source", () => takeLonger()], " than it has learned. At which place is the first wrong symbol?"],
    asks: ["place"],
  },
  {
    says: ["Add ", ["3 pads", () => change({ ...asLearned(), pads: 3 })], ": does anything change? Then ", ["run without the pad mask", () => change({ off: without("pad"), pads: Math.max(state.pads, 3) })], ". How many stay right alone?"],
    asks: ["alone"],
  },
  {
    says: [["Run without the causal mask", () => change({ ...asLearned(), off: without("causal"), part: "decoder", layer: ABOUT.model.n_decoder_layers })], ". How many stay right alone, and how many with the answer given?"],
    asks: ["alone", "given"],
  },
  {
    says: [["Run without places", () => change({ ...asLearned(), off: without("places") })], ". Which answers can still come out? And how many ", ["without the scale", () => change({ ...asLearned(), off: without("scale") })], "?"],
    asks: ["places", "scale"],
  },
  {
    says: ["Choose a head below and ", ["switch it off", () => change({ headOff: `${state.part}.${state.layer}.${state.head}` })], ". Which one can the model do least without?"],
    asks: ["head"],
  },
];

function asLearned() {
  const { off, headOff, pads } = startingState();
  return { off, headOff, pads };
}

function without(name) {
  return inOrder([...startingState().off, ...SWITCHES[name].parts]);
}

const guesses = new Map();  // until the tab is closed

function showExperiment() {
  const { says, asks } = EXPERIMENTS[state.experiment];
  setText(byId("try-number"), `${state.experiment + 1} of ${EXPERIMENTS.length}`);
  byId("try-text").replaceChildren(...says.map((word) => (typeof word === "string" ? word
    : element("button", { type: "button", class: "do", onclick: word[1] }, word[0]))));
  byId("guesses").replaceChildren(...asks.map((name) => {
    const key = `${state.experiment} ${name}`;
    const unit = ["alone", "given", "places", "scale"].includes(name) ? "%" : "";
    return element("label", {}, `your guess, ${name}`, element("span", {}, element("input", {
      type: "text", inputmode: unit ? "numeric" : "text", value: guesses.get(key) || "", autocomplete: "off",
      oninput: (event) => guesses.set(key, event.target.value),
    }), unit));
  }));
}

function takeLonger() {
  if (!LONGER.length) return;
  const { source, answer } = LONGER[(LONGER.findIndex((pair) => pair.source.join(" ") === state.source.join(" ")) + 1) % LONGER.length];
  fill(source, answer);
}

function takeAnother() {
  const at = PAIRS.findIndex((pair) => pair.source.join(" ") === state.source.join(" "));
  const { source, answer } = PAIRS[(at + 1) % PAIRS.length];
  fill(source, answer);
}

// Take a source, with its answer or null, as if it had been typed
function fill(source, answer) {
  byId("source").value = source.join(" ");
  byId("answer").value = answer ? answer.join(" ") : "";
  setText(byId("error"), "");
  change({ source, answer, step: 0, place: 0, key: null });
}

// Doing -------------------------------------------------------------------------------------------

function readFields(event) {
  const source = symbolsIn(byId("source").value);
  if (event.target.id === "source") byId("answer").value = (answerTo(source) || []).join(" ");
  const answer = byId("answer").value.trim() ? symbolsIn(byId("answer").value) : null;
  const problem = problemWith(source) || problemWith(answer || []);
  setText(byId("error"), problem);
  byId("lines").classList.toggle("stale", problem !== "");
  if (!problem) change({ source, answer: answer ?? answerTo(source), key: null });
}

function toggle(parts, isOn) {
  const off = state.off.filter((part) => !parts.includes(part));
  change({ off: inOrder(isOn ? off : [...off, ...parts]) });
}

let playing = null;

// Do something again and again until it says that it is done
function play(button, every, next) {
  const stop = () => {
    clearInterval(playing?.timer);
    playing?.button.setAttribute("aria-pressed", "false");
    const was = playing?.button;
    playing = null;
    return was;
  };
  if (stop() === button) return;
  button.setAttribute("aria-pressed", "true");
  playing = { button, timer: setInterval(() => next() || stop(), every) };
}

const maskGrids = {};
let weightGrid, fateGrid;

function build() {
  setText(byId("title"), `${ABOUT.task}: ${ABOUT.rule || "pairs of files"}`);
  const { model, train_length: [low, high] } = ABOUT;
  setText(byId("sub"), `Run ${printable(ABOUT.run)}, seed ${ABOUT.seed}, step ${SHOWN}. It learned sources of ${low} to ${high} symbols. ${ABOUT.parameters.toLocaleString("en")} numbers: width ${model.d_model}, ${model.n_heads} heads, ${model.n_encoder_layers} + ${model.n_decoder_layers} layers, ${model.positions} positions, ${model.norm}-norm.`);
  buildSwitches();
  buildMasks();
  buildTabs();
  buildTraining();
  weightGrid = new Grid(byId("weights"), "", "weights", (row, column) => choosePlace(state.part, row, column), preview);
  fateGrid = new Grid(byId("fate"), "The probability of symbols over training", "weights fate", (row, column) => change({ at: DATA.snapshots[column].step }));
  byId("longer").disabled = !LONGER.length;
  setText(byId("facts"), `Everything runs in this page; nothing is loaded, sent or kept. Decoding applies the model to the whole prefix at each step; under the causal mask earlier rows cannot change, so they are kept. Counted are the first ${PAIRS.length} validation pairs, as \`toytrans eval RUN --split valid --examples 500\` does. Made by toytrans ${ABOUT.toytrans}.`);
}

function buildSwitches() {
  byId("switches").append(...Object.entries(SWITCHES).map(([name, { name: long, short, parts }]) => element("label", { class: "switch" },
    element("input", { type: "checkbox", role: "switch", id: `switch-${name}`, "aria-label": long, oninput: (event) => toggle(parts, event.target.checked) }),
    element("span", { class: "long", "aria-hidden": "true" }, long), element("span", { class: "short", "aria-hidden": "true" }, short))));
  if (ABOUT.model.positions === "none") byId("switch-places").disabled = true;
}

function buildMasks() {
  for (const [part, name] of Object.entries(PARTS)) {
    const check = (id, text, parts) => element("label", { class: "check" }, element("input", {
      type: "checkbox", role: "switch", id, "aria-label": `${name} mask: ${text}`, oninput: (event) => toggle(parts, event.target.checked),
    }), text);
    const host = element("div", { class: "grid-host" });
    byId("masks").append(element("section", { class: "card mask-card", "data-part": part, "aria-label": `${name} mask` },
      element("div", { class: "head" }, element("h3", {}, `${name} mask`), element("div", { class: "checks" },
        check(`pads-of-${part}`, "hides pads", [PADS_OF[part]]), part === "decoder" ? check("causal-too", "hides later", ["causal"]) : null)),
      host, element("p", { class: "leak", id: `leak-${part}` })));
    maskGrids[part] = new Grid(host, `${name} mask: queries down, keys across`, "mask", (row, column) => choosePlace(part, row, column));
  }
  const meanings = { open: "may read", p: "pad", t: "later place", b: "both", wrong: "open, though a pad or a later place" };
  byId("legend").append(...Object.entries(meanings).map(([kind, text]) => element("span", {}, element("i", { "data-kind": kind, "aria-hidden": "true" }, LETTERS[kind][0]), text)),
    element("span", {}, "Queries down, keys across. bos begins a target, eos ends a sequence."));
}

function tabList(host, names, choose, chosen) {
  host.append(...Object.entries(names).map(([part, name]) => element("button", {
    type: "button", role: "tab", "data-part": part, "aria-selected": String(part === chosen), tabindex: part === chosen ? 0 : -1, onclick: () => choose(part),
  }, name)));
  roving(host, () => [[...host.children]], (tab) => tab.click());
}

function buildTabs() {
  tabList(byId("part-tabs"), PARTS, (part) => choosePlace(part, chosenQuery(part)), state.part);
  const showOnly = (part) => {
    for (const each of byId("masks").children) each.classList.toggle("chosen", each.dataset.part === part);
    for (const tab of byId("mask-tabs").children) tab.setAttribute("aria-selected", tab.dataset.part === part);
    if (now) showMasks();  // what was hidden had no width
  };
  tabList(byId("mask-tabs"), PARTS, showOnly, "decoder");
  showOnly("decoder");
}

// The curve of the loss, and a slider over the steps whose weights the page has
function buildTraining() {
  const steps = DATA.snapshots.map((each) => each.step), parts = [];
  if (DATA.curve.length > 1) {
    const svg = svgElement("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", "aria-label": `Training loss from ${DATA.curve[0][1].toFixed(2)} at step ${DATA.curve[0][0]} to ${DATA.curve.at(-1)[1].toFixed(2)} at step ${DATA.curve.at(-1)[0]}` },
      svgElement("polyline", { points: curveOf(DATA.curve), fill: "none", stroke: "currentColor", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" }));
    const [first, last] = [DATA.curve[0], DATA.curve.at(-1)];
    parts.push(element("figure", {}, svg, element("figcaption", { class: "soft" }, `loss while it learned: ${first[1].toFixed(2)} at step ${first[0]}, ${last[1].toFixed(2)} at step ${last[0]}`)));
  }
  if (steps.length > 1) {
    const slider = element("input", { type: "range", id: "at", min: 0, max: steps.length - 1, step: 1, "aria-label": "Step of training whose weights run", oninput: () => change({ at: steps[slider.value] }) });
    const again = () => {
      const next = steps.indexOf(state.at) + 1;
      if (next < steps.length) change({ at: steps[next] });
      return next + 1 < steps.length;
    };
    const button = element("button", { type: "button", id: "play-training", "aria-pressed": "false", onclick: () => {
      if (state.at === steps.at(-1)) change({ at: steps[0] });
      play(button, 700, again);
    } }, "Play");
    parts.push(element("div", { class: "slider" }, slider, element("output", { id: "at-step", for: "at" }), button));
  }
  byId("training").replaceChildren(...parts);
}

function showSlider() {
  const slider = byId("at");
  if (!slider) return;
  slider.value = DATA.snapshots.findIndex((each) => each.step === state.at);
  slider.setAttribute("aria-valuetext", `step ${state.at}`);
  setText(byId("at-step"), `step ${state.at}`);
}

function listen() {
  for (const id of ["source", "answer"]) byId(id).addEventListener("input", readFields);
  byId("another").addEventListener("click", takeAnother);
  byId("longer").addEventListener("click", takeLonger);
  byId("fewer").addEventListener("click", () => change({ pads: state.pads - 1 }));
  byId("more").addEventListener("click", () => change({ pads: state.pads + 1 }));
  byId("as-learned").addEventListener("click", () => change(asLearned()));
  byId("lines").addEventListener("click", (event) => chooseChip(event.target.closest(".chip")));
  roving(byId("lines"), chipRows, chooseChip);
  byId("places").addEventListener("click", (event) => event.target.dataset.step && look({ step: Number(event.target.dataset.step), key: null }));
  for (const host of ["heads", "small-heads"]) {
    byId(host).addEventListener("click", (event) => chooseHead(event.target.closest(".head-button")));
    roving(byId(host), () => headRows(host));
  }
  byId("head-off").addEventListener("input", (event) => change({ headOff: event.target.checked ? "" : `${state.part}.${state.layer}.${state.head}` }));
  const go = (step) => look({ step, key: null });
  const last = () => Math.max(now.alone.length, now.given.length) - 1;
  byId("first").addEventListener("click", () => go(0));
  byId("back").addEventListener("click", () => go(Math.max(0, state.step - 1)));
  byId("next").addEventListener("click", () => go(Math.min(last(), state.step + 1)));
  byId("play").addEventListener("click", () => {
    if (state.step === last()) go(0);
    play(byId("play"), 700, () => { go(Math.min(last(), state.step + 1)); return state.step < last(); });
  });
  byId("try-next").addEventListener("click", () => { look({ experiment: (state.experiment + 1) % EXPERIMENTS.length }); showExperiment(); });
  byId("big").addEventListener("click", () => change({ isBig: !state.isBig }));
  byId("link").addEventListener("click", copyLink);
  byId("check-again").addEventListener("click", prove);
  window.addEventListener("hashchange", () => { state = readAddress(location.hash); start(); });
  let resized;
  window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(show, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showChosen);
  new IntersectionObserver(([entry]) => { byId("follow").hidden = entry.isIntersecting || entry.boundingClientRect.top > 0; }).observe(byId("lines"));
}

function chooseChip(chip) {
  if (!chip) return;
  if (chip.dataset.step !== undefined) look({ step: Number(chip.dataset.step), key: null });
  else choosePlace("encoder", Number(chip.dataset.place));
}

function chooseHead(button) {
  if (!button) return;
  const [part, layer, head] = headNamed(button.dataset.head), isOther = part !== state.part;
  state = { ...state, part, layer, head, key: null };
  if (isOther) showHeads();
  look({});
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    setText(byId("link"), "Copied");
  } catch {
    setText(byId("link"), "See the address");
  }
  setTimeout(() => setText(byId("link"), "Copy link"), 1500);
}

// Compare with what PyTorch said of a padded batch, in this very browser
function prove() {
  const model = modelAt(SHOWN);
  const apart = Math.max(...DATA.proof.map(({ src, tgtIn, logits }) =>
    largestDifference(model.forward(src, tgtIn, AS_LEARNED).logits, logits, logits.length)));
  const isSound = apart < 1e-6, box = byId("proof");
  box.classList.toggle("bad", !isSound);
  document.body.dataset.proof = isSound ? "sound" : "unsound";
  box.textContent = isSound
    ? `Checked in this browser: on a padded batch of ${DATA.proof.length} pairs the logits are those of PyTorch, at most ${apart.toExponential(0)} apart.`
    : `This browser computes other numbers than PyTorch: logits are ${apart} apart. Do not trust this page.`;
}

function start() {
  byId("source").value = state.source.join(" ");
  byId("answer").value = state.answer ? state.answer.join(" ") : "";
  showExperiment();
  change({});
}

build();
state = readAddress(location.hash);
listen();
start();
prove();
document.body.dataset.ready = "yes";
