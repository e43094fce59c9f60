// The page: what the reader has chosen, what the model says to it, and how both follow each other.
//
//     a choice -> state -> compute: the model runs -> show every part -> count, in slices
//
// Every number comes from Model. Weights may come from anywhere: modelAt gives the model of a step.

let state;  // what the reader has chosen: see state.js
let now;  // what the model says to it: see compute

const maskGrids = {};
let weightGrid, fateGrid;

// Change some of the state. Everything that follows from it is computed and shown.
function change(some) {
  state = { ...state, ...some };
  now = compute();
  keepInRange();
  showAll();
  count();
  later(showFateOfSource);
  writeAddress();
}

// Change what is looked at, and nothing that the model computes.
function look(some) {
  const isOtherPart = "part" in some && some.part !== state.part;
  state = { ...state, ...some };
  keepInRange();
  if (isOtherPart) showHeads();
  showChosen();
  writeAddress();
}

// What was chosen may not be there any more.
function keepInRange() {
  state.layer = Math.min(state.layer, now.pass[state.part].length);
  state.step = Math.min(state.step, lastStep());
  state.place = Math.min(state.place, now.src.length - 1);
  const { keys } = axesOf(state.part);
  if (state.key !== null) state.key = Math.min(state.key, keys.length - 1);
}

function writeAddress() {
  if (location.protocol === "about:") return;  // in a cell of a notebook
  history.replaceState(null, "", location.pathname + location.search + addressOf(state));
}

// What the model says -----------------------------------------------------------------------------

const models = new Map();

function modelAt(step) {
  if (!models.has(step)) {
    const { kind, weights } = DATA.snapshots.find((snapshot) => snapshot.step === step);
    models.set(step, new Model(ABOUT, unpacked(weights, kind, DATA.shapes)));
  }
  return models.get(step);
}

