// Models that learn in this page, and the shelf on which they stand.
//
//     what is chosen -> Learn -> a new model on the shelf -> shown while it learns -> taken apart
//
// A finished model is never touched: learning again makes another one, which stands beside it.

const LEARNING = JSON.parse(byId("learning").textContent);  // what there is to choose: see learning.py
const COUNTED_LONGER = 60, BEYOND = 5;  // pairs, and symbols more than learned
const SIZES = {
  d_model: "width", n_heads: "heads", n_encoder_layers: "encoder layers",
  n_decoder_layers: "decoder layers", d_ff: "inner width",
};

const shelf = [];  // subjects, in the order in which they began
let wanted = null;  // what the next model will learn: see wantedAtFirst
let running = null;  // { subject, learning, isPaused } while one learns
let nextToLearn = [];  // what learns next, where several seeds were asked for

// off: parts that it learns without. model: a name, or sizes
function wantedAtFirst() {
  return { task: "reverse", model: "small", seed: 0, lengths: null, steps: null, off: [] };
}

function settingsOf({ task, model, seed, lengths, steps, off }) {
  const learn = Object.fromEntries(LEARNING.switches.map(({ name }) => [name, !off.includes(name)]));
  const given = { task, model, seed, learn };
  return learningSettings(LEARNING, {
    ...given, lengths: lengths ?? undefined, steps: steps ?? undefined,
  });
}

// A subject at step 0. Its weights at later steps come while it learns.
function subjectOfLearning(chosen) {
  const settings = settingsOf(chosen), { config, seed, task, rule, lengths } = settings;
  const taskPairs = new TaskDataset(config.data, seed), [, longest] = lengths;
  const shapes = parametersOf(config.model, FIRST_SYMBOL + LEARNING.about.symbols.length);
  const first = Object.entries(firstWeights(shapes, seed));
  const weights = new Map([
    [0, Object.fromEntries(first.map(([name, numbers]) => [name, Float32Array.from(numbers)]))],
  ]);
  const parts = LEARNING.switches.filter(({ name }) => !settings.learn[name]);
  return {
    about: {
      ...settings.about, toytrans: LEARNING.version, task, rule, train_length: lengths, seed, run: settings.name,
      learned_without: parts.flatMap(({ switches }) => switches),
      parameters: shapes.reduce((sum, [, shape]) => sum + countOf(shape), 0),
    },
    pairs: inSymbols(taskPairs.pairs("valid", 0, COUNTED_PAIRS)),
    longer: inSymbols(taskPairs.pairs("test", 0, COUNTED_LONGER, [longest + 1, longest + BEYOND])),
    answerOf: (source) => inSymbols([{
      source: [], target: taskPairs.targetOf(source.map((each) => settings.symbols.indexOf(each))),
    }])[0].answer,
    curve: [], shares: [[0, 0, 0]], proof: null, models: new Map(), counts: new Map(),
    weights, weightsAt: (step) => weights.get(step), steps: [0], step: 0,
    name: nameOnShelf(shelf.length), chosen, settings, isLearning: true, counted: null,
  };
}

// A, B, ... Z, A2, B2 ...
function nameOnShelf(n) {
  return String.fromCharCode(65 + n % 26) + (n < 26 ? "" : 1 + Math.floor(n / 26));
}

function inSymbols(pairs) {
  const words = (numbers) => numbers.map((number) => LEARNING.about.symbols[number]);
  return pairs.map(({ source, target }) => ({ source: words(source), answer: words(target) }));
}

// Learning ----------------------------------------------------------------------------------------

// Put a model on the shelf, show it, and let it learn
function learn(chosen) {
  wanted = { ...chosen };
  fillChoices();
  const made = subjectOfLearning(chosen);
  shelf.push(made);
  running = { subject: made, isPaused: false, learning: null };
  running.learning = startLearning(made.settings, (message) => hear(made, message));
  showSubject(made, shelf.length > 1);
}

function hear(made, message) {
  const acts = {
    weights: takeWeights, step: takeSteps, counted: takeCounts, done: finish, failed: fail,
    paused: () => {}, made: ({ engine, where }) => { made.engine = { engine, where }; },
  };
  acts[message.type](message, made);
  if (subject === made) showLearning();
}

