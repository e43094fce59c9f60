// What the page of a run asks.

// says: text, or [text, act]. asks: guesses, each answered from the counts after one of the acts
const EXPERIMENTS = [
  {
    says: [
      ["Give it a longer source", () => take(longest([...subject.longer, ...subject.pairs]))],
      " than it has learned. At which place is the first wrong symbol, and how many such sources "
        + "does it get right?",
    ],
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
    asks: [{ name: "% alone", after: 0, answer: (counts) => shareOf(counts) }],
  },
];

// Each begins with the model as it learned.
function beforeExperiment() {
  const { part, layer, head } = startingState();
  return { ...unswitched(), part, layer, head };
}