// src, tgtIn: what the encoder and the one pass read. alone: steps of writing alone. given: the
// same with the answer given. labels: what is right, or null. pass: every attention of the one
// pass. moved: how far its logits are from those of the model as it learned, without pads.
// fates: of showFateOfSource
function compute() {
  const model = modelAt(state.at), size = model.vocabularySize, switches = switchesOf(state);
  const src = model.sourceIds(state.source, state.pads);
  const encoded = model.encode(src, switches);
  const alone = model.greedy(encoded, switches);
  const answer = state.answer?.map((symbol) => FIRST_SYMBOL + ABOUT.symbols.indexOf(symbol));
  const read = answer ?? alone.map((step) => step.id).filter((id) => id !== EOS);
  const tgtIn = [BOS, ...read, ...Array(state.pads).fill(PAD)];
  const pass = { ...encoded, ...model.decode(tgtIn, encoded, switches) };
  const given = Array.from({ length: read.length + 1 }, (_, t) => {
    const logits = rowOf(pass.logits, t, size);
    return { id: likeliest(logits), logits };
  });
  const sound = model.forward(model.sourceIds(state.source), [BOS, ...read], AS_LEARNED);
  const moved = largestDifference(pass.logits, sound.logits, given.length * size);
  const labels = answer ? [...answer, EOS] : null;
  return { model, size, switches, src, tgtIn, alone, given, labels, pass, moved, fates: null };
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

// For each kept step of training the probabilities at every place, with the answer given. They take
// a pass for each step, so they come after what was changed is on the screen.
function showFateOfSource() {
  if (STEPS.length > 1) {
    now.fates = STEPS.map((step) => {
      const model = modelAt(step), src = model.sourceIds(state.source, state.pads);
      const { logits } = model.forward(src, now.tgtIn, now.switches);
      return now.given.map((_, t) => softmax(rowOf(logits, t, now.size)));
    });
  }
  showFate();
}

let waiting = null;

// Do something once the page has been drawn; only the last of several is done
function later(act) {
  clearTimeout(waiting);
  waiting = setTimeout(act, 30);
}

const AS_LEARNED = switchesOf(startingState());
const finished = new Map();  // counts by what they were counted with
let counting = 0;

async function count() {
  const mine = ++counting, isWanted = () => mine === counting, { model, switches } = now;
  const keyOf = (at, pads, switches) => JSON.stringify([at, pads, switches]);
  const key = keyOf(state.at, state.pads, switches), usualKey = keyOf(SHOWN, 0, AS_LEARNED);
  const show = (counts) => showCounts(counts, key === usualKey ? null : finished.get(usualKey));
  delete document.body.dataset.counted;
  if (!finished.has(key)) {
    await new Promise((resume) => setTimeout(resume, 60));  // what was changed is shown first
    if (!isWanted()) return;
    const counts = await countRight(model, PAIRS, state.pads, switches, show, isWanted);
    if (!counts) return;
    finished.set(key, counts);
  }
  const counts = finished.get(key);
  show(counts);
  document.body.dataset.counted = `${counts.alone} ${counts.given} ${counts.all}`;
}

// Compare with what PyTorch said of a padded batch, in this very browser
function prove() {
  const model = modelAt(SHOWN);
  const distances = DATA.proof.map(({ src, tgtIn, logits }) =>
    largestDifference(model.forward(src, tgtIn, AS_LEARNED).logits, logits, logits.length));
  const apart = Math.max(...distances), isSound = apart < 1e-6;
  document.body.dataset.proof = isSound ? "sound" : "unsound";
  byId("proof").classList.toggle("bad", !isSound);
  setText(byId("proof"), isSound
    ? `Checked in this browser: on a padded batch of ${DATA.proof.length} pairs the logits are `
      + `those of PyTorch, at most ${apart.toExponential(0)} apart.`
    : "This browser computes other numbers than PyTorch: logits are "
      + `${apart} apart. Do not trust this page.`);
}

// Showing -----------------------------------------------------------------------------------------

function showAll() {
  document.documentElement.classList.toggle("big", state.isBig);
  byId("big").setAttribute("aria-pressed", state.isBig);
  showLines();
  showRun();
  showSlider();
  showMasks();
  showHeads();
  showDecoding();
  showChosen();
}

// The chosen head, step and cell, wherever they are seen
function showChosen() {
  const query = chosenQuery();
  showWeights();
  paintHeads(query);
  const key = showArithmetic(query);
  weightGrid.mark(query, key);
  for (const part of Object.keys(PARTS)) {
    maskGrids[part].mark(chosenQuery(part), part === state.part ? key : null);
  }
  setText(byId("reading"), readingText(query));
  showStep();
  showFate();
  for (const node of document.querySelectorAll("[data-step]")) {
    node.classList.toggle("here", Number(node.dataset.step) === state.step);
  }
  for (const node of document.querySelectorAll("[data-place]")) {
    const isChosen = state.part === "encoder" && Number(node.dataset.place) === state.place;
    node.classList.toggle("here", isChosen);
  }
  showFollow();
}

// A pointer over a row of weights previews it; nothing is chosen by that. No row: it has left
function preview(row) {
  if (row === undefined) {
    showChosen();
    return;
  }
  weightGrid.mark(row);
  setText(byId("reading"), readingText(row));
  paintHeads(row);
}

// Experiments -------------------------------------------------------------------------------------

// Sentences whose underlined words throw a switch. They promise nothing: the numbers answer.
// says: text, or text with what it does. asks: names of guesses
const EXPERIMENTS = [
  {
    says: [
      ["Give it a longer source", () => take(longest([...LONGER, ...PAIRS]))],
      " than it has learned. At which place is the first wrong symbol?",
    ],
    asks: ["place"],
  },
  {
    says: [
      "Add ", ["3 pads", () => change({ ...unswitched(), pads: 3 })],
      ": does anything change? Then ",
      ["run without the pad mask", () => change({ ...without("pad"), pads: 3 })],
      ". How many stay right alone?",
    ],
    asks: ["% alone"],
  },
  {
    says: [
      ["Run without the causal mask", () => change({ ...without("causal"), part: "decoder" })],
      ". How many stay right alone, and how many with the answer given?",
    ],
    asks: ["% alone", "% given"],
  },
  {
    says: [
      ["Run without places", () => change(without("places"))],
      ". Which answers can still come out? And how many ",
      ["without the scale", () => change(without("scale"))], "?",
    ],
    asks: ["% no places", "% no scale"],
  },
  {
    says: [
      "Choose a head below and ",
      ["switch it off", () => toggleHead(false)],
      ". Which one can the model do least without?",
    ],
    asks: ["head"],
  },
];

const guesses = new Map();  // until the tab is closed

function showExperiment() {
  const { says, asks } = EXPERIMENTS[state.experiment];
  setText(byId("try-number"), `${state.experiment + 1} of ${EXPERIMENTS.length}`);
  byId("try-text").replaceChildren(...says.map((word) => {
    if (typeof word === "string") return word;
    const [text, act] = word;
    return element("button", { type: "button", class: "do", onclick: act }, text);
  }));
  byId("guesses").replaceChildren(...asks.map((name) => {
    const key = `${state.experiment} ${name}`;
    return element("label", {}, `your guess, ${name}`, element("input", {
      type: "text", value: guesses.get(key) ?? "", autocomplete: "off",
      oninput: (event) => guesses.set(key, event.target.value),
    }));
  }));
}

function unswitched() {
  const { off, headOff, pads } = startingState();
  return { off, headOff, pads };
}

function without(name) {
  const { off } = startingState();
  return { ...unswitched(), off: inOrder([...off, ...SWITCHES[name].parts]) };
}

function toggle(parts, isOn) {
  const others = state.off.filter((part) => !parts.includes(part));
  change({ off: inOrder(isOn ? others : [...others, ...parts]) });
}

function toggleHead(isOn) {
  change({ headOff: isOn ? "" : `${state.part}.${state.layer}.${state.head}` });
}

function longest(pairs) {
  return pairs.reduce((best, pair) => (pair.source.length > best.source.length ? pair : best));
}

// The pair after the one of a source, in a list
function after(pairs, source) {
  const at = pairs.findIndex((pair) => pair.source.join(" ") === source.join(" "));
  return pairs[(at + 1) % pairs.length];
}

// Take a pair as if it had been typed
function take({ source, answer }) {
  setText(byId("error"), "");
  byId("lines").classList.remove("stale");
  change({ source, answer, step: 0, place: 0, key: null });
  fillFields();
}

function fillFields() {
  byId("source").value = state.source.join(" ");
  byId("answer").value = (state.answer ?? []).join(" ");
}

// Building ----------------------------------------------------------------------------------------

function build() {
  const { model, train_length: [low, high] } = ABOUT;
  setText(byId("title"), `${ABOUT.task}: ${ABOUT.rule || "pairs of files"}`);
  setText(byId("sub"), [
    `Run ${printable(ABOUT.run)}, seed ${ABOUT.seed}, step ${SHOWN}.`,
    `It learned sources of ${low} to ${high} symbols.`,
    `${ABOUT.parameters.toLocaleString("en")} numbers: width ${model.d_model},`,
    `${model.n_heads} heads, ${model.n_encoder_layers} + ${model.n_decoder_layers} layers,`,
    `${model.positions} positions, ${model.norm}-norm.`,
  ].join(" "));
  setText(byId("facts"), [
    "Everything runs in this page; nothing is loaded, sent or kept. Decoding applies the model to",
    "the whole prefix at each step; under the causal mask earlier rows cannot change, so they are",
    `kept. Counted are the first ${PAIRS.length} validation pairs, as`,
    "`toytrans eval RUN --split valid --examples 500` does.",
    `Made by toytrans ${ABOUT.toytrans}.`,
  ].join(" "));
  byId("longer").disabled = LONGER.length === 0;
  buildSwitches();
  buildMasks();
  buildTabs();
  buildTraining();
  weightGrid = new Grid(byId("weights"), "", "weights",
    (row, column) => choose(state.part, row, column), preview);
  fateGrid = new Grid(byId("fate"), "The probability of symbols over training", "weights fate",
    (row, column) => change({ at: STEPS[column] }));
}

function buildSwitches() {
  for (const [name, { name: long, short, parts }] of Object.entries(SWITCHES)) {
    const box = element("input", {
      type: "checkbox", role: "switch", id: `switch-${name}`, "aria-label": long,
      disabled: name === "places" && ABOUT.model.positions === "none",
      oninput: (event) => toggle(parts, event.target.checked),
    });
    byId("switches").append(element("label", { class: "switch" }, box,
      element("span", { class: "long", "aria-hidden": "true" }, long),
      element("span", { class: "short", "aria-hidden": "true" }, short)));
  }
}

function buildMasks() {
  for (const [part, name] of Object.entries(PARTS)) {
    const check = (id, text, parts) => element("label", { class: "check" }, element("input", {
      type: "checkbox", role: "switch", id, "aria-label": `${name} mask: ${text}`,
      oninput: (event) => toggle(parts, event.target.checked),
    }), text);
    const checks = [check(`pads-of-${part}`, "hides pads", [PADS_OF[part]])];
    if (part === "decoder") checks.push(check("causal-too", "hides later", ["causal"]));
    const host = element("div", { class: "grid-host" });
    byId("masks").append(element("section",
      { class: "card mask-card", "data-part": part, "aria-label": `${name} mask` },
      element("div", { class: "head" }, element("h3", {}, `${name} mask`),
        element("div", { class: "checks" }, checks)),
      host, element("p", { class: "leak", id: `leak-${part}` })));
    maskGrids[part] = new Grid(host, `${name} mask: queries down, keys across`, "mask",
      (row, column) => choose(part, row, column));
  }
  const meanings = {
    open: "may read", p: "pad", t: "later place", b: "both",
    wrong: "open, though a pad or a later place",
  };
  for (const [kind, text] of Object.entries(meanings)) {
    const letter = element("i", { "data-kind": kind, "aria-hidden": "true" }, LETTERS[kind][0]);
    byId("legend").append(element("span", {}, letter, text));
  }
  byId("legend").append(element("span", {},
    "Queries down, keys across. bos begins a target, eos ends a sequence."));
}

function buildTabs() {
  tabList("part-tabs", state.part, (part) => look({ part, layer: Infinity, key: null }));
  tabList("mask-tabs", "decoder", showMaskOf);
  showMaskOf("decoder");
}

function tabList(id, chosen, choosePart) {
  for (const [part, name] of Object.entries(PARTS)) {
    byId(id).append(element("button", {
      type: "button", role: "tab", "data-part": part, "aria-selected": String(part === chosen),
      tabindex: part === chosen ? 0 : -1, onclick: () => choosePart(part),
    }, name));
  }
  roving(byId(id), () => [[...byId(id).children]], (tab) => tab.click());
}

// On a narrow screen one mask is shown at a time
function showMaskOf(part) {
  for (const card of byId("masks").children) {
    card.classList.toggle("chosen", card.dataset.part === part);
  }
  for (const tab of byId("mask-tabs").children) {
    tab.setAttribute("aria-selected", String(tab.dataset.part === part));
  }
  if (now) showMasks();  // what was hidden had no width
}

// The curve of the loss, and a slider over the steps whose weights the page has
function buildTraining() {
  if (DATA.curve.length > 1) {
    const [first, last] = [DATA.curve[0], DATA.curve.at(-1)];
    const ends = [first, last].map(([step, loss]) => `${loss.toFixed(2)} at step ${step}`);
    const text = `loss while it learned: ${ends.join(", ")}`;
    byId("training").append(element("figure", {},
      svgElement("svg",
        { viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", "aria-label": text },
        svgElement("polyline", { points: curveOf(DATA.curve) })),
      element("figcaption", { class: "soft", "aria-hidden": "true" }, text)));
  }
  if (STEPS.length < 2) return;
  const slider = element("input", {
    type: "range", id: "at", min: 0, max: STEPS.length - 1, step: 1,
    "aria-label": "Step of training whose weights run",
    oninput: (event) => change({ at: STEPS[event.target.value] }),
  });
  const again = () => {
    change({ at: STEPS[STEPS.indexOf(state.at) + 1] });
    return state.at !== STEPS.at(-1);
  };
  const begin = (event) => {
    if (state.at === STEPS.at(-1)) change({ at: STEPS[0] });
    play(event.target, again);
  };
  byId("training").append(element("div", { class: "slider" }, slider,
    element("output", { id: "at-step", for: "at" }),
    element("button", { type: "button", "aria-pressed": "false", onclick: begin }, "Play")));
}

// Doing -------------------------------------------------------------------------------------------

function listen() {
  const onClick = (id, act) => byId(id).addEventListener("click", act);
  for (const id of ["source", "answer"]) byId(id).addEventListener("input", readFields);
  onClick("another", () => take(after(PAIRS, state.source)));
  onClick("longer", () => take(after(LONGER, state.source)));
  onClick("fewer", () => change({ pads: state.pads - 1 }));
  onClick("more", () => change({ pads: state.pads + 1 }));
  onClick("as-learned", () => change(unswitched()));
  onClick("lines", (event) => chooseChip(event.target.closest(".chip")));
  roving(byId("lines"), chipRows, chooseChip);
  for (const host of ["heads", "small-heads"]) {
    onClick(host, (event) => chooseHead(event.target.closest(".head-button")));
    roving(byId(host), () => headRows(host));
  }
  byId("head-off").addEventListener("input", (event) => toggleHead(event.target.checked));
  onClick("places", (event) => chooseChip(event.target.closest("[data-step]")));
  onClick("first", () => goTo(0));
  onClick("back", () => goTo(state.step - 1));
  onClick("next", () => goTo(state.step + 1));
  onClick("play", (event) => {
    if (state.step === lastStep()) goTo(0);
    play(event.target, () => {
      goTo(state.step + 1);
      return state.step < lastStep();
    });
  });
  onClick("try-next", () => {  // an experiment begins with the model as it learned
    const { part, layer, head } = startingState();
    const experiment = (state.experiment + 1) % EXPERIMENTS.length;
    change({ ...unswitched(), part, layer, head, experiment });
    showExperiment();
  });
  onClick("big", () => change({ isBig: !state.isBig }));
  onClick("link", copyLink);
  onClick("check-again", prove);
  listenToWindow();
}

function listenToWindow() {
  window.addEventListener("hashchange", () => start(readAddress(location.hash)));
  let resizing = null;
  window.addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(showAll, 150);
  });
  DARK.addEventListener("change", showChosen);
  new IntersectionObserver(([entry]) => {
    const hasLeft = !entry.isIntersecting && entry.boundingClientRect.top < 0;
    byId("follow").hidden = !hasLeft;
  }).observe(byId("lines"));
}