// The newest weights, and those of some steps before, each made half as many again as the last
function takeWeights({ step, tensors, pairsUsed }, made) {
  const before = made.steps.at(-1), kept = made.steps.at(-2) ?? 0;
  if (step !== before && before > 0 && before < 1.5 * kept + 1) {
    made.weights.delete(before);
    made.models.delete(before);
    made.steps.pop();
  }
  if (step !== before) made.steps.push(step);
  made.weights.set(step, tensors);
  made.pairsUsed = pairsUsed;
  made.models.delete(step);
  made.step = step;
  if (subject !== made) return;
  state.at = step;
  if (!document.hidden) showLearned();
}

// While it learns what is written and the heads are shown anew, and the chosen head and step once the
// reader has come to them: the same processor has to learn
function showLearned() {
  now = compute();
  keepInRange();
  showLines();
  showDecoding();
  if (byId("weights").getBoundingClientRect().top < innerHeight) showChosen();
  else paintHeads(chosenQuery());
}

function takeSteps({ step, losses }, made) {
  losses.forEach((loss, n) => made.curve.push([step - losses.length + 1 + n, loss]));
  if (running?.subject === made && !made.isAsking) {  // for weights, which come after a while
    made.isAsking = true;
    setTimeout(() => {
      made.isAsking = false;
      if (running?.subject === made && !running.isPaused) running.learning.weights();
    }, PREFERS_STILLNESS.matches ? 1000 : 200);
  }
}

function takeCounts({ step, alone, given, of, seen, unseen, asked }, made) {
  if (asked) return;
  const group = (some) => ({ all: some.of, done: some.of, alone: some.alone, given: some.given });
  const whole = group({ alone, given, of });
  made.counted = {
    ...whole, of, step, seen: group(seen), unseen: group(unseen), longer: emptyGroup(0), wrong: [],
  };
  if (step) made.shares.push([step, alone / of, given / of]);
  if (subject === made && made.isLearning) showCounts(made.counted);
}

// It has learned: its last weights and counts are there
function finish({ seconds, met }, made) {
  made.isLearning = false;
  made.seconds = seconds;
  made.pairs.forEach((pair, n) => { pair.seen = met[n]; });
  running?.learning.stop();
  running = null;
  if (subject === made) change({}, false);
}

// What has learned is noted, and the next of several seeds begins
function noteLearned() {
  if (!subject.isNoted && countsKey() === usualKey()) {
    subject.isNoted = true;
    if (!notes.at(-1)?.[0].startsWith(modelName())) note();
    showLearning();
  }
  if (nextToLearn.length && !running) learn(nextToLearn.shift());
}

function fail({ message }, made) {
  running?.learning.stop();
  running = null;
  nextToLearn = [];
  shelf.splice(shelf.indexOf(made), 1);  // nobody takes it for one that has learned
  setText(byId("error"), `It learns no further: ${message}.`);
}

function pauseOrGoOn() {
  running.isPaused = !running.isPaused;
  if (running.isPaused) running.learning.pause();
  else running.learning.goOn();
  showLearning();
}

// What the large button does: pause, go on, or learn a new model
function pressLearn() {
  if (running) pauseOrGoOn();
  else attemptToLearn({ ...wanted });
}

// Learn, or say in a sentence why that cannot be
function attemptToLearn(chosen) {
  try {
    settingsOf(chosen);
  } catch (error) {
    setText(byId("choice-error"), `${error.message}.`);
    return false;
  }
  setText(byId("choice-error"), "");
  learn(chosen);
  return true;
}

// Five seeds from the chosen one on, one after the other, but for those that are on the shelf
function learnFiveSeeds() {
  const isThere = (chosen) => shelf.some((each) => JSON.stringify(each.chosen) === JSON.stringify(chosen));
  const five = [0, 1, 2, 3, 4].map((more) => ({ ...wanted, seed: wanted.seed + more }));
  const [first, ...rest] = five.filter((chosen) => !isThere(chosen));
  if (first && attemptToLearn(first)) nextToLearn = rest;
}

