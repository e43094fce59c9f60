// The parts of the page. Each function shows one of them, from `state`, what the reader has chosen,
// and `now`, what the model says to it; see page.js. Nothing is computed here but what is shown.

const byId = (id) => document.getElementById(id);

const SPECIALS = ["pad", "bos", "eos"];

function nameOf(id) {
  return id < FIRST_SYMBOL ? SPECIALS[id] : printable(subject.about.symbols[id - FIRST_SYMBOL]);
}

function kindOf(id) {
  return id < FIRST_SYMBOL ? SPECIALS[id] : "";
}

function headingOf(id) {
  return { text: nameOf(id), kind: id === PAD ? "pad" : "" };
}

function percent(share) {
  const exact = 100 * share, whole = Math.round(exact);
  const isRoundedAway = (whole === 100 && share < 1) || (whole === 0 && share > 0);
  return isRoundedAway ? `${exact.toFixed(1)}%` : `${whole}%`;
}

// .05 and 1.00
function shortNumber(share) {
  return share.toFixed(2).replace(/^0/, "");
}

// The source and what is written to it ------------------------------------------------------------

function showLines() {
  const { src, alone, given, labels } = now;
  const count = labels ? Math.max(labels.length, alone.length) : alone.length;
  const aloneIds = Array.from({ length: count }, (_, t) => alone[t]?.id);
  const givenIds = given.map((step) => step.id);
  byId("lines").replaceChildren(
    lineOf("source", src.map(sourceChip)),
    lineOf("alone", aloneIds.map((id, t) => outputChip("alone", id, t)), verdictOn(aloneIds)),
    lineOf("answer given", givenIds.map((id, t) => outputChip("answer given", id, t)),
      verdictOn(givenIds)),
  );
  setText(byId("note"), noteOnSource());
  setTabStop(chipRows(), chipRows()[1][0]);
}

function lineOf(name, chips, verdict = "") {
  return element("div", { class: "line", "data-line": name },
    element("span", { class: "label" }, name, verdict && element("b", {}, verdict)),
    element("div", { class: "chips" }, chips));
}

function chipRows() {
  const lines = [...byId("lines").querySelectorAll(".line")];
  return lines.map((line) => [...line.querySelectorAll("button")]);
}

function sourceChip(id, place) {
  return element("button", {
    type: "button", class: "chip", tabindex: -1, "data-kind": kindOf(id), "data-place": place,
    "aria-label": `source, place ${place}: ${nameOf(id)}`,
  }, nameOf(id));
}

// id: undefined where the output has ended before the answer
function outputChip(line, id, t) {
  const text = id === undefined ? "–" : nameOf(id), wanted = now.labels?.[t];
  const verdict = !now.labels ? "" : id === wanted ? "right" : "wrong";
  const right = wanted === undefined ? "–" : nameOf(wanted);
  const says = verdict === "wrong" ? `, wrong, the answer has ${right}` : verdict && ", right";
  return element("button", {
    type: "button", class: `chip ${verdict}`, tabindex: -1,
    "data-kind": id === undefined ? "" : kindOf(id), "data-step": t,
    "aria-label": `${line}, step ${t}: ${text}${says}`,
  }, text, verdict === "wrong" ? element("small", {}, right) : null);
}

function verdictOn(ids) {
  if (!now.labels) return "";
  const wrong = ids.filter((id, t) => id !== now.labels[t]).length;
  return wrong ? `✗ ${wrong} wrong` : "✓ right";
}

function noteOnSource() {
  const [low, high] = subject.about.train_length, { length } = state.source, notes = [];
  if (length < low || length > high) {
    const how = length > high ? "longer" : "shorter";
    notes.push(`This source is ${how} than it learned (${low} to ${high}).`);
  }
  if (!now.labels) {
    notes.push("The answer is not known, so nothing is judged, and the answer given is the model's "
      + "own. Type it to see what is right.");
  }
  return notes.join(" ");
}