// Take what is typed, or say what is wrong with it; then nothing that was judged before stands
function readFields(event) {
  const source = symbolsIn(byId("source").value);
  if (event.target.id === "source") byId("answer").value = (answerTo(source) ?? []).join(" ");
  const answer = symbolsIn(byId("answer").value);
  const problem = problemWith(source) || problemWith(answer);
  setText(byId("error"), problem);
  byId("lines").classList.toggle("stale", problem !== "");
  if (!problem) change({ source, answer: answer.length ? answer : answerTo(source), key: null });
}

// Look at a query of an attention, and at one of its cells
function choose(part, query, key = null) {
  const layer = part === state.part ? state.layer : Infinity;
  look({ part, layer, key, ...(part === "encoder" ? { place: query } : { step: query }) });
}

function chooseChip(chip) {
  if (chip?.dataset.step !== undefined) goTo(Number(chip.dataset.step));
  else if (chip) choose("encoder", Number(chip.dataset.place));
}

function chooseHead(button) {
  if (!button) return;
  const [part, layer, head] = headNamed(button.dataset.head);
  look({ part, layer, head, key: null });
}

function goTo(step) {
  look({ step: Math.max(0, step), key: null });
}

let playing = null;  // the button and the timer of what goes on

// Do something again and again until it says that it is done, or its button is pressed once more
function play(button, next) {
  const before = playing?.button;
  stopPlaying();
  if (before === button) return;
  button.setAttribute("aria-pressed", "true");
  playing = { button, timer: setInterval(() => next() || stopPlaying(), 700) };
}

function stopPlaying() {
  clearInterval(playing?.timer);
  playing?.button.setAttribute("aria-pressed", "false");
  playing = null;
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

function start(chosen) {
  state = chosen;
  fillFields();
  showExperiment();
  change({});
}

state = startingState();
build();
listen();
start(readAddress(location.hash));
prove();
document.body.dataset.ready = "yes";