// The shelf ---------------------------------------------------------------------------------------

// Show a model of the shelf, with the source that is typed and the pads that are chosen
function showSubject(other, isStep = false) {
  const before = state;
  subject = other;
  state = startingState();
  if (before) {
    const { pads, experiment, isBig, source } = before;
    Object.assign(state, { pads, experiment, isBig });
    if (!problemWith(source)) Object.assign(state, { source, answer: answerTo(source) });
  }
  asked = null;
  fillFields();
  if (byId("lines").classList.contains("stale")) acceptFields();
  showHead();
  showLearning();
  change({}, isStep);
}

// The last finished model of a task that learned without just these parts; undefined if none is
function learnedWithoutJust(off, task = subject.chosen.task) {
  return shelf.findLast(({ isLearning, chosen }) =>
    !isLearning && chosen.off.join() === off.join() && chosen.task === task);
}

// Showing -----------------------------------------------------------------------------------------

function showLearning() {
  showLearnRow();
  showShelf();
  showTraining();
  showTaking();
}

function showLearnRow() {
  for (const { name } of LEARNING.switches) {
    byId(`learn-${name}`).checked = !wanted.off.includes(name);
  }
  for (const field of document.querySelectorAll("#choices :is(input, select), #learn-row input")) {
    field.disabled = running !== null;
  }
  byId("five").disabled = running !== null;
  byId("stop-here").hidden = !running?.isPaused;
  setText(byId("learn"), learnText());
  setText(byId("learn-why"), learnWhy());
  document.body.dataset.learning = running ? (running.isPaused ? "paused" : "yes") : "no";
}

function learnText() {
  if (running?.isPaused) return "Go on";
  if (running) {
    const { step, settings } = running.subject;
    return `Pause ${Math.round(100 * step / settings.steps)}%`;
  }
  const without = namesOfLearning(wanted.off);
  return `${shelf.length ? "Learn again" : "Learn"}${without && ` without ${without}`}`;
}

function namesOfLearning(off) {
  return LEARNING.switches.filter(({ name }) => off.includes(name)).map(({ words }) => words)
    .join(" and ");
}

function learnWhy() {
  if (running) {
    const { name, about, engine } = running.subject;
    const slow = engine?.engine === "plain JavaScript" ? " This browser has no WebAssembly, so it "
      + "takes some five times as long." : "";
    return `Model ${name} learns ${about.task}. Its switches can be thrown when it has learned.${slow}`;
  }
  const next = nameOnShelf(shelf.length);
  if (!wanted.off.length || wanted.off.join() === subject.chosen.off.join()) return "";
  return `That makes a new model, ${next}, which learns from nothing without `
    + `${namesOfLearning(wanted.off)}; Model ${subject.name} stays. The row Run with switches a `
    + "part off afterwards.";
}

function showShelf() {
  byId("shelf").hidden = shelf.length < 2;
  byId("shelf").replaceChildren(element("span", { class: "soft" }, "models"),
    ...shelf.map((each) => element("button", {
      type: "button", "aria-pressed": String(each === subject), disabled: running !== null,
      onclick: () => showSubject(each, true),
    }, shelfText(each))));
  byId("seeds").hidden = !seedsText();
  setText(byId("seeds"), seedsText());
}

function shelfText({ name, chosen, settings, isLearning, counted }) {
  const without = namesOfLearning(chosen.off);
  const how = isLearning || !counted ? "" : `: ${percent(counted.alone / counted.of)}`;
  return `${name} ${settings.task} ${settings.name} ${settings.seed}${without && ` without ${without}`}${how}`;
}

// The range over seeds, where several models differ by their seeds only
function seedsText() {
  const others = ({ seed, ...rest }) => JSON.stringify(rest);
  const alike = shelf.filter(({ isLearning, chosen }) =>
    !isLearning && others(chosen) === others(subject.chosen));
  const seeds = [...new Set(alike.map(({ chosen }) => chosen.seed))];
  if (seeds.length < 2) return "";
  const range = (way) => {
    const shares = alike.map(({ counted }) => counted[way] / counted.of);
    return `${percent(Math.min(...shares))} to ${percent(Math.max(...shares))}`;
  };
  return `Seeds ${seeds.join(", ")}: right alone ${range("alone")}, answer given ${range("given")}.`;
}

