// What the page asks in which a model learns.

// says: text, or [text, act]; an act may return a sentence in place of what it could not do.
// why: said once all is answered. asks: guesses, each answered from the counts after one of the acts
const EXPERIMENTS = [
  {
    says: [
      ["Let it learn", () => learnWith([])],
      ". How many sources will it get right alone in the end? And how many that are longer than any "
        + "it has learned? ",
      ["Look at one", () => onSound(() => take(longest(subject.longer)))], ".",
    ],
    why: "A longer source reaches places that no source of its training has had, so it has "
      + "never learned what to do there.",
    asks: [
      { name: "% alone", after: 0, answer: (counts) => shareOf(counts) },
      { name: "% of longer ones", after: 0, answer: (counts) => shareOf(counts.longer) },
    ],
  },
  {
    says: [
      "Add ", ["3 pads", () => onSound(() => change({ ...unswitched(), pads: 3 }))],
      ": how many stay right? Then ",
      ["run without the pad mask", () => onSound(() => change({ ...without("pad"), pads: 3 }))],
      ". And now?",
    ],
    why: "With the mask nobody reads a pad, so it is as if there were none. Without it a pad "
      + "is read like any other symbol.",
    asks: [
      { name: "% with the mask", after: 0, answer: (counts) => shareOf(counts) },
      { name: "% without it", after: 1, answer: (counts) => shareOf(counts) },
    ],
  },
  {
    says: [
      ["Run without the causal mask",
        () => onSound(() => change({ ...without("causal"), part: "decoder" }))],
      ", which it has learned with. How many stay right alone, and how many with the answer given?",
    ],
    why: "Alone, there is nothing later to read. With the answer given, every place now reads "
      + "the symbol that it must predict, which it has never learned to do.",
    asks: [
      { name: "% alone", after: 0, answer: (counts) => shareOf(counts) },
      { name: "% given", after: 0, answer: givenShareOf },
    ],
  },
  {
    says: [
      ["Learn again without the causal mask", () => learnWith(["causal"])],
      ": a new model, which has never had it. How many will be right alone, and how many with the "
        + "answer given?",
    ],
    why: "While it learned, every place could read the symbol that it had to predict, so that "
      + "copying it was all there was to learn. Alone, there is nothing to copy.",
    asks: [
      { name: "% alone", after: 0, answer: (counts) => shareOf(counts) },
      { name: "% given", after: 0, answer: givenShareOf },
    ],
  },
  {
    says: [
      ["Learn without the pad mask", () => learnWith(["pad"])], ", then ",
      ["add 3 pads", () => onOther(["pad"], () => change({ ...unswitched(), pads: 3 }))],
      ". Then ", ["put the mask back", () => onOther(["pad"], () => change({ off: [], pads: 3 }))],
      ". How many are right each time?",
    ],
    why: "It has learned to live with the pads of its batches, but such a row of pads is new "
      + "to it.",
    asks: [
      { name: "% learned", after: 0, answer: (counts) => shareOf(counts) },
      { name: "% with 3 pads", after: 1, answer: (counts) => shareOf(counts) },
      { name: "% mask back", after: 2, answer: (counts) => shareOf(counts) },
    ],
  },
  {
    says: [
      ["Learn to reverse without position codes", () => learnWith(["places"], "reverse")], ", and ",
      ["to sort without them", () => learnWith(["places"], "sort")],
      ". Which of the two can be learned?",
    ],
    why: "Without codes it sees which symbols there are, but not in which order they stand. "
      + "Sorting needs no more than that.",
    asks: [
      { name: "% reverse", after: 0, answer: (counts) => shareOf(counts) },
      { name: "% sort", after: 1, answer: (counts) => shareOf(counts) },
    ],
  },
];

function givenShareOf({ given, done }) {
  return percent(given / done);
}

// Learn a new model without some parts
function learnWith(off, task = wanted.task) {
  const isThis = running && running.subject.chosen.task === task
    && running.subject.chosen.off.join() === off.join();
  if (isThis) return "";  // it answers when it has learned
  if (running) return "A model is learning; wait until it has, or press Pause and take it as it is.";
  const isDone = attemptToLearn({ ...wanted, off, task });
  return isDone ? "" : "First choose above what can be learned.";
}

// Do something to the model that learned with everything; it is shown first
function onSound(act) {
  return onOther([], act);
}

function onOther(off, act) {
  if (running) return "A model is learning; wait until it has.";
  const about = learnedWithoutJust(off, wanted.task);
  if (!about) return `First let one learn ${off.length ? `without ${namesOfLearning(off)}` : "with everything"}.`;
  if (about !== subject) showSubject(about);
  act();
  return "";
}

// Each begins with the model that learned with everything, as it learned.
function beforeExperiment() {
  if (!running) {
    wanted = { ...wanted, off: [] };
    const sound = learnedWithoutJust([], wanted.task);
    if (sound && sound !== subject) showSubject(sound);
    showLearning();
  }
  const { part, layer, head } = startingState();
  return { ...unswitched(), part, layer, head };
}