// The same answer at the top of the screen, once its card has left it
function showFollow() {
  const chips = [...byId("lines").querySelectorAll('[data-line="alone"] .chip')].map((chip) => {
    const symbol = chip.firstChild.textContent;
    return element("span", { class: chip.className, "data-kind": chip.dataset.kind }, symbol);
  });
  const [alone, given] = ["alone", "given"].map((way) => byId(`${way}-share`).textContent);
  const shares = `alone ${alone}, given ${given}`;
  byId("follow").replaceChildren(element("span", { class: "soft" }, "alone"), ...chips,
    element("b", {}, shares));
  setText(byId("short-status"), `${shares}${isAsLearned(state) ? "" : `; it runs ${runsText()}`}`);
}

// How often it is right ---------------------------------------------------------------------------

function showCounts(counts) {
  const usual = countsKey() === usualKey() ? null : subject.counts.get(usualKey());
  const isWhole = counts.done === counts.all;
  for (const way of ["alone", "given"]) {
    const right = counts[way], [low, high] = wilsonInterval(right, counts.done);
    const interval = `${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)}%`;
    setText(byId(`${way}-share`), percent(right / counts.done));
    byId(`${way}-share`).classList.toggle("provisional", !isWhole);
    setText(byId(`${way}-count`),
      isWhole ? `${right} of ${counts.done}; 95% interval ${interval}` : `${right} of ${counts.done} so far`);
    setText(byId(`${way}-usual`), usual ? `as learned ${percent(usual[way] / usual.done)}` : "");
  }
  const groups = [["never seen in training", counts.unseen], ["seen in training", counts.seen]];
  const words = groups.filter(([, group]) => group.done).map(([name, { done, alone, given }]) =>
    `${done} ${name}: ${alone} alone, ${given} given.`);
  setText(byId("counted"), isWhole ? words.join(" ") : `Counting on, to ${counts.all} pairs.`);
  setText(byId("longer-counted"), longerText(counts.longer));
  byId("see-wrong").disabled = counts.wrong.length === 0;
  byId("note-this").disabled = counts.longer.done < counts.longer.all;
  showFollow();
}

function longerText({ alone, done, all }) {
  if (!all) return "";
  if (!done) return "Longer sources are counted next.";
  const so = done < all ? " so far" : "";
  return `Longer than learned (to ${longest(subject.longer).source.length}): `
    + `${alone} of ${done} alone${so}.`;
}

// How it learned: a curve, and a slider over the steps whose weights the page has
function showTraining() {
  const host = byId("training"), { steps, isLearning } = subject;
  if (document.activeElement?.id === "at" && byId("at").max == steps.length - 1) {
    showSlider();  // whoever moves it keeps it
    return;
  }
  host.replaceChildren();
  if (subject.shares) showShares(host);
  else showLoss(host);
  if (isLearning) return;
  if (steps.length > 1) {
    host.append(sliderOverSteps());
    showSlider();
  } else {
    host.append(element("p", { class: "soft" },
      "The page has the weights of this step only, so it cannot show how they were learned."));
  }
}