// What can be taken away from a finished model
function showTaking() {
  const { settings, isLearning, counted } = subject, command = commandOf(settings);
  byId("taking").hidden = isLearning || !counted;
  if (byId("taking").hidden) return;
  setText(byId("result"), resultOf(subject));
  setText(byId("command"), command
    ?? "No command does the same: a run can go without one part only.");
  byId("save-config").disabled = command === null;
}

function resultOf({ settings, counted }) {
  const name = byId("name").value.trim();
  return `${name && `${name}: `}${resultLine(settings, counted)}`;
}

async function copyResult(event) {
  const button = event.target;
  try {
    await navigator.clipboard.writeText(resultOf(subject));
    setText(button, "Copied");
  } catch {
    getSelection().selectAllChildren(byId("result"));
    setText(button, "Selected: copy it");
  }
  setTimeout(() => setText(button, "Copy"), 1500);
}

function saveModel() {
  const { settings, step, weights, pairsUsed } = subject;
  const shapes = parametersOf(settings.config.model, FIRST_SYMBOL + settings.symbols.length);
  const last = { step, tensors: weights.get(step), shapes, pairsUsed };
  saveFile("model.safetensors", modelFile(settings, last));
}

// Curves of both shares over the steps; those of the other models are grey, so that one sees what has
// become better or worse
function showShares(host) {
  const steps = Math.max(...shelf.map(({ settings }) => settings.steps));
  const lineOf = (each, way, kind) => svgElement("polyline", {
    class: kind, points: each.shares.map((point) => {
      const x = 100 * point[0] / steps, y = 29 - 28 * point[way];
      return `${x.toFixed(2)},${y.toFixed(2)}`;
    }).join(" "),
  });
  const ghosts = shelf.filter((each) => each !== subject)
    .flatMap((each) => [lineOf(each, 1, "ghost"), lineOf(each, 2, "ghost")]);
  const { step, counted } = subject, at = counted ? ` after ${counted.step} steps` : "";
  const text = `right alone and with the answer given${at}, from 0 to 100%`;
  host.append(element("figure", {},
    svgElement("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img",
      "aria-label": text }, ...ghosts, lineOf(subject, 1, "alone"), lineOf(subject, 2, "given")),
    element("figcaption", { class: "soft", "aria-hidden": "true" },
      element("i", { class: "bar-alone" }), "alone ", element("i", { class: "bar-given" }),
      `answer given, 0 to 100%, by step (now ${step})${ghosts.length ? "; grey: the others" : ""}`)));
}

// Choosing ----------------------------------------------------------------------------------------

function buildLearning() {
  const option = ([value, text]) => element("option", { value }, text);
  byId("task").append(...Object.entries(LEARNING.rules).map(([task]) => option([task, task])));
  byId("model").append(...Object.keys(LEARNING.models).map((name) => option([name, name])),
    option(["own", "own sizes"]));
  for (const [key, name] of Object.entries(SIZES)) {
    byId("sizes").append(element("label", {}, name,
      element("input", { type: "number", id: `size-${key}`, min: 1, oninput: readChoices })));
  }
  for (const { name } of LEARNING.switches) {
    const { name: long, short } = SWITCHES[name];
    byId("learn-switches").append(element("label", { class: "switch" },
      element("input", {
        type: "checkbox", role: "switch", id: `learn-${name}`, "aria-label": `learn with ${long}`,
        oninput: readChoices,
      }),
      element("span", { class: "long", "aria-hidden": "true" }, long),
      element("span", { class: "short", "aria-hidden": "true" }, short)));
  }
  for (const id of ["task", "model", "seed", "low", "high", "steps"]) {
    byId(id).addEventListener("input", readChoices);
  }
  afterCounting.push(noteLearned);
  const onClick = (id, act) => byId(id).addEventListener("click", act);
  onClick("learn", pressLearn);
  onClick("five", learnFiveSeeds);
  onClick("stop-here", () => running.learning.end());
  byId("name").addEventListener("input", showTaking);
  onClick("copy-result", copyResult);
  onClick("save-model", saveModel);
  onClick("save-config", () => saveFile("config.yaml", configOf(subject.settings)));
}

