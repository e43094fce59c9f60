// What the reader has chosen, and its form in the address of the page.
//
// A state is a plain object. The address says only what differs from the start, for example
// #run=-causal&pads=3&src=5.0.5&head=cross.1.2&step=3, so that a link leads to any state.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ABOUT = DATA.about;
const PAIRS = DATA.pairs.map(([source, answer, seen]) => ({ ...pairOf(source, answer), seen }));
const LONGER = DATA.longer.map(([source, answer]) => pairOf(source, answer));
const STEPS = DATA.snapshots.map((snapshot) => snapshot.step);  // of training, in ascending order
const SHOWN = DATA.snapshots.find((snapshot) => snapshot.kind === "f4").step;
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
const SWITCHED = Object.keys(EVERYTHING).filter((part) => part !== "headOff");

function pairOf(source, answer) {
  return { source: symbolsIn(source), answer: symbolsIn(answer) };
}

function symbolsIn(text) {
  return text.trim() ? text.trim().split(/\s+/) : [];
}

// source: symbols. answer: symbols, or null where it is not known. off: parts of model.js.
// headOff, and part, layer and head that are looked at: layers and heads count from 1.
// step: a place of the decoder. place: one of the source. key: the chosen cell's column, null = the
// heaviest of its row. at: the step of training whose weights run
function startingState() {
  const usual = Math.min(6, ABOUT.train_length[1]);
  const { source, answer } = PAIRS.find((pair) => pair.source.length === usual) || PAIRS[0];
  return {
    source, answer, pads: 0, off: inOrder(ABOUT.learned_without), headOff: "",
    part: "cross", layer: ABOUT.model.n_decoder_layers, head: 1, step: 0, place: 0, key: null,
    at: SHOWN, experiment: 0, isBig: false,
  };
}

// Parts of model.js in its order; what is none is left out
function inOrder(off) {
  return SWITCHED.filter((part) => [...off].includes(part));
}

function switchesOf({ off, headOff }) {
  return { ...EVERYTHING, ...Object.fromEntries(off.map((part) => [part, false])), headOff };
}

function isAsLearned({ off, headOff }) {
  return !headOff && off.join() === startingState().off.join();
}

// What is known of symbols ------------------------------------------------------------------------

function answerTo(source) {
  const text = source.join(" ");
  return [...PAIRS, ...LONGER].find((pair) => pair.source.join(" ") === text)?.answer ?? null;
}

// What is wrong with typed symbols, in a sentence; empty if nothing is
function problemWith(symbols) {
  const unknown = symbols.find((symbol) => !ABOUT.symbols.includes(symbol));
  if (unknown !== undefined) {
    const some = ABOUT.symbols.slice(0, 12).map(printable).join(" ");
    const more = ABOUT.symbols.length > 12 ? " ..." : "";
    const known = `It knows ${some}${more}, with blanks between.`;
    return `${printable(unknown)} is no symbol of this model. ${known}`;
  }
  const room = (ABOUT.max_length ?? Infinity) - 2 - MOST_PADS, most = Math.min(MOST_SYMBOLS, room);
  if (symbols.length <= most) return "";
  return `${symbols.length} symbols are too many here; at most ${most}.`;
}

// Part, layer and head of "cross.2.1"; null if there is no such head
function headNamed(text) {
  const [part, layer, head] = (text || "").split(".");
  const depth = ABOUT.model[part === "encoder" ? "n_encoder_layers" : "n_decoder_layers"];
  const isIn = (value, most) => /^\d+$/.test(value) && value >= 1 && value <= most;
  const isOne = Object.hasOwn(PARTS, part) && isIn(layer, depth) && isIn(head, ABOUT.model.n_heads);
  return isOne ? [part, Number(layer), Number(head)] : null;
}

// To and from the address -------------------------------------------------------------------------

function addressOf(state) {
  const start = startingState(), words = [];
  const add = (name, value, usual) => {
    if (value !== usual) words.push(`${name}=${value}`);
  };
  add("run", signsOf(state.off, start.off), "");
  add("pads", state.pads, start.pads);
  add("src", wordOf(state.source), wordOf(start.source));
  const isKnown = String(state.answer) === String(answerTo(state.source));
  add("answer", isKnown || !state.answer ? null : wordOf(state.answer), null);
  add("head", `${state.part}.${state.layer}.${state.head}`, `${start.part}.${start.layer}.1`);
  add("off", state.headOff, "");
  add("step", state.step, start.step);
  add("place", state.place, start.place);
  add("key", state.key, null);
  add("at", state.at, start.at);
  add("exp", state.experiment + 1, 1);
  add("view", state.isBig ? "big" : "", "");
  return words.length ? `#${words.join("&")}` : "";
}

// "-causal-pad" for what is off beside what is at the start, "+" for what is on
function signsOf(off, usual) {
  const signs = SWITCHED.map((part) => {
    const isOff = off.includes(part);
    return isOff === usual.includes(part) ? "" : `${isOff ? "-" : "+"}${part}`;
  });
  const pads = SWITCHES.pad.parts;
  return ["-", "+"].reduce(
    (text, sign) => text.replace(pads.map((part) => sign + part).join(""), `${sign}pad`),
    signs.join(""),
  );
}

function wordOf(symbols) {
  return symbols.map((symbol) => encodeURIComponent(symbol).replaceAll(".", "%2E")).join(".");
}

// Symbols of a word; null if it is none, or names symbols that the model does not know
function symbolsOfWord(word) {
  try {
    const symbols = word.split(".").filter(Boolean).map(decodeURIComponent);
    return problemWith(symbols) ? null : symbols;
  } catch {
    return null;
  }
}

// The state of an address. What it does not say, or says wrongly, is as at the start.
function readAddress(hash) {
  const said = new Map(hash.slice(1).split("&").map((word) => word.split("=")));
  const start = startingState(), state = { ...start };
  const number = (name, least, most, usual) => {
    const word = said.get(name) ?? "", value = Number(word);
    return /^\d+$/.test(word) && value >= least && value <= most ? value : usual;
  };
  const source = said.has("src") ? symbolsOfWord(said.get("src")) : null;
  if (source) {
    const answer = said.has("answer") ? symbolsOfWord(said.get("answer")) : null;
    Object.assign(state, { source, answer: answer ?? answerTo(source) });
  }
  const off = new Set(start.off);
  for (const [, sign, name] of (said.get("run") ?? "").matchAll(/([+-])(\w+)/g)) {
    for (const part of Object.hasOwn(SWITCHES, name) ? SWITCHES[name].parts : [name]) {
      if (sign === "-") off.add(part);
      else off.delete(part);
    }
  }
  const chosen = headNamed(said.get("head"));
  if (chosen) [state.part, state.layer, state.head] = chosen;
  return Object.assign(state, {
    off: inOrder(off),
    headOff: headNamed(said.get("off")) ? said.get("off") : "",
    pads: number("pads", 0, MOST_PADS, 0),
    step: number("step", 0, 999, 0),
    place: number("place", 0, 999, 0),
    key: number("key", 0, 999, null),
    at: STEPS.includes(number("at", 0, Infinity, SHOWN)) ? number("at", 0, Infinity, SHOWN) : SHOWN,
    experiment: number("exp", 1, EXPERIMENTS.length, 1) - 1,
    isBig: said.get("view") === "big",
  });
}