function showLoss(host) {
  const { curve } = subject;
  if (curve.length < 2) return;
  const ends = [curve[0], curve.at(-1)].map(([step, loss]) => `${loss.toFixed(2)} at step ${step}`);
  const text = `loss while it learned: ${ends.join(", ")}`;
  host.append(element("figure", {},
    svgElement("svg",
      { viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", "aria-label": text },
      svgElement("polyline", { points: curveOf(curve) })),
    element("figcaption", { class: "soft", "aria-hidden": "true" }, text)));
}

function sliderOverSteps() {
  const { steps } = subject;
  const slider = element("input", {
    type: "range", id: "at", min: 0, max: steps.length - 1, step: 1,
    "aria-label": "Step of training whose weights run",
    oninput: (event) => change({ at: steps[event.target.value] }, false),
  });
  const again = () => {
    change({ at: steps[steps.indexOf(state.at) + 1] }, false);
    return state.at !== steps.at(-1);
  };
  const begin = () => {
    if (state.at === steps.at(-1)) change({ at: steps[0] }, false);
    play("play-steps", again);
  };
  const isPlaying = String(playing?.id === "play-steps");
  return element("div", { class: "slider" }, slider,
    element("output", { id: "at-step", for: "at" }),
    element("button", {
      type: "button", id: "play-steps", "aria-pressed": isPlaying, onclick: begin,
    }, "Play"));
}

function showSlider() {
  byId("at").value = subject.steps.indexOf(state.at);
  byId("at").setAttribute("aria-valuetext", `step ${state.at}`);
  setText(byId("at-step"), `step ${state.at}`);
}

// Run with ----------------------------------------------------------------------------------------

// While a model learns, it runs as it learns, and nothing can be thrown.
function showRun() {
  const isLearning = Boolean(subject.isLearning), hasPlaces = subject.about.model.positions !== "none";
  for (const [name, { parts }] of Object.entries(SWITCHES)) {
    const on = parts.filter((part) => !state.off.includes(part)).length;
    byId(`switch-${name}`).checked = on === parts.length;
    byId(`switch-${name}`).indeterminate = on > 0 && on < parts.length;
    byId(`switch-${name}`).disabled = isLearning || (name === "places" && !hasPlaces);
  }
  byId("head-off").disabled = isLearning;
  for (const box of document.querySelectorAll(".mask-card input")) box.disabled = isLearning;
  setText(byId("pads"), String(state.pads));
  byId("fewer").disabled = state.pads === 0 || isLearning;
  byId("more").disabled = state.pads === MOST_PADS || isLearning;
  byId("as-learned").disabled = isAsLearned(state) && state.pads === 0;
  setText(byId("status"), statusText());
  setText(byId("why"), whyText());
}

// What the model learned with, what it runs without, and how far its numbers have moved
function statusText() {
  const learnedWithout = subject.about.learned_without;
  const learned = "everything" + (learnedWithout.length ? ` but ${namesOf(learnedWithout)}` : "");
  const which = subject.name ? `Model ${subject.name}` : "This model";
  if (subject.isLearning) return `${which} learns with ${learned}, and runs the same way.`;
  const first = `${which} learned with ${learned}; it now runs ${runsText()}.`;
  if (state.at !== subject.step) return `${first} Its weights are those of step ${state.at}.`;
  if (isAsLearned(state) && !state.pads) return first;
  const { moved } = now;
  const how = moved ? `differ by up to ${moved.toPrecision(2)} from`
    : "are equal to the last bit to";
  return `${first} With the answer given, the scores of the next symbol (logits) ${how} those of `
    + `the model as it learned${state.pads ? ", without pads" : ""}.`;
}

// "as it learned", or "without the causal mask and head 1 of decoder layer 2"
function runsText() {
  const { learned_without: learnedWithout } = subject.about;
  const off = namesOf(state.off.filter((part) => !learnedWithout.includes(part)));
  const back = namesOf(learnedWithout.filter((part) => !state.off.includes(part)));
  const [part, layer, head] = state.headOff.split(".");
  const silenced = state.headOff && `head ${head} of ${part} layer ${layer}`;
  const runs = [];
  if (off || silenced) runs.push(`without ${[off, silenced].filter(Boolean).join(" and ")}`);
  if (back) runs.push(`with ${back}`);
  return runs.length ? runs.join(" and ") : "as it learned";
}

// What the notes call the model that runs
function modelName() {
  const { run, seed, learned_without: off } = subject.about;
  const learned = off.length ? `, learned without ${namesOf(off)}` : "";
  const at = state.at === subject.step ? "" : `, step ${state.at}`;
  const which = subject.name ? `${subject.name}: ${subject.about.task} ` : "";
  return `${which}${printable(run)}, seed ${seed}${learned}${at}`;
}

// Parts of model.js in words: "the causal mask and the pad mask of the encoder"
function namesOf(parts) {
  const isWhole = (some) => some.every((part) => parts.includes(part));
  const whole = Object.values(SWITCHES).filter((each) => isWhole(each.parts));
  const names = whole.map((each) => (each === SWITCHES.places ? each.name : `the ${each.name}`));
  if (!isWhole(SWITCHES.pad.parts)) {
    for (const [part, name] of Object.entries(PADS_OF)) {
      if (parts.includes(name)) names.push(`the ${part} attention's pad mask`);
    }
  }
  return names.join(" and ");
}

function whyText() {
  const isNewlyOff = (part) => state.off.includes(part) && !subject.about.learned_without.includes(part);
  if (isNewlyOff("causal")) {
    return "Writing alone, the model has no later symbols to read, so there is little for the "
      + "causal mask to hide. With the answer given, every place now reads the very symbol that it "
      + "must predict, which it has never learned to do. The mask is for learning all places in "
      + "one pass. " + learnWithoutText("no_causal");
  }
  if (SWITCHES.pad.parts.some(isNewlyOff) && !state.pads) {
    return "There are no pads yet, so the pad mask has nothing to hide: add some.";
  }
  if (isAsLearned(state)) return "";
  return `It was never trained this way. ${learnWithoutText("FAULT")}`;
}

// Where one finds the other experiment, to learn without a part
function learnWithoutText(fault) {
  return subject.settings
    ? "To learn without a part is another experiment: the row Learn with makes a new model."
    : `To learn without a part is another experiment: \`toytrans train CONFIG --break ${fault}\`.`;
}

// Masks -------------------------------------------------------------------------------------------

const LETTERS = {
  open: ["1", "open"],
  p: ["p", "closed: the key is a pad"],
  t: ["t", "closed: the key is a later place"],
  b: ["b", "closed: a pad and a later place"],
  q: ["q", "closed: the query is a pad"],
  wrong: ["!", "open, though the key is a pad or a later place"],
};

// Why a cell of a mask is as it is
function reasonOf(part, key, i, j, isOpen) {
  const isPad = key === PAD, isLater = part === "decoder" && j > i;
  if (isOpen) return isPad || isLater ? "wrong" : "open";
  const byPad = isPad && now.switches[PADS_OF[part]], byLater = isLater && now.switches.causal;
  if (byPad && byLater) return "b";
  if (byPad) return "p";
  return byLater ? "t" : "q";
}

function showMasks() {
  for (const part of Object.keys(PARTS)) {
    const { queries, keys } = axesOf(part), { mask } = attentionOf(part, 1);
    maskGrids[part].show(queries.map(headingOf), keys.map(headingOf), (i, j) => {
      const kind = reasonOf(part, keys[j], i, j, mask.isOpen(i, j)), [text, why] = LETTERS[kind];
      return { text, kind, says: `${text}: ${cellName(part, i, j)}, ${why}` };
    });
    byId(`pads-of-${part}`).checked = !state.off.includes(PADS_OF[part]);
    showLeak(part);
  }
  byId("causal-too").checked = !state.off.includes("causal");
}

// Why the cell of a mask is open or closed, in words; nothing if no cell is chosen
function showReason(part, i, j) {
  const { keys } = axesOf(part), { mask } = attentionOf(part, 1);
  const reason = j === null ? "" : LETTERS[reasonOf(part, keys[j], i, j, mask.isOpen(i, j))][1];
  setText(byId(`reason-${part}`), reason && `${cellName(part, i, j)}: ${reason}.`);
}

function cellName(part, i, j) {
  const { queries, keys } = axesOf(part);
  return `query ${nameOf(queries[i])} at ${i}, key ${nameOf(keys[j])} at ${j}`;
}

function showLeak(part) {
  const { pads, later } = leakOf(part), says = [];
  if (pads > 0) says.push(`${percent(pads)} on pads`);
  if (later > 0) says.push(`${percent(later)} on later places`);
  const none = `No real token reads a pad${part === "decoder" ? " or a later place" : ""}.`;
  byId(`leak-${part}`).classList.toggle("bad", says.length > 0);
  setText(byId(`leak-${part}`), says.length
    ? `Of the attention of real tokens, ${says.join(" and ")}.` : none);
}

// The mean share of attention that real queries give to pads and to later places
function leakOf(part) {
  const { queries, keys } = axesOf(part);
  let pads = 0, later = 0, rows = 0;
  for (const { weights } of now.pass[part]) {
    for (let row = 0; row < weights.length / keys.length; row++) {
      const i = row % queries.length, weightsOfRow = rowOf(weights, row, keys.length);
      if (queries[i] === PAD) continue;
      rows++;
      weightsOfRow.forEach((weight, j) => {
        if (keys[j] === PAD) pads += weight;
        else if (part === "decoder" && j > i) later += weight;
      });
    }
  }
  return { pads: pads / rows, later: later / rows };
}

// Heads -------------------------------------------------------------------------------------------

function showHeads() {
  const { part } = state, depth = now.pass[part].length;
  for (const tab of byId("part-tabs").children) {
    tab.setAttribute("aria-selected", tab.dataset.part === part);
    tab.tabIndex = tab.dataset.part === part ? 0 : -1;
  }
  byId("heads").replaceChildren(...Array.from({ length: depth }, (_, n) =>
    element("div", { class: "layer" },
      element("span", { class: "soft" }, `layer ${n + 1}`), headButtons(part, n + 1))));
  byId("small-heads").replaceChildren(
    element("span", { class: "label" }, "cross heads"),
    ...headButtons("cross", now.pass.cross.length));
  for (const host of ["heads", "small-heads"]) setTabStop(headRows(host), headRows(host)[0][0]);
}

function headRows(host) {
  const rows = host === "heads" ? [...byId(host).children] : [byId(host)];
  return rows.map((row) => [...row.querySelectorAll("button")]);
}

function headButtons(part, layer) {
  return Array.from({ length: now.model.heads }, (_, n) => {
    const name = `${part}.${layer}.${n + 1}`, isOff = state.headOff === name;
    const says = `${PARTS[part]} attention, layer ${layer}, head ${n + 1}${isOff ? ", off" : ""}`;
    return element("button", {
      type: "button", class: `head-button ${isOff ? "off" : ""}`, tabindex: -1,
      style: { "--colour": `rgb(${headColour(n)})` }, "data-head": name, "aria-label": says,
    }, element("canvas", { "aria-hidden": "true" }),
    element("span", {}, isOff ? `${n + 1} off` : `head ${n + 1}`));
  });
}

// Every head's picture, with the row of one query at full strength
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
  const { part, layer, head } = state, { queries, keys } = axesOf(part);
  const { mask, weights } = attentionOf(part, layer);
  const name = `${PARTS[part]} attention, layer ${layer}, head ${head}`;
  const isOn = state.headOff !== `${part}.${layer}.${head}`;
  setText(byId("head-title"), `${name}: its weights`);
  byId("head-off").checked = isOn;
  setText(byId("head-off").nextSibling, `this head is ${isOn ? "on" : "off"}`);
  weightGrid.label = `Weights, ${name}: queries down, keys across`;
  weightGrid.show(queries.map(headingOf), keys.map(headingOf), (i, j) => {
    const weight = weights[((head - 1) * queries.length + i) * keys.length + j];
    const isOpen = mask.isOpen(i, j), how = isOpen ? `weight ${weight.toFixed(3)}` : "closed";
    return {
      text: isOpen ? shortNumber(weight) : "", kind: isOpen ? "" : "shut",
      shade: shadeOf(headColour(head - 1), weight), says: `${cellName(part, i, j)}: ${how}`,
    };
  });
}

