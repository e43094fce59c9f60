// The model that is on the screen: what is known of it, its weights at some steps of its training,
// and the pairs that it is counted on. The weights may come from anywhere; those of a run stand in
// the page.

let subject;  // the one that is shown

// Gives the model of a step of training. weightsAt(step): arrays of numbers by their names
function modelAt(step) {
  const { models, about, weightsAt } = subject;
  if (!models.has(step)) models.set(step, new Model(about, weightsAt(step)));
  return models.get(step);
}

// about: see Model; also task, rule, train_length, run and what else the head of the page says.
// pairs: { source, answer, seen }, counted on; seen: training has met the source. longer: pairs
// whose source is longer than any of training. curve: [step, loss] in ascending order. proof: rows
// of a batch with PyTorch's logits. steps: those of training whose weights there are; step: the
// last of them, which is shown at first. answerOf: gives the answer to any source, where the page
// knows the task. A model that learns here has also what was chosen, its settings, whether it
// isLearning, its name on the shelf, and its shares and counted: see shelf.js. counts: by what they were counted with
function subjectOfRun({ about, pairs, longer, curve, proof, snapshots, shapes }) {
  const weightsAt = (step) => {
    const { kind, weights } = snapshots.find((snapshot) => snapshot.step === step);
    return unpacked(weights, kind, shapes);
  };
  return {
    about, curve, proof, weightsAt,
    pairs: pairs.map(([source, answer, seen]) => ({ ...pairOf(source, answer), seen: seen === 1 })),
    longer: longer.map(([source, answer]) => pairOf(source, answer)),
    steps: snapshots.map((snapshot) => snapshot.step),
    step: snapshots.find((snapshot) => snapshot.kind === "f4").step,
    models: new Map(), counts: new Map(),
  };
}

function pairOf(source, answer) {
  return { source: symbolsIn(source), answer: symbolsIn(answer) };
}

function symbolsIn(text) {
  return text.trim() ? text.trim().split(/\s+/) : [];
}