// What the fields say is what the next model learns; the one that is shown stays.
function readChoices(event) {
  const number = (id) => (byId(id).value.trim() === "" ? NaN : Number(byId(id).value));
  const name = byId("model").value, isOwn = name === "own";
  if (event.target.id === "model" && !isOwn) wanted = { ...wanted, lengths: null, steps: null };
  const sizes = Object.fromEntries(Object.keys(SIZES).map((key) => [key, number(`size-${key}`)]));
  wanted = {
    ...wanted, task: byId("task").value, seed: number("seed"), model: isOwn ? sizes : name,
    off: LEARNING.switches.map((each) => each.name).filter((each) => !byId(`learn-${each}`).checked),
  };
  if (["low", "high"].includes(event.target.id)) wanted.lengths = [number("low"), number("high")];
  if (event.target.id === "steps") wanted.steps = number("steps");
  byId("own").hidden = !isOwn;
  if (isOwn) byId("choices").querySelector("details").open = true;
  try {
    settingsOf(wanted);
    setText(byId("choice-error"), "");
  } catch (error) {
    setText(byId("choice-error"), `${error.message}.`);
  }
  if (event.target.id === "model") fillChoices();
  showLearnRow();
}

function fillChoices() {
  const isOwn = typeof wanted.model !== "string";
  byId("task").value = wanted.task;
  byId("model").value = isOwn ? "own" : wanted.model;
  byId("seed").value = wanted.seed;
  byId("own").hidden = !isOwn;
  if (isOwn) byId("choices").querySelector("details").open = true;
  const { config, lengths, steps } = settingsOf(isOwn ? { ...wanted, model: "small" } : wanted);
  for (const key of Object.keys(SIZES)) {
    byId(`size-${key}`).value = isOwn && wanted.model[key] ? wanted.model[key] : config.model[key];
  }
  [byId("low").value, byId("high").value] = lengths;
  byId("steps").value = steps;
}

// The address -------------------------------------------------------------------------------------

const LEARNED_NAMES = ["task", "size", "seed", "lengths", "steps", "learn"];

// Words for what the shown model learned: task=sort, size=48.3.1.1.192, learn=-causal-pad
function learnedWords({ task, model, seed, lengths, steps, off }) {
  const usual = wantedAtFirst(), words = [];
  if (task !== usual.task) words.push(`task=${task}`);
  const size = typeof model === "string" ? model : Object.keys(SIZES).map((key) => model[key]).join(".");
  if (size !== usual.model) words.push(`size=${size}`);
  if (seed !== usual.seed) words.push(`seed=${seed}`);
  if (lengths) words.push(`lengths=${lengths.join(".")}`);
  if (steps) words.push(`steps=${steps}`);
  if (off.length) words.push(`learn=${off.map((name) => `-${name}`).join("")}`);
  return words;
}

// What an address says of the model that is to learn. Words that make none are added to `unread`.
function readLearned(hash, unread) {
  let chosen = wantedAtFirst();
  const numbers = (word) => word.split(".").map((each) => (each === "" ? NaN : Number(each)));
  const readers = {
    task: (word) => ({ task: word }),
    size: (word) => ({
      model: Object.hasOwn(LEARNING.models, word) ? word
        : Object.fromEntries(Object.keys(SIZES).map((key, n) => [key, numbers(word)[n]])),
    }),
    seed: (word) => ({ seed: numbers(word)[0] }),
    lengths: (word) => ({ lengths: numbers(word) }),
    steps: (word) => ({ steps: numbers(word)[0] }),
    learn: (word) => ({ off: LEARNING.switches.map(({ name }) => name).filter(
      (name) => word.split("-").includes(name)) }),
  };
  for (const [name, word] of wordsOfAddress(hash)) {
    if (!Object.hasOwn(readers, name)) continue;
    const more = { ...chosen, ...readers[name](word) };
    try {
      settingsOf(more);
      chosen = more;
    } catch {
      unread.push(`${name}=${word}`);
    }
  }
  return chosen;
}