// The weights of a head at a query, and the place of the heaviest. head: from 1
function weightsAt(head, query) {
  const { queries, keys } = axesOf(state.part);
  const { weights } = attentionOf(state.part, state.layer);
  const row = rowOf(weights, (head - 1) * queries.length + query, keys.length);
  return { row, heaviest: row.indexOf(Math.max(...row)) };
}

// What each head of the layer reads most at a query
function readingText(query) {
  const { part, layer } = state, { queries, keys } = axesOf(part);
  const reads = Array.from({ length: now.model.heads }, (_, n) => {
    const { row, heaviest } = weightsAt(n + 1, query), key = nameOf(keys[heaviest]);
    const what = row[heaviest] ? `${key} at ${heaviest} (${row[heaviest].toFixed(2)})` : "nothing";
    return `head ${n + 1}: ${what}`;
  });
  const predicts = part !== "encoder" && now.given[query];
  const holds = `Place ${query} holds ${nameOf(queries[query])}`
    + (predicts ? ` and predicts ${nameOf(predicts.id)}` : "");
  return `${holds}. In layer ${layer} it reads most, ${reads.join("; ")}.`;
}

// The arithmetic of the chosen cell in a line, its vectors below. Returns the cell's column.
function showArithmetic(query) {
  const { part, layer, head } = state, { queries, keys } = axesOf(part);
  const attention = attentionOf(part, layer), key = state.key ?? weightsAt(head, query).heaviest;
  const cell = now.model.cell(attention, head - 1, query, key, now.switches);
  const where = `${nameOf(queries[query])} at ${query} reads ${nameOf(keys[key])} at ${key}`;
  setText(byId("sum"), `${where}: ${arithmeticOf(cell, attention).join(", ")}`);
  const vectors = { q: cell.q, k: cell.k, v: cell.v, "weights × v": cell.share };
  const rows = Object.entries(vectors).map(([name, values]) => element("tr", {},
    element("th", { scope: "row" }, name),
    Array.from(values, (value) => element("td", {}, value.toFixed(3)))));
  byId("vectors").replaceChildren(
    element("table", { class: "vectors" }, element("tbody", {}, rows)));
  return key;
}

