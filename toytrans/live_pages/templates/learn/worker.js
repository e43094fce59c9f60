// A learning from its first weights to its last step, in slices, so that it hears what it is told.
//
// It knows neither a page nor a worker: learning.js lets it run in either. Messages are plain
// objects with a `type`. It hears
//
//     start { settings }             learn from nothing; settings as learningSettings makes them
//     pause, go on                   what comes after a pause has the same bits as without it
//     weights                        ask for the weights of this step
//     count { lengths, pads, of }    ask for a count; each may be left out
//     end                            be done at this step
//     stop                           for good
//
// and it tells
//
//     made { engine, parameters, steps }
//     step { step, loss, losses, seconds }   after each slice; losses in nats a token, those since
//                                            the last such message; seconds of steps alone
//     counted { step, alone, given, of, seen, unseen, lengths, pads, asked }
//                                            how many validation pairs are right; seen and unseen
//                                            are { alone, given, of } of sources that training has
//                                            met and has not; lengths null = those of training
//     weights { step, tensors, shapes, pairsUsed }
//                                            numbers by the names of a checkpoint; pairs of training
//                                            that were dealt up to this step
//     done { step, seconds, met }            met: of each of those pairs, whether training has met
//                                            its source
//     paused { step }, failed { message }
//
// Weights and a count come by themselves at step 0 and at the end, counts some forty times between.

const COUNTS = 40, FEWEST_STEPS_BETWEEN = 10, COUNTED_PAIRS = 500;

class Learning {
  // tell: takes a message. sliceTime: milliseconds until it listens again
  constructor(tell, sliceTime) {
    this.tell = tell;
    this.sliceTime = sliceTime;
    this.isGoing = false;
    this.isWaiting = false;  // for its next slice
    this.next = new MessageChannel();
    this.next.port1.onmessage = () => this.guarded(() => this.slice());
  }

  hear(message) {
    this.guarded(() => {
      if (message.type === "start") this.start(message.settings);
      else if (message.type === "go on") this.goOn();
      else if (message.type === "pause") this.pause();
      else if (message.type === "weights") this.tellWeights();
      else if (message.type === "count") this.count({ ...message, asked: true });
      else if (message.type === "end") this.endHere();
      else if (message.type === "stop") this.stop();
    });
  }

  // A learning that has failed goes no further.
  guarded(act) {
    try {
      act();
    } catch (error) {
      this.isGoing = false;
      this.tell({ type: "failed", message: String(error && error.message || error) });
    }
  }

  start(settings) {
    const { config, symbols, seed, steps, switches, kernels } = settings;
    this.settings = settings;
    this.train = { ...config.train, max_steps: steps };
    this.pairs = new TaskDataset(config.data, seed);
    const longest = LONGEST_COUNTED + MOST_PADS_COUNTED + 1;  // which no training batch is as wide as
    const size = FIRST_SYMBOL + symbols.length;
    this.learner = new Learner(config.model, size, switches, longest, kernels);
    this.learner.load(firstWeights(this.learner.parameters, seed));
    this.batches = trainingBatches(this.pairs);
    this.met = new Set();
    this.pairsUsed = 0;
    this.losses = [];
    this.seconds = 0;
    this.countEvery = Math.max(FEWEST_STEPS_BETWEEN, Math.round(steps / COUNTS));
    this.counted = {};  // pairs in groups of one length, by what was asked for
    const parameters = this.learner.parameters.reduce((sum, [, shape]) => sum + countOf(shape), 0);
    this.tell({ type: "made", engine: this.learner.kernels.name, parameters, steps });
    this.tellWeights();
    this.count({});
    this.goOn();
  }

  get isAtEnd() {
    return this.learner.step >= this.settings.steps;
  }

  goOn() {
    this.isGoing = !this.isAtEnd;
    if (this.isGoing && !this.isWaiting) this.wait();
  }

  pause() {
    if (!this.isGoing) return;
    this.isGoing = false;
    this.tell({ type: "paused", step: this.learner.step });
  }

  stop() {
    this.isGoing = false;
    this.tell = () => {};
    this.next.port1.close();
  }

  wait() {
    this.isWaiting = true;
    this.next.port2.postMessage(null);
  }

  slice() {
    this.isWaiting = false;
    if (!this.isGoing) return;
    const began = performance.now();
    let isCounting = false;
    while (!isCounting && performance.now() - began < this.sliceTime) {
      this.takeStep();
      isCounting = this.isAtEnd || this.learner.step % this.countEvery === 0;
    }
    this.seconds += (performance.now() - began) / 1000;
    this.tellSteps();
    if (isCounting) this.count({});
    if (this.isAtEnd) this.end();
    else this.wait();
  }

  takeStep() {
    const batch = this.batches.next().value;
    this.losses.push(this.learner.learn(batch, this.train));
    for (const { source } of batch.pairs) this.met.add(source.join());
    this.pairsUsed += batch.pairs.length;
    if (!Number.isFinite(this.losses.at(-1))) {
      throw new Error(`the loss is not finite at step ${this.learner.step}`);
    }
  }

  // At a step before the last, which has not been counted
  endHere() {
    this.count({});
    this.end();
  }

  end() {
    this.isGoing = false;
    this.tellWeights();
    const met = this.pairs.pairs("valid", 0, COUNTED_PAIRS)
      .map(({ source }) => this.met.has(source.join()));
    this.tell({ type: "done", step: this.learner.step, seconds: this.seconds, met });
  }

  tellSteps() {
    const losses = this.losses, { seconds } = this;
    this.losses = [];
    this.tell({ type: "step", step: this.learner.step, loss: losses.at(-1), losses, seconds });
  }

  tellWeights() {
    const { step, parameters: shapes } = this.learner, { pairsUsed } = this;
    this.tell({ type: "weights", step, tensors: this.learner.weights(), shapes, pairsUsed });
  }

  count({ lengths = null, pads = 0, of = COUNTED_PAIRS, asked = false }) {
    const counts = { ...noneRight(), seen: noneRight(), unseen: noneRight() };
    this.counted[`${lengths} ${of}`] ??= byLength(
      this.pairs.pairs("valid", 0, of, lengths ?? undefined));
    for (const alike of this.counted[`${lengths} ${of}`]) {
      judgedPairs(this.learner, alike, pads).forEach((right, n) => {
        const group = this.met.has(alike[n].source.join()) ? counts.seen : counts.unseen;
        for (const part of [counts, group]) {
          part.alone += right.alone;
          part.given += right.given;
          part.of++;
        }
      });
    }
    this.tell({ type: "counted", step: this.learner.step, ...counts, lengths, pads, asked });
  }
}

function noneRight() {
  return { alone: 0, given: 0, of: 0 };
}

// Pairs in groups of one length, so that none of them needs a pad
function byLength(pairs) {
  const groups = new Map();
  for (const pair of pairs) {
    const { length } = pair.source;
    groups.set(length, [...(groups.get(length) || []), pair]);
  }
  return [...groups.values()];
}
