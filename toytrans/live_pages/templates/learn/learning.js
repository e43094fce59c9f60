// What a page calls: settings from what was chosen, and a learning of them in the background.

const SLICE_IN_WORKER = 40, SLICE_IN_PAGE = 12;  // milliseconds
const LONGEST_LEARNED = 16, LONGEST_COUNTED = 32, MOST_PADS_COUNTED = 8;  // symbols
const MOST_WIDTH = 128, MOST_LAYERS = 4, MOST_INNER = 512;
const MOST_COUNTED = 5000, MOST_STEPS = 20000, MOST_SEED = 2 ** 31 - 1;

// All that a learning needs. payload: what the page knows of it. chosen: task, model ("small" or
// "textbook", or its sizes), seed, lengths, steps, learn ({ causal: false } learns without it); each
// but the task has a default. Throws an Error with a sentence for what cannot be learned.
function learningSettings(payload, chosen) {
  const { task, model = "small", seed = 0 } = chosen;
  const isNamed = typeof model === "string";
  const base = isNamed ? model : "small";
  if (!Object.hasOwn(payload.models, base)) throw new Error(`no model is called ${base}`);
  if (!Object.hasOwn(TASKS, task)) throw new Error(`no task is called ${task}`);
  const shipped = payload.models[base];
  const lengths = chosen.lengths || shipped.config.data.train_length;
  const steps = chosen.steps ?? shipped.config.train.max_steps;
  checkWhole("the seed", seed, 0, MOST_SEED);
  checkWhole("the number of steps", steps, 1, MOST_STEPS);
  checkWhole("the shortest length", lengths[0], 1, LONGEST_LEARNED);
  checkWhole("the longest length", lengths[1], lengths[0], LONGEST_LEARNED);
  const options = { ...shipped.config.model, ...(isNamed ? {} : model) };
  checkModel(options);
  const learn = Object.fromEntries(
    payload.switches.map(({ name }) => [name, chosen.learn?.[name] !== false]));
  const switches = { ...EVERYTHING };
  for (const { name, switches: off } of payload.switches) {
    if (!learn[name]) for (const each of off) switches[each] = false;
  }
  const data = { ...shipped.config.data, task, train_length: lengths };
  const warmup = Math.min(shipped.config.train.warmup_steps, Math.floor(steps / 3));
  const train = { ...shipped.config.train, max_steps: steps, warmup_steps: warmup };
  return {
    task, rule: payload.rules[task], seed, lengths, steps, learn, switches,
    base, name: isNamed ? model : nameOfSizes(options),
    shipped, learnSwitches: payload.switches, version: payload.version,
    symbols: payload.about.symbols,
    config: { data, model: options, train },
    about: { ...payload.about, model: options },
  };
}

function checkWhole(what, value, least, most) {
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new Error(`${what} is a whole number from ${least} to ${most.toLocaleString("en")}`);
  }
}

function checkModel(options) {
  const { d_model: width, n_heads: heads, d_ff: inner } = options;
  checkWhole("the width", width, 8, MOST_WIDTH);
  checkWhole("the number of heads", heads, 1, Math.floor(width / 8));
  checkWhole("the number of encoder layers", options.n_encoder_layers, 1, MOST_LAYERS);
  checkWhole("the number of decoder layers", options.n_decoder_layers, 1, MOST_LAYERS);
  checkWhole("the inner width", inner, 8, MOST_INNER);
  if (width % (8 * heads)) throw new Error("each head has a width of 8, 16, 24 and so on");
  if (inner % 8) throw new Error("the inner width is a multiple of 8");
}

function nameOfSizes(options) {
  const { d_model, n_heads, n_encoder_layers, n_decoder_layers, d_ff } = options;
  const heads = n_heads === 1 ? "1 head" : `${n_heads} heads`;
  return `d ${d_model}, ${heads}, ${n_encoder_layers}+${n_decoder_layers} layers, d_ff ${d_ff}`;
}

// Begin to learn, in a worker where one can be made, else in slices in the page. onMessage gets
// what worker.js tells, and in `made` also where it learns. After `stop` it gets nothing.
function startLearning(settings, onMessage) {
  let hearer = null, hasBegun = false, isStopped = false;
  const said = [];  // until it has begun, so that another can hear it
  const say = (message) => {
    if (!hasBegun) said.push(message);
    hearer.hear(message);
  };
  const told = (message) => {
    if (isStopped) return;
    hasBegun = true;
    onMessage(message.type === "made" ? { ...message, where: hearer.where } : message);
  };
  const failed = (message) => {
    if (hasBegun) return told({ type: "failed", message });
    hearer = inPage(told);
    said.forEach(hearer.hear);
  };
  hearer = inWorker(told, failed) || inPage(told);
  say({ type: "start", settings });
  return {
    pause: () => say({ type: "pause" }),
    goOn: () => say({ type: "go on" }),
    weights: () => say({ type: "weights" }),
    end: () => say({ type: "end" }),
    count: (wanted = {}) => {
      checkCount(wanted);
      say({ ...wanted, type: "count" });
    },
    stop: () => {
      isStopped = true;
      hearer.stop();
    },
  };
}

function checkCount({ lengths: [low, high] = [1, 1], pads = 0, of = 1 }) {
  checkWhole("the shortest length", low, 1, LONGEST_COUNTED);
  checkWhole("the longest length", high, low, LONGEST_COUNTED);
  checkWhole("the number of pads", pads, 0, MOST_PADS_COUNTED);
  checkWhole("the number of pairs", of, 1, MOST_COUNTED);
}

// The worker runs the text of the very script that this is a part of. null where none can be made;
// some browsers say so later, by an error before its first message.
function inWorker(told, failed) {
  const text = document.getElementById("engine").textContent;
  const start = `
    const learning = new Learning((message) => postMessage(message), ${SLICE_IN_WORKER});
    onmessage = ({ data }) => learning.hear(data);`;
  const address = URL.createObjectURL(new Blob([text, start]));
  let worker;
  try {
    worker = new Worker(address);
  } catch {
    return null;
  }
  worker.onmessage = ({ data }) => {
    URL.revokeObjectURL(address);
    told(data);
  };
  worker.onerror = (event) => failed(event.message);
  return {
    where: "worker",
    hear: (message) => worker.postMessage(message),
    stop: () => {
      worker.onmessage = worker.onerror = null;
      worker.terminate();
    },
  };
}

function inPage(told) {
  const learning = new Learning((message) => setTimeout(() => told(message)), SLICE_IN_PAGE);
  return {
    where: "page",
    hear: (message) => setTimeout(() => learning.hear(message)),
    stop: () => learning.stop(),
  };
}