function arithmeticOf(cell, attention) {
  const cap = subject.about.model.score_cap, weight = readable(cell.weights);
  const words = [`q·k = ${readable(cell.product)}`];
  words.push(now.switches.scale
    ? `/ √${now.model.headWidth} → ${readable(cell.scores)}` : "not scaled");
  if (cap) words.push(`cap ${cap} → ${readable(cell.capped)}`);
  if (attention.bias) {
    words.push(`+ ${readable(cell.bias)} for the distance → ${readable(cell.masked)}`);
  }
  words.push(cell.isOpen ? "open" : "closed by the mask");
  words.push(`softmax → ${weight}`, `${weight} × v goes to the output`);
  return words;
}

function readable(number) {
  const isTiny = number !== 0 && Math.abs(number) < 1e-4;
  return isTiny ? number.toExponential(1) : number.toFixed(3);
}

// Writing, step by step ---------------------------------------------------------------------------

function lastStep() {
  return Math.max(now.alone.length, now.given.length) - 1;
}

function showDecoding() {
  const { alone, given, tgtIn, labels } = now;
  const steps = Array.from({ length: lastStep() + 1 }, (_, t) => t);
  const lines = [
    ["reads", steps.map((t) => (t < given.length ? tgtIn[t] : undefined)), false],
    ["answer given", steps.map((t) => given[t]?.id), true],
    ["answer", steps.map((t) => labels?.[t]), false],
    ["alone", steps.map((t) => alone[t]?.id), true],
  ];
  const cellOf = (id, t, isJudged) => {
    const verdict = isJudged && labels ? (id === labels[t] ? "right" : "wrong") : "";
    const text = id === undefined ? "" : nameOf(id);
    return element("td", { class: text ? verdict : "none", "data-step": t }, text);
  };
  const headings = steps.map((t) => element("th", { scope: "col" }, String(t)));
  byId("places").replaceChildren(element("table", {},
    element("caption", { class: "hidden" }, "The places of the decoder"),
    element("thead", {}, element("tr", {}, element("th", { scope: "row" }, "step"), headings)),
    element("tbody", {}, lines.map(([name, ids, isJudged]) => element("tr", {},
      element("th", { scope: "row" }, name), ids.map((id, t) => cellOf(id, t, isJudged)))))));
}

