// What the page of a run asks.

// says: text, or [text, act]. why: said once all is answered. asks: guesses, each answered from the counts after one of the acts
const EXPERIMENTS = [
  {
    says: [
      ["Give it a longer source", () => take(longest([...subject.longer, ...subject.pairs]))],
      " than it has learned. At which place is the first wrong symbol, and how many such sources "
        + "does it get right?",
    ],
    why: "A longer source reaches places that no source of its training has had, so it has "
      + "never learned what to do there.",
    asks: [
      { name: "place", after: 0, answer: firstWrongPlace },
      { name: "% of longer ones", after: 0, answer: (counts) => shareOf(counts.longer) },
    ],
  },
  {
    says: [
      "Add ", ["3 pads", () => change({ ...unswitched(), pads: 3 })], ": how many stay right? Then ",
      ["run without the pad mask", () => change({ ...without("pad"), pads: 3 })], ". And now?",
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
      ["Run without the causal mask", () => change({ ...without("causal"), part: "decoder" })],
      ". How many stay right alone, and how many with the answer given?",
    ],
    why: "Alone, there is nothing later to read. With the answer given, every place now reads "
      + "the symbol that it must predict, which it has never learned to do.",
    asks: [
      { name: "% alone", after: 0, answer: (counts) => shareOf(counts) },
      { name: "% given", after: 0, answer: ({ given, done }) => percent(given / done) },
    ],
  },
  {
    says: [
      ["Run without position codes", () => change(without("places"))],
      ". Which answers can still come out? And how many ",
      ["without the scale", () => change(without("scale"))], "?",
    ],
    why: "Without codes it sees which symbols there are, but not in which order they stand; "
      + "and the scale is what the sharpness of every softmax was learned with.",
    asks: [
      { name: "% no positions", after: 0, answer: (counts) => shareOf(counts) },
      { name: "% no scale", after: 1, answer: (counts) => shareOf(counts) },
    ],
  },
  {
    says: [
      "Choose a head below, then ", ["switch it off", () => toggleHead(false)],
      ". How many stay right? Which one can the model do least without?",
    ],
    why: "Heads of one layer may do the same work, so that one can be missed, or work of their "
      + "own.",
    asks: [{ name: "% alone", after: 0, answer: (counts) => shareOf(counts) }],
  },
];

// Each begins with the model as it learned.
function beforeExperiment() {
  const { part, layer, head } = startingState();
  return { ...unswitched(), part, layer, head };
}
