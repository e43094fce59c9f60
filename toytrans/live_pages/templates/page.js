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
// isStep: the browser's Back leads to what was there before
function change(some, isStep = true) {
  state = { ...state, ...some };
  const changesCounts = ["off", "headOff", "pads", "at"].some((name) => name in some);
  if (changesCounts && !subject.isLearning) asked = null;
  refresh();
  writeAddress(isStep);
  count();
}

// Compute and show what follows from the state, and from the weights
function refresh() {
  now = compute();
  keepInRange();
  showAll();
  later(showFateOfSource);
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

function writeAddress(isStep = false) {
  if (location.protocol === "about:") return;  // in a cell of a notebook
  const address = location.pathname + location.search + addressOf(state);
  if (isStep && addressOf(state) !== location.hash) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

// What the model says -----------------------------------------------------------------------------

// src, tgtIn: what the encoder and the one pass read. alone: steps of writing alone. given: the
// same with the answer given. labels: what is right, or null. pass: every attention of the one
// pass. moved: how far its logits are from those of the model as it learned, without pads.
// fates: of showFateOfSource
function compute() {
  const model = modelAt(state.at), size = model.vocabularySize;
  const switches = subject.isLearning ? asLearned() : switchesOf(state);
  const src = model.sourceIds(state.source, state.pads);
  const encoded = model.encode(src, switches);
  const alone = model.greedy(encoded, switches);
  const answer = state.answer?.map((symbol) => FIRST_SYMBOL + subject.about.symbols.indexOf(symbol));
  const read = answer ?? alone.map((step) => step.id).filter((id) => id !== EOS);
  const tgtIn = [BOS, ...read, ...Array(state.pads).fill(PAD)];
  const pass = { ...encoded, ...model.decode(tgtIn, encoded, switches) };
  const given = Array.from({ length: read.length + 1 }, (_, t) => {
    const logits = rowOf(pass.logits, t, size);
    return { id: likeliest(logits), logits };
  });
  const moved = subject.isLearning ? 0 : movedFrom(model, read, pass.logits);
  const labels = answer ? [...answer, EOS] : null;
  return { model, size, switches, src, tgtIn, alone, given, labels, pass, moved, fates: null };
}

// How far logits are from those of the model as it learned, without pads, that has read the same
function movedFrom(model, read, logits) {
  const src = model.sourceIds(state.source), tgtIn = [BOS, ...read];
  const sound = model.forward(src, tgtIn, asLearned());
  return largestDifference(logits, sound.logits, sound.logits.length);
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
  if (subject.steps.length > 1 && !subject.isLearning) {
    now.fates = subject.steps.map((step) => {
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

// Of the counts that are asked for now, and of the model as it learned without pads
function countsKey(at = state.at, pads = state.pads, switches = switchesOf(state)) {
  return JSON.stringify([at, pads, switches]);
}

function usualKey() {
  return countsKey(subject.step, 0, asLearned());
}

let counting = null;  // the model and the key of the counts that are being made
const afterCounting = [];  // what is done once the pairs are counted

async function count() {
  const { model, switches } = now, { pads } = state, { counts } = subject, key = countsKey();
  if (subject.isLearning) {  // what learns counts itself
    counting = null;
    delete document.body.dataset.counted;
    return;
  }
  if (counting?.of === subject && counting.key === key) return;  // it goes on
  const mine = counting = { of: subject, key }, isWanted = () => mine === counting;
  delete document.body.dataset.counted;
  if (!counts.has(key)) {
    await new Promise((resume) => setTimeout(resume, 60));  // what was changed is shown first
    if (!isWanted()) return;
    const found = await countRight(model, subject, pads, switches, showCounts, isWanted);
    if (!found) return;
    counts.set(key, found);
  }
  counting = null;
  const { alone, given, all } = counts.get(key);
  showCounts(counts.get(key));
  if (key === usualKey()) subject.counted = { ...counts.get(key), of: all, step: subject.step };
  answerGuesses();
  document.body.dataset.counted = `${alone} ${given} ${all}`;
  for (const act of afterCounting) act();
}

// Compare with what PyTorch said of a padded batch, in this very browser
function prove() {
  if (!subject.proof) return;
  const model = modelAt(subject.step);
  const distances = subject.proof.map(({ src, tgtIn, logits }) =>
    largestDifference(model.forward(src, tgtIn, asLearned()).logits, logits, logits.length));
  const apart = Math.max(...distances), isSound = apart < 1e-6;
  document.body.dataset.proof = isSound ? "sound" : "unsound";
  byId("proof").classList.toggle("bad", !isSound);
  setText(byId("proof"), isSound
    ? `Checked in this browser: on a padded batch of ${subject.proof.length} pairs the logits are `
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
  showTraining();
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
    const row = chosenQuery(part), column = part === state.part ? key : null;
    maskGrids[part].mark(row, column);
    showReason(part, row, column);
  }
  setText(byId("reading"), readingText(query));
  showStep();
  showFate();
  for (const node of document.querySelectorAll("[data-step]")) {
    node.classList.toggle("here", Number(node.dataset.step) === state.step);
  }
  for (const node of document.querySelectorAll("[data-place]")) {
    const chosen = { encoder: state.place, cross: key }[state.part];
    node.classList.toggle("here", Number(node.dataset.place) === chosen);
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

// What an act changes -----------------------------------------------------------------------------

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
  acceptFields();
  change({ source, answer, step: 0, place: 0, key: null });
  fillFields();
}

// What was wrong with the fields is so no more
function acceptFields() {
  setText(byId("error"), "");
  byId("lines").classList.remove("stale");
}

function fillFields() {
  byId("source").value = state.source.join(" ");
  byId("answer").value = (state.answer ?? []).join(" ");
}

// Building ----------------------------------------------------------------------------------------

// What the head and the foot of the page say of the model
function showHead() {
  const { about, step, pairs, longer } = subject, { model, train_length: [low, high] } = about;
  setText(byId("title"), `${about.task}: ${about.rule || "pairs of files"}`);
  const run = subject.settings ? [] : [
    `Run ${printable(about.run)}, seed ${about.seed}, step ${step}.`,
    `It learned sources of ${low} to ${high} symbols.`,
  ];
  setText(byId("sub"), [
    ...run,
    `${about.parameters.toLocaleString("en")} numbers: width ${model.d_model},`,
    `${model.n_heads} heads, ${model.n_encoder_layers} encoder and ${model.n_decoder_layers} decoder`,
    "layers.",
  ].join(" "));
  const counted = subject.settings
    ? `Counted are the first ${pairs.length} validation pairs of the seed, while it learns in fp32.`
    : `Counted are the first ${pairs.length} validation pairs, as \`toytrans eval RUN --split valid `
      + "--examples 500\` does.";
  setText(byId("facts"), [
    `Positions are ${model.positions}; norms stand ${NORMS[model.norm]} (${model.norm}-norm).`,
    "Everything runs in this page; nothing is loaded or sent. Decoding applies the model to the",
    "whole prefix at each step; under the causal mask earlier rows cannot change, so they are not",
    `computed again. ${counted} Made by toytrans ${about.toytrans}.`,
  ].join(" "));
  byId("longer").disabled = longer.length === 0;
}

const NORMS = { pre: "before each sublayer", post: "after each residual sum" };

function build() {
  buildSwitches();
  buildMasks();
  buildTabs();
  weightGrid = new Grid(byId("weights"), "", "weights",
    (row, column) => choose(state.part, row, column), preview);
  fateGrid = new Grid(byId("fate"), "The probability of symbols over training", "weights fate",
    (row, column) => change({ at: subject.steps[column] }, false));
}

function buildSwitches() {
  for (const [name, { name: long, short, parts }] of Object.entries(SWITCHES)) {
    const box = element("input", {
      type: "checkbox", role: "switch", id: `switch-${name}`, "aria-label": long,
      disabled: name === "places" && subject.about.model.positions === "none",
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
      host, element("p", { class: "soft reason", id: `reason-${part}` }),
      element("p", { class: "leak", id: `leak-${part}` })));
    maskGrids[part] = new Grid(host, `${name} mask: queries down, keys across`, "mask",
      (row, column) => choose(part, row, column),
      (row, column) => (row === undefined ? showChosen() : showReason(part, row, column)));
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

// Doing -------------------------------------------------------------------------------------------

function listen() {
  const onClick = (id, act) => byId(id).addEventListener("click", act);
  for (const id of ["source", "answer"]) byId(id).addEventListener("input", readFields);
  onClick("another", () => take(after(subject.pairs, state.source)));
  onClick("longer", () => take(after(subject.longer, state.source)));
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
  onClick("play", () => {
    if (state.step === lastStep()) goTo(0);
    play("play", () => {
      goTo(state.step + 1);
      return state.step < lastStep();
    });
  });
  onClick("try-next", () => showNextExperiment(1));
  onClick("try-back", () => showNextExperiment(-1));
  onClick("see-wrong", () => take(after(subject.counts.get(countsKey()).wrong, state.source)));
  onClick("note-this", () => note());
  onClick("notes-link", () => byId("notes").focus());
  onClick("save-notes", () => saveFile("notes.csv", notesAsCsv()));
  onClick("clear-notes", clearNotes);
  onClick("print", () => {  // the notes alone; the browser's own Print has the whole page
    document.body.classList.add("notes-only");
    window.print();
    document.body.classList.remove("notes-only");
  });
  onClick("big", () => change({ isBig: !state.isBig }));
  onClick("link", copyLink);
  onClick("check-again", prove);
  listenToWindow();
}

function listenToWindow() {
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
  if (problem) return;
  change({ source, answer: answer.length ? answer : answerTo(source), key: null }, false);
}

// Look at a query of an attention, and at one of its cells
function choose(part, query, key = null) {
  const layer = part === state.part ? state.layer : Infinity;
  look({ part, layer, key, ...(part === "encoder" ? { place: query } : { step: query }) });
}

function chooseChip(chip) {
  if (chip?.dataset.step !== undefined) goTo(Number(chip.dataset.step));
  else if (chip && state.part === "cross") look({ key: Number(chip.dataset.place) });
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

let playing = null;  // the id of the button, and the timer, of what goes on

// Do something again and again until it says that it is done, or its button is pressed once more
function play(id, next) {
  const before = playing?.id;
  stopPlaying();
  if (before === id) return;
  playing = { id, timer: setInterval(() => next() || stopPlaying(), 700) };
  byId(id).setAttribute("aria-pressed", "true");
}

function stopPlaying() {
  if (!playing) return;
  clearInterval(playing.timer);
  byId(playing.id)?.setAttribute("aria-pressed", "false");
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

// Show what the address says; words that mean nothing here are named. unread: those known already
function start(unread = []) {
  state = readAddress(location.hash, unread);
  fillFields();
  showExperiment();
  change({}, false);
  setText(byId("error"), unread.length
    ? `Not understood in the address, and passed over: ${unread.map(printable).join(", ")}.` : "");
}

// Show a page whose subject is there
function open(unread) {
  state = startingState();
  build();
  listen();
  showHead();
  showNotes();
  start(unread);
  prove();
  document.body.dataset.ready = "yes";
}