function showStep() {
  const { step } = state, alone = now.alone[step], given = now.given[step];
  setText(byId("step-name"), `step ${step} of ${lastStep()}`);
  byId("first").disabled = byId("back").disabled = step === 0;
  byId("next").disabled = step === lastStep();
  showBars(alone && softmax(alone.logits), given && softmax(given.logits), now.labels?.[step]);
  const { text, isApart } = comparisonAt(step);
  byId("same").classList.toggle("bad", isApart);
  setText(byId("same"), text);
}

// Whether a row of the one pass is the step of decoding that has read the same tokens
function comparisonAt(step) {
  const { alone, given, tgtIn } = now;
  if (!alone[step] || !given[step]) {
    return { text: "One of the two has ended before this step.", isApart: false };
  }
  const read = [BOS, ...alone.slice(0, step).map((each) => each.id)];
  if (read.join() !== tgtIn.slice(0, step + 1).join()) {
    const text = "Alone, the model has read other symbols than the answer's by now.";
    return { text, isApart: false };
  }
  const apart = largestDifference(alone[step].logits, given[step].logits, now.size);
  const row = `Place ${step} of the one pass over the answer`;
  const decoding = `step ${step} of writing alone`;
  if (apart < 1e-9) {
    const how = apart ? `${apart.toExponential(0)} apart` : "equal to the last bit";
    return { text: `${row} is ${decoding}: logits are ${how}.`, isApart: false };
  }
  const why = now.switches.causal ? "pads" : "later places";
  const how = `logits are ${apart.toPrecision(3)} apart, for the pass reads ${why}`;
  return { text: `${row} is NOT ${decoding}: ${how}.`, isApart: true };
}

