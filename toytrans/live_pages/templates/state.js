// What the reader has chosen, and its form in the address of the page.
//
// A state is a plain object. The address says only what differs from the start, for example
// #run=-causal&pads=3&src=5.0.5&head=cross.1.2&step=3, so that a link leads to any state.

const PARTS = { encoder: "Encoder", decoder: "Decoder", cross: "Cross" };
const MOST_PADS = 6, MOST_SYMBOLS = 40;

// A switch of the page is one of model.js, or all three for pads.
const SWITCHES = {
  causal: { name: "causal mask", short: "causal", parts: ["causal"] },
  pad: { name: "pad mask", short: "pad", parts: ["encoderPads", "decoderPads", "crossPads"] },
  scale: { name: "scale", short: "scale", parts: ["scale"] },
  places: { name: "position codes", short: "places", parts: ["places"] },
};
const PADS_OF = { encoder: "encoderPads", decoder: "decoderPads", cross: "crossPads" };
const SWITCHED = Object.keys(EVERYTHING).filter((part) => part !== "headOff");

// source: symbols. answer: symbols, or null where it is not known. off: parts of model.js.
// headOff, and part, layer and head that are looked at: layers and heads count from 1.
// step: a place of the decoder. place: one of the source. key: the chosen cell's column, null = the
// heaviest of its row. at: the step of training whose weights run
function startingState() {
  const usual = Math.min(6, subject.about.train_length[1]);
  const { source, answer } = subject.pairs.find((pair) => pair.source.length === usual) || subject.pairs[0];
  return {
    source, answer, pads: 0, off: inOrder(subject.about.learned_without), headOff: "",
    part: "cross", layer: subject.about.model.n_decoder_layers, head: 1, step: 0, place: 0, key: null,
    at: subject.step, experiment: 0, isBig: false,
  };
}

// Parts of model.js in its order; what is none is left out
function inOrder(off) {
  return SWITCHED.filter((part) => [...off].includes(part));
}

function switchesOf({ off, headOff }) {
  return { ...EVERYTHING, ...Object.fromEntries(off.map((part) => [part, false])), headOff };
}

// The switches with which the model learned
function asLearned() {
  return switchesOf(startingState());
}

function isAsLearned({ off, headOff }) {
  return !headOff && off.join() === startingState().off.join();
}

// What is known of symbols ------------------------------------------------------------------------

function answerTo(source) {
  if (subject.answerOf) return subject.answerOf(source);
  const text = source.join(" ");
  return [...subject.pairs, ...subject.longer].find((pair) => pair.source.join(" ") === text)?.answer ?? null;
}

// What is wrong with typed symbols, in a sentence; empty if nothing is
function problemWith(symbols) {
  const unknown = symbols.find((symbol) => !subject.about.symbols.includes(symbol));
  if (unknown !== undefined) {
    const some = subject.about.symbols.slice(0, 12).map(printable).join(" ");
    const more = subject.about.symbols.length > 12 ? " ..." : "";
    const known = `It knows ${some}${more}, with blanks between.`;
    return `${printable(unknown)} is no symbol of this model. ${known}`;
  }
  const room = (subject.about.max_length ?? Infinity) - 2 - MOST_PADS, most = Math.min(MOST_SYMBOLS, room);
  if (symbols.length <= most) return "";
  return `${symbols.length} symbols are too many here; at most ${most}.`;
}

// Part, layer and head of "cross.2.1"; null if there is no such head
function headNamed(text) {
  const [part, layer, head] = (text || "").split(".");
  const depth = subject.about.model[part === "encoder" ? "n_encoder_layers" : "n_decoder_layers"];
  const isIn = (value, most) => /^\d+$/.test(value) && value >= 1 && value <= most;
  const isOne = Object.hasOwn(PARTS, part) && isIn(layer, depth) && isIn(head, subject.about.model.n_heads);
  return isOne ? [part, Number(layer), Number(head)] : null;
}

// To and from the address -------------------------------------------------------------------------

const NAMES = [
  "run", "pads", "src", "answer", "head", "off", "step", "place", "key", "at", "exp", "view",
];

function addressOf(state) {
  const start = startingState(), words = subject.chosen ? learnedWords(subject.chosen) : [];
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

// The state of an address. What it does not say, or says wrongly, is as at the start; words that
// mean nothing here are added to `unread`.
function readAddress(hash, unread = []) {
  const said = wordsOfAddress(hash);
  const start = startingState(), state = { ...start };
  const wordOfName = (name, isGood, usual) => {
    if (!said.has(name)) return usual;
    if (isGood(said.get(name))) return said.get(name);
    unread.push(`${name}=${said.get(name)}`);
    return usual;
  };
  const isNumber = (least, most) => (word) => /^\d+$/.test(word) && word >= least && word <= most;
  const number = (name, least, most, usual) => {
    const word = wordOfName(name, isNumber(least, most), null);
    return word === null ? usual : Number(word);
  };
  const symbols = (name) => {
    const word = wordOfName(name, symbolsOfWord, null);
    return word === null ? null : symbolsOfWord(word);
  };
  const source = symbols("src"), answer = symbols("answer");
  if (source) Object.assign(state, { source, answer: answer ?? answerTo(source) });
  const chosen = wordOfName("head", headNamed, null);
  if (chosen) [state.part, state.layer, state.head] = headNamed(chosen);
  const at = wordOfName("at", (word) => subject.steps.includes(Number(word)), state.at);
  const names = [...NAMES, ...(subject.chosen ? LEARNED_NAMES : [])];
  unread.push(...[...said.keys()].filter((name) => !names.includes(name)));
  return Object.assign(state, {
    off: offIn(said.get("run") ?? "", unread),
    headOff: wordOfName("off", headNamed, ""),
    pads: number("pads", 0, MOST_PADS, 0),
    step: number("step", 0, 999, 0),
    place: number("place", 0, 999, 0),
    key: number("key", 0, 999, null),
    at: Number(at),
    experiment: number("exp", 1, EXPERIMENTS.length, 1) - 1,
    isBig: wordOfName("view", (word) => word === "big", "") === "big",
  });
}

function wordsOfAddress(hash) {
  const words = hash.slice(1).split("&").filter(Boolean);
  return new Map(words.map((word) => [word.split("=")[0], word.slice(word.indexOf("=") + 1)]));
}

// What is off after "-causal+pad"
function offIn(signs, unread) {
  const off = new Set(startingState().off);
  for (const [word, sign, name] of signs.matchAll(/([+-])(\w+)/g)) {
    const parts = Object.hasOwn(SWITCHES, name) ? SWITCHES[name].parts : [name];
    if (!parts.every((part) => SWITCHED.includes(part))) unread.push(word);
    for (const part of parts) {
      if (sign === "-") off.add(part);
      else off.delete(part);
    }
  }
  return inOrder(off);
}
