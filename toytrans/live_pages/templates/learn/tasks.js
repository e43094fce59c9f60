// The pairs of a task and the batches of a training, as toytrans deals them for a seed.
//
// Pair i of a split depends on (seed, split, i) alone; sources of validation are not trained on,
// but for short ones, of which there are too few. Pairs are dealt in pools of some thousand, which
// are sorted by length, cut into batches of at most so many padded tokens, and shuffled.

const SPLITS = ["train", "valid", "test"], HELD_OUT_ONE_IN = 16n, FEWEST_SOURCES = 10000;
const USE_POOL = 4, SMALLEST_POOL = 4096, BATCHES_OF_A_POOL = 32;

const TASKS = {
  reverse: (source) => [...source].reverse(),
  copy: (source) => source,
  sort: (source) => [...source].sort((a, b) => a - b),
};

// Pairs -----------------------------------------------------------------------------------------

class TaskDataset {
  // data: that section of the config: task, symbols, train_length, batch_tokens
  constructor(data, seed) {
    this.data = data;
    this.seed = seed;
    this.targetOf = TASKS[data.task];
    this.addresses = SPLITS.map((_, n) => keyOf(seed, n));
  }

  // Pair number `index` of a split: { source, target }, symbols numbered from 0
  pair(split, index, lengths = this.data.train_length) {
    const key = rowKey(index, this.addresses[SPLITS.indexOf(split)]), [low, high] = lengths;
    const length = low + draw(key, 0, high - low + 1);
    let source = this.symbolsOf(mix(key), length);
    for (let again = 1n; !this.belongs(source, split); again++) {
      source = this.symbolsOf(mix(mix(word(key + again))), length);
    }
    return { source, target: this.targetOf(source) };
  }

  pairs(split, first, count, lengths) {
    return Array.from({ length: count }, (_, n) => this.pair(split, first + n, lengths));
  }

  symbolsOf(key, length) {
    return Array.from({ length }, (_, t) => draw(key, t, this.data.symbols));
  }

  // Whether a split may use a source: one in 16 is for validation, one for test
  belongs(source, split) {
    if (this.data.symbols ** source.length < FEWEST_SOURCES) return true;
    const lot = fingerprint(source, this.seed) % HELD_OUT_ONE_IN;
    return { train: lot > 1n, valid: lot === 0n, test: lot === 1n }[split];
  }
}

// Batches ---------------------------------------------------------------------------------------

// A padded batch: src (B, S), tgtIn and tgtOut (B, T), one row after the other in each array.
// pairs: those in it. Widths are those that the longest pair needs, or wider.
function batchOf(pairs, srcWidth = 0, tgtWidth = 0) {
  const S = Math.max(srcWidth, ...pairs.map(({ source }) => source.length + 1));
  const T = Math.max(tgtWidth, ...pairs.map(({ target }) => target.length + 1));
  const rows = pairs.length, src = new Int32Array(rows * S);
  const tgtIn = new Int32Array(rows * T), tgtOut = new Int32Array(rows * T);
  pairs.forEach(({ source, target }, row) => {
    const [sourceIds, targetIds] = [source, target].map(idsOf);
    src.set([...sourceIds, EOS], row * S);
    tgtIn.set([BOS, ...targetIds], row * T);
    tgtOut.set([...targetIds, EOS], row * T);
  });
  return { pairs, rows, S, T, src, tgtIn, tgtOut };
}

function idsOf(symbols) {
  return symbols.map((symbol) => FIRST_SYMBOL + symbol);
}

// Rows first .. last - 1 of a batch
function rowsOfBatch({ pairs, S, T, src, tgtIn, tgtOut }, first, last) {
  const [srcRows, inRows, outRows] = [[src, S], [tgtIn, T], [tgtOut, T]].map(
    ([ids, width]) => ids.subarray(first * width, last * width));
  const rows = outRows.length / T;
  return { pairs: pairs.slice(first, last), rows, S, T, src: srcRows, tgtIn: inRows, tgtOut: outRows };
}

// The padded size of a length: even to 16, then in steps of a quarter of the power of two below
function bucket(length) {
  const step = length > 16 ? 2 ** (Math.floor(Math.log2(length)) - 2) : 2;
  return Math.ceil(length / step) * step;
}

// Rows of `width` tokens that a batch may have: a multiple of 8 where they are more than 8
function rowsWithin(batchTokens, width) {
  const rows = Math.max(1, Math.floor(batchTokens / width));
  return rows > 8 ? rows - rows % 8 : rows;
}

// Pairs sorted from long to short and cut into as few batches as full ones would be, all about
// equally full: a list of { members, S, T }. members: indices of pairs
function plannedBatches(pairs, batchTokens) {
  const srcWidths = pairs.map(({ source }) => bucket(source.length + 1));
  const tgtWidths = pairs.map(({ target }) => bucket(target.length + 1));
  const widest = Math.max(...srcWidths) + 1;
  const keys = pairs.map((_, n) => tgtWidths[n] * widest + srcWidths[n]);
  const order = pairs.map((_, n) => n).sort((a, b) => keys[b] - keys[a] || a - b);
  const cut = (filled) => {
    const plans = [];
    for (let start = 0; start < order.length;) {
      const T = tgtWidths[order[start]];
      const mostRows = rowsWithin(batchTokens, srcWidths[order[start]] + T);
      const along = order.slice(start, start + mostRows);  // all that may come along
      const S = Math.max(...along.map((n) => srcWidths[n]));
      const count = Math.max(1, Math.floor(rowsWithin(batchTokens, S + T) * filled));
      plans.push({ members: order.slice(start, start + count), S, T });
      start += count;
    }
    return plans;
  };
  // the least share of rows that needs no more batches, in steps of 1/128, is found by halving
  let plans = cut(1), low = 65, high = 128;
  const fewest = plans.length;
  while (low < high) {
    const middle = Math.floor((low + high) / 2), tried = cut(middle / 128);
    if (tried.length <= fewest) [plans, high] = [tried, middle];
    else low = middle + 1;
  }
  return plans;
}

// Endless training batches
function* trainingBatches(taskPairs) {
  const { data, seed } = taskPairs, [low, high] = data.train_length;
  const aboutABatch = Math.floor(BATCHES_OF_A_POOL * data.batch_tokens / (low + high + 3));
  const size = Math.max(aboutABatch, SMALLEST_POOL);
  for (let pool = 0; ; pool++) {
    const pairs = taskPairs.pairs("train", pool * size, size);
    const plans = plannedBatches(pairs, data.batch_tokens);
    for (const number of permutation(plans.length, keyOf(seed, USE_POOL, pool))) {
      const { members, S, T } = plans[number];
      yield batchOf(members.map((n) => pairs[n]), S, T);
    }
  }
}