// Probabilities of the next symbol, and how training would pull: p - 1 at the answer, p elsewhere
function showBars(alone, given, label) {
  const either = alone || given;
  let ids = Array.from(either.keys()).filter((id) => id >= EOS);
  if (ids.length > 16) ids = ids.sort((a, b) => either[b] - either[a]).slice(0, 12);
  const number = (share) => (share === undefined ? "" : share.toFixed(3));
  const bar = (share, kind) => (share === undefined ? null : element("i", {
    class: `bar-${kind}`, style: { width: `${(100 * share).toFixed(2)}%` },
  }));
  const pull = (id) => (label === undefined || !given ? undefined : given[id] - (id === label));
  const rowOfId = (id) => element("tr", { class: id === label ? "wanted" : "" },
    element("th", { scope: "row" }, nameOf(id)),
    element("td", { class: "both" }, bar(alone?.[id], "alone"), bar(given?.[id], "given")),
    [alone?.[id], given?.[id], pull(id)].map((value) => element("td", {}, number(value))));
  const headings = ["next", "probability", "alone", "given", "pull (d loss / d logit)"];
  byId("bars").replaceChildren(element("table", { class: "bars" },
    element("thead", {}, element("tr", {},
      headings.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ids.map(rowOfId))));
}

// How a symbol was learned ------------------------------------------------------------------------

const MOST_SYMBOLS_OF_FATE = 8;

function showFate() {
  const { fates } = now;
  byId("fate-card").hidden = !fates;
  if (!fates) return;
  const t = Math.min(state.step, now.given.length - 1), label = now.labels?.[t];
  const highest = (id) => Math.max(...fates.map((places) => places[t][id]));
  const ids = Array.from(fates[0][t].keys()).filter((id) => id >= EOS)
    .sort((a, b) => highest(b) - highest(a)).slice(0, MOST_SYMBOLS_OF_FATE);
  const answer = label === undefined ? "" : ` The answer is ${nameOf(label)}.`;
  setText(byId("fate-text"), `The probability of each symbol at step ${t} with the answer given, `
    + `after so many steps of training.${answer} A click on a column runs the model of that step.`);
  const rows = ids.map((id) => ({ text: nameOf(id), kind: id === label ? "wanted" : "" }));
  fateGrid.show(rows, subject.steps.map((step) => ({ text: String(step) })), (row, column) => {
    const share = fates[column][t][ids[row]];
    const says = `step ${subject.steps[column]}: ${nameOf(ids[row])} ${share.toFixed(3)}`;
    return { text: shortNumber(share), shade: shadeOf(headColour(0), share), says };
  });
  fateGrid.mark(Math.max(0, ids.indexOf(label)), subject.steps.indexOf(state.at));
}
