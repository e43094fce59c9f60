// The encoder-decoder transformer of Vaswani et al. 2017 in plain JavaScript, as toytrans has it.
//
// Nothing here knows of a page. One pair is run at a time, because the rows of a batch never meet.
// A matrix (rows, columns) is one array, row after row. Weights are the fp32 numbers of the run,
// and what is computed from them is fp64. Parts of the model can be switched off while it runs, and
// every attention keeps its steps, so that a page can show them.

const PAD = 0, BOS = 1, EOS = 2, FIRST_SYMBOL = 3;

// What may be switched off. headOff names one head, "cross.2.1" say: part, layer and head, from 1.
const EVERYTHING = Object.freeze({
  encoderPads: true, decoderPads: true, crossPads: true, causal: true, scale: true, places: true,
  headOff: "",
});

class Model {
  // about: options of the model as in a config, symbols, separators, source_bos, target_growth
  // weights: arrays of numbers by the names that they have in a checkpoint
  constructor(about, weights) {
    this.about = about;
    this.options = about.model;
    this.weights = weights;
    this.width = this.options.d_model;  // D
    this.heads = this.options.n_heads;  // H
    this.headWidth = this.width / this.heads;  // Dh
    for (const name of [this.options.positions, this.options.cross_positions]) {
      if (!POSITIONS[name]) throw Error(`positions ${name}: not in POSITIONS of model.js`);
    }
  }

  // src (S), tgtIn (T) ids -> logits (T, V) of the symbol after each place, and every attention
  forward(src, tgtIn, switches = EVERYTHING) {
    const encoded = this.encode(src, switches);
    return { ...encoded, ...this.decode(tgtIn, encoded, switches) };
  }

  // src (S) ids -> memory (S, D), and what each decoder layer's cross-attention makes of it
  encode(src, switches = EVERYTHING) {
    const mask = masksOf(src, [], this.options.pad_mask, switches).encoder;
    const encoder = [];
    let x = this.embed("src_embedding", src, 0, switches);  // (S, D)
    for (const [n, layer] of this.layerNames("encoder").entries()) {
      x = this.residual(`${layer}.residuals.0`, x, (y) => {
        const name = `${layer}.self_attention`;
        const distance = this.selfDistance(0);
        const { q, k, v } = this.selfProjections(name, y, 0, switches);
        encoder.push(this.attend(name, q, k, v, mask, distance, switches, `encoder.${n + 1}`));
        return encoder.at(-1).output;
      });
      x = this.residual(`${layer}.residuals.1`, x, (y) => this.feedForward(layer, y));
    }
    const memory = this.finalNorm("encoder_norm", x);
    const keysValues = this.layerNames("decoder").map((layer) => {
      const name = `${layer}.cross_attention`;
      return { k: this.project(name, memory, 1), v: this.project(name, memory, 2) };
    });
    return { src, memory, keysValues, encoder };
  }

  // tgtIn (T) ids -> logits (T, V). With a cache only the places that it does not hold yet are
  // computed; it then holds the keys and values of these too. A cache is right only where no place
  // sees a later one, for only then an earlier place stays what it was when tokens are added.
  decode(tgtIn, encoded, switches = EVERYTHING, cache = { places: 0, layers: [] }) {
    const start = cache.places, { src } = encoded;
    const masks = masksOf(src, tgtIn, this.options.pad_mask, switches);
    const selfMask = masks.decoder.from(start), crossMask = masks.cross.from(start);
    const decoder = [], cross = [];
    let x = this.embed("tgt_embedding", tgtIn.slice(start), start, switches);  // (T, D)
    for (const [n, layer] of this.layerNames("decoder").entries()) {
      x = this.residual(`${layer}.residuals.0`, x, (y) => {
        const name = `${layer}.self_attention`;
        const { q, k, v } = this.selfProjections(name, y, start, switches);
        const past = cache.layers[n] || { k: [], v: [] };
        const all = cache.layers[n] = { k: joined(past.k, k), v: joined(past.v, v) };
        const distance = this.selfDistance(start);
        const where = `decoder.${n + 1}`;
        decoder.push(this.attend(name, q, all.k, all.v, selfMask, distance, switches, where));
        return decoder.at(-1).output;
      });
      x = this.residual(`${layer}.residuals.1`, x, (y) => {
        const name = `${layer}.cross_attention`;
        const { k, v } = encoded.keysValues[n], q = this.project(name, y, 0);
        const distance = this.crossDistance(src, start);
        cross.push(this.attend(name, q, k, v, crossMask, distance, switches, `cross.${n + 1}`));
        return cross.at(-1).output;
      });
      x = this.residual(`${layer}.residuals.2`, x, (y) => this.feedForward(layer, y));
    }
    cache.places = tgtIn.length;
    const table = this.weights["output.weight"] || this.weights["src_embedding.weight"];
    return { logits: linear(this.finalNorm("decoder_norm", x), table, this.width), decoder, cross };
  }

  // The likeliest token at every step, read by the next one: a list of { id, logits (V) }. The
  // model is applied to the whole prefix at each step. Under the causal mask the rows of earlier
  // places cannot change, so they are kept; that is a shortcut, and gives the same bits.
  greedy(encoded, switches = EVERYTHING, most = this.mostTokens(encoded.src)) {
    const prefix = [BOS], steps = [], kept = { places: 0, layers: [] };
    while (steps.length < most) {
      const cache = switches.causal ? kept : undefined;
      const { logits } = this.decode(prefix, encoded, switches, cache);
      const last = logits.slice(-this.vocabularySize);
      const id = likeliest(last);
      steps.push({ id, logits: last });
      if (id === EOS) break;
      prefix.push(id);
    }
    return steps;
  }

  get vocabularySize() {
    return FIRST_SYMBOL + this.about.symbols.length;  // V
  }

  // Tokens that a source may become, the end included. The length of the answer is not known.
  mostTokens(src) {
    const symbols = src.filter((id) => id >= FIRST_SYMBOL).length;
    const most = this.about.target_growth * symbols + 10;
    return Math.min(most, this.about.max_length ?? most);
  }

  // Symbols as the encoder reads them, with their ends and some pads
  sourceIds(symbols, pads = 0) {
    const ids = symbols.map((symbol) => FIRST_SYMBOL + this.about.symbols.indexOf(symbol));
    return [...(this.about.source_bos ? [BOS] : []), ...ids, EOS, ...Array(pads).fill(PAD)];
  }

  // Layers --------------------------------------------------------------------------------------

  // With shared layers one layer stands for the whole depth.
  layerNames(side) {
    const depth = this.options[`n_${side}_layers`], shared = this.options.share_layers;
    return Array.from({ length: depth }, (_, n) => `${side}_layers.${shared ? 0 : n}`);
  }

  // pre-norm: x + f(norm(x)); post-norm: norm(x + f(x))
  residual(name, x, sublayer) {
    const pre = this.options.norm === "pre";
    const sum = added(x, sublayer(pre ? this.layerNorm(`${name}.norm`, x) : x));
    return pre ? sum : this.layerNorm(`${name}.norm`, sum);
  }

  finalNorm(name, x) {
    return this.options.norm === "pre" ? this.layerNorm(name, x) : x;
  }

  layerNorm(name, x) {
    const gain = this.weights[`${name}.weight`], bias = this.weights[`${name}.bias`];
    const width = gain.length, y = new Float64Array(x.length);
    for (let row = 0; row < x.length; row += width) {
      let mean = 0, variance = 0;
      for (let c = 0; c < width; c++) mean += x[row + c] / width;
      for (let c = 0; c < width; c++) variance += (x[row + c] - mean) ** 2 / width;
      const root = Math.sqrt(variance + 1e-5);
      for (let c = 0; c < width; c++) y[row + c] = (x[row + c] - mean) / root * gain[c] + bias[c];
    }
    return y;
  }

  feedForward(layer, x) {
    const [inner, outer] = [0, 3].map((n) => `${layer}.feed_forward.${n}`);
    const hidden = this.linearOf(inner, x, this.width).map(ACTIVATIONS[this.options.activation]);
    return this.linearOf(outer, hidden, this.options.d_ff);
  }

  linearOf(name, x, inner) {
    return linear(x, this.weights[`${name}.weight`], inner, this.weights[`${name}.bias`]);
  }

  // Ids (L) of places start .. start + L - 1 -> (L, D): embedding times root D, and the place
  embed(name, ids, start, switches) {
    const table = this.weights[`${name}.weight`] || this.weights["src_embedding.weight"];
    const x = new Float64Array(ids.length * this.width), root = Math.sqrt(this.width);
    const vectorOf = switches.places && POSITIONS[this.options.positions].vectorOf;
    const drawn = this.about.fixed_places;  // those of a model with random positions
    ids.forEach((id, n) => {
      const row = table.subarray(id * this.width, (id + 1) * this.width);
      const place = drawn ? drawn[start + n] : start + n;
      const vector = vectorOf && vectorOf(place, this.width, this.weights);
      row.forEach((value, c) => {
        x[n * this.width + c] = value * root + (vector ? vector[c] : 0);
      });
    });
    return x;
  }

  // Attention -----------------------------------------------------------------------------------

  // Queries (part 0), keys (1) or values (2) of x (L, D) -> (L, D), the heads side by side
  project(name, x, part) {
    const weight = this.weights[`${name}.in_proj.weight`];
    const bias = this.weights[`${name}.in_proj.bias`], { width } = this;
    return linear(x, weight, width, bias, part * width, (part + 1) * width);
  }

  // Those of self-attention, rotated by their places where the scheme does so
  selfProjections(name, x, start, switches) {
    const [q, k, v] = [0, 1, 2].map((part) => this.project(name, x, part));
    if (switches.places && POSITIONS[this.options.positions].rotates) {
      for (const vectors of [q, k]) rotate(vectors, this.headWidth, this.width, start);
    }
    return { q, k, v };
  }

  // softmax(cap(q k^T / root Dh) + bias, masked) v. Every step has the name that `trace` gives it.
  // q (Tq, D); k and v (Tk, D). where: part and layer, "cross.2" say
  attend(name, q, k, v, mask, distance, switches, where) {
    const capped = this.scores(q, k, switches);  // (H, Tq, Tk)
    const bias = switches.places ? this.positionBias(name, distance, mask) : null;
    const biased = bias ? added(capped, bias) : capped;
    const weights = maskedSoftmax(biased, mask, this.heads);  // (H, Tq, Tk)
    const outputs = this.mixed(weights, v, mask);  // (Tq, D)
    const [part, layer, head] = switches.headOff.split(".");
    if (where === `${part}.${layer}`) this.silence(outputs, Number(head) - 1);
    const output = this.linearOf(`${name}.out_proj`, outputs, this.width);
    return { q, k, v, mask, bias, masked: biased, weights, outputs, output };
  }

  // (H, Tq, Tk): q k^T / root Dh of each head, under the cap if there is one
  scores(q, k, switches) {
    const { width, headWidth, heads } = this, cap = this.options.score_cap;
    const scale = switches.scale ? headWidth ** -0.5 : 1;
    const rows = q.length / width, keys = k.length / width;
    const scores = new Float64Array(heads * rows * keys);
    let at = 0;
    for (let head = 0; head < heads; head++) {
      for (let i = 0; i < rows; i++) {
        for (let j = 0; j < keys; j++) {
          const first = i * width + head * headWidth, second = j * width + head * headWidth;
          const score = dot(q, first, k, second, headWidth) * scale;
          scores[at++] = cap ? cap * Math.tanh(score / cap) : score;
        }
      }
    }
    return scores;
  }

  // The arithmetic of one weight: head, query and key from 0. Numbers have their names in `trace`;
  // share (Dh) is what the key's value gives to the head's output
  cell(attention, head, query, key, switches) {
    const { headWidth: size, width } = this, { mask } = attention;
    const part = (vectors, row) => {
      const first = row * width + head * size;
      return vectors.subarray(first, first + size);
    };
    const q = part(attention.q, query), k = part(attention.k, key), v = part(attention.v, key);
    const at = (head * mask.rows + query) * mask.keys + key, cap = this.options.score_cap;
    const product = dot(q, 0, k, 0, size);
    const scores = product * (switches.scale ? size ** -0.5 : 1);
    const weights = attention.weights[at];
    return {
      q, k, v, product, scores, weights,
      capped: cap ? cap * Math.tanh(scores / cap) : scores,
      bias: attention.bias ? attention.bias[at] : 0,
      masked: attention.masked[at],
      isOpen: mask.isOpen(query, key),
      share: v.map((value) => value * weights),
    };
  }

  // (Tq, D): for each head the mean of the values under its weights
  mixed(weights, v, mask) {
    const { width, headWidth, heads } = this, outputs = new Float64Array(mask.rows * width);
    let at = 0;
    for (let head = 0; head < heads; head++) {
      for (let i = 0; i < mask.rows; i++) {
        for (let j = 0; j < mask.keys; j++) {
          const weight = weights[at++], to = i * width + head * headWidth;
          const from = j * width + head * headWidth;
          if (weight) for (let c = 0; c < headWidth; c++) outputs[to + c] += weight * v[from + c];
        }
      }
    }
    return outputs;
  }

  // Set what one head gives to 0, in outputs (Tq, D)
  silence(outputs, head) {
    for (let row = 0; row < outputs.length; row += this.width) {
      outputs.fill(0, row + head * this.headWidth, row + (head + 1) * this.headWidth);
    }
  }

  // How far key j is from query i, as the position scheme measures it for a head; null = no bias
  selfDistance(start) {
    const scheme = POSITIONS[this.options.positions];
    return scheme.worth ? { scheme, of: (head, i, j) => start + i - j } : null;
  }

  crossDistance(src, start) {
    const scheme = POSITIONS[this.options.cross_positions];
    if (!scheme.worth) return null;
    const anchors = scheme.anchors(src, this.about.separators);
    return { scheme, of: (head, t, j) => anchors[head % anchors.length](start + t, j) };
  }

  // What heads add to their scores for distances: (H, Tq, Tk), or null
  positionBias(name, distance, mask) {
    if (!distance) return null;
    const { heads } = this, table = this.weights[`${name}.bias_table`];  // (H, F)
    const bias = new Float64Array(heads * mask.rows * mask.keys);
    let at = 0;
    for (let head = 0; head < heads; head++) {
      const learned = table && rowOf(table, head, table.length / heads);
      for (let i = 0; i < mask.rows; i++) {
        for (let j = 0; j < mask.keys; j++) {
          bias[at++] = distance.scheme.worth(distance.of(head, i, j), learned, head, heads);
        }
      }
    }
    return bias;
  }
}

// Masks -------------------------------------------------------------------------------------------

// Who may see whom: rows are queries, columns are keys, 1 = may attend.
class Mask {
  constructor(rows, keys) {
    this.rows = rows;
    this.keys = keys;
    this.open = new Uint8Array(rows * keys);
  }

  isOpen(query, key) {
    return this.open[query * this.keys + key] === 1;
  }

  // The rows from one on
  from(row) {
    const some = new Mask(this.rows - row, this.keys);
    some.open.set(this.open.subarray(row * this.keys));
    return some;
  }

  // How many keys each query sees (rows). They are its first ones, because pads come last and later
  // places are behind earlier ones; throws for a mask of another kind.
  seenKeys() {
    return Array.from({ length: this.rows }, (_, query) => {
      const open = rowOf(this.open, query, this.keys), closed = open.indexOf(0);
      const seen = closed < 0 ? this.keys : closed;
      if (open.includes(1, seen)) throw new Error("pads stand before symbols");
      return seen;
    });
  }
}

// The three masks, made from ids. The page draws these very masks.
// padMask: "keys" closes pads as keys; "keys_and_queries" closes them as queries too
function masksOf(src, tgtIn, padMask, switches) {
  const maskOf = (queries, keys, closesPads, closesLater) => {
    const mask = new Mask(queries.length, keys.length);
    queries.forEach((query, i) => keys.forEach((key, j) => {
      const isPad = key === PAD || (padMask === "keys_and_queries" && query === PAD);
      const isClosed = (closesPads && isPad) || (closesLater && j > i);
      mask.open[i * keys.length + j] = isClosed ? 0 : 1;
    }));
    return mask;
  };
  return {
    encoder: maskOf(src, src, switches.encoderPads, false),
    decoder: maskOf(tgtIn, tgtIn, switches.decoderPads, switches.causal),
    cross: maskOf(tgtIn, src, switches.crossPads, false),
  };
}

// Softmax over the open keys of each query: scores (H, Tq, Tk) -> weights. A query that may attend
// to nothing gets zeros.
function maskedSoftmax(scores, mask, heads) {
  const { rows, keys, open } = mask, weights = new Float64Array(scores.length);
  for (let row = 0; row < heads * rows; row++) {
    const start = row * keys, opened = (row % rows) * keys;
    let highest = -Infinity, sum = 0;
    for (let j = 0; j < keys; j++) {
      if (open[opened + j]) highest = Math.max(highest, scores[start + j]);
    }
    for (let j = 0; j < keys; j++) {
      if (open[opened + j]) sum += weights[start + j] = Math.exp(scores[start + j] - highest);
    }
    if (sum) for (let j = 0; j < keys; j++) weights[start + j] /= sum;
  }
  return weights;
}

// Positions ---------------------------------------------------------------------------------------
//
// A scheme does one of three things: it gives the vector that is added to the embedding of a place,
// it rotates queries and keys by their places, or it says what a distance is worth to a head.

const POSITIONS = {
  none: {},

  // Vaswani et al. 2017, section 3.5
  sinusoidal: {
    vectorOf: (place, width) => Array.from({ length: width }, (_, c) => {
      const angle = place * 10000 ** (-(c - c % 2) / width);
      return c % 2 ? Math.cos(angle) : Math.sin(angle);
    }),
  },

  // Gehring et al. 2017: a learned vector for each place
  learned: {
    vectorOf: (place, width, weights) =>
      weights["positions.table"].subarray(place * width, (place + 1) * width),
  },

  // Su et al. 2021, RoFormer: see rotate
  rotary: { rotates: true },

  // Press et al. 2022: a penalty by distance; each head's slope is in fp32, as PyTorch keeps it
  alibi: {
    worth: (distance, learned, head, heads) =>
      -Math.fround(2 ** Math.fround(-8 * (head + 1) / heads)) * Math.abs(distance),
  },

  // Shaw et al. 2018, as a bias: a learned number for each distance up to 16
  relative: { worth: (distance, learned) => learned[clip(distance, 16) + 16] },

  // Raffel et al. 2020, T5: a learned number for each bucket of distances
  t5: { worth: (distance, learned) => learned[t5Bucket(distance)] },

  // Learned steps near distance 0, and a slope beyond; in cross-attention each head has its anchor
  anchored: {
    worth: (distance, learned) => 16 * learned[clip(distance, 3) + 3] - Math.abs(distance),
    anchors: (src, separators) => {
      const symbols = src.filter((id) => id >= FIRST_SYMBOL).length;
      const since = placesSinceSeparator(src, separators);
      const start = (t, j) => t - since[j];
      const end = (t, j) => t - (symbols + 1 - j);
      const wrap = (t, j) => t - symbols - j;
      return [start, end, wrap, start];
    },
  },
};

// Rotate pairs (c, c + Dh / 2) of each head by t / 10000^(2c / Dh), in vectors (L, D) of places
// start .. start + L - 1
function rotate(vectors, headWidth, width, start) {
  const half = headWidth / 2;
  for (let row = 0; row < vectors.length; row += headWidth) {
    const place = start + Math.floor(row / width);
    for (let c = 0; c < half; c++) {
      const angle = place * 10000 ** (-2 * c / headWidth);
      const first = vectors[row + c], second = vectors[row + c + half];
      vectors[row + c] = first * Math.cos(angle) - second * Math.sin(angle);
      vectors[row + c + half] = second * Math.cos(angle) + first * Math.sin(angle);
    }
  }
}

// 16 buckets in each direction: eight of one distance, eight that grow up to 128
function t5Bucket(distance) {
  const far = Math.abs(distance);
  const wide = 8 + Math.floor(8 * Math.log(far / 8) / Math.log(16));
  return (far < 8 ? far : Math.min(wide, 15)) + (distance < 0 ? 16 : 0);
}

// Places since the last separator before each place; a separator counts from the one before it
function placesSinceSeparator(src, separators) {
  let last = 0;
  return src.map((id, j) => {
    const since = j - last;
    if (separators.includes(id)) last = j;
    return since;
  });
}

function clip(distance, reach) {
  return Math.max(-reach, Math.min(reach, distance));
}

// Numbers -----------------------------------------------------------------------------------------

const ACTIVATIONS = {
  relu: (x) => (x > 0 ? x : 0),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};

// erf(x) = 2 / root pi e^(-x^2) (x + 2 x^3 / 3 + 4 x^5 / 15 + ...), whose terms have one sign
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x, sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= 2 * x * x / (2 * n + 1);
    sum += term;
  }
  return 2 / Math.sqrt(Math.PI) * Math.exp(-x * x) * sum;
}

// x W^T + b: x (rows, inner), rows first .. last - 1 of W (outer, inner) -> (rows, last - first).
// Four sums at once keep a processor busy: it takes half the time.
function linear(x, weight, inner, bias = null, first = 0, last = weight.length / inner) {
  const rows = x.length / inner, outer = last - first, y = new Float64Array(rows * outer);
  for (let row = 0; row < rows; row++) {
    const from = row * inner, to = row * outer - first;
    let o = first;
    for (; o + 3 < last; o += 4) {
      let a = 0, b = 0, c = 0, d = 0;
      for (let i = 0, w = o * inner; i < inner; i++, w++) {
        const value = x[from + i];
        a += value * weight[w];
        b += value * weight[w + inner];
        c += value * weight[w + 2 * inner];
        d += value * weight[w + 3 * inner];
      }
      y[to + o] = a;
      y[to + o + 1] = b;
      y[to + o + 2] = c;
      y[to + o + 3] = d;
    }
    for (; o < last; o++) y[to + o] = dot(x, from, weight, o * inner, inner);
    if (bias) for (o = first; o < last; o++) y[to + o] += bias[o];
  }
  return y;
}

function dot(a, firstOfA, b, firstOfB, count) {
  let sum = 0;
  for (let c = 0; c < count; c++) sum += a[firstOfA + c] * b[firstOfB + c];
  return sum;
}

// One row of a matrix (rows, width)
function rowOf(matrix, row, width) {
  return matrix.subarray(row * width, (row + 1) * width);
}

function added(a, b) {
  return a.map((value, n) => value + b[n]);
}

function joined(a, b) {
  const both = new Float64Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

function softmax(logits) {
  const highest = Math.max(...logits), powers = Array.from(logits, (x) => Math.exp(x - highest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

// The token that decoding takes: never PAD or BOS, and of equal ones the first
function likeliest(logits) {
  let best = EOS;
  for (let id = EOS + 1; id < logits.length; id++) if (logits[id] > logits[best]) best = id;
  return best;
}

// Weights in a page -------------------------------------------------------------------------------

// Weights by name, from base64 of all their numbers, one tensor after the other.
// kind: "f4" or "f2", fp32 or fp16. shapes: [name, shape] of each tensor in their order
function unpacked(text, kind, shapes) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const numbers = kind === "f4"
    ? new Float32Array(bytes.buffer)
    : Float32Array.from(new Uint16Array(bytes.buffer), fromHalf);
  const weights = {};
  let start = 0;
  for (const [name, shape] of shapes) {
    const count = shape.reduce((a, b) => a * b, 1);
    weights[name] = numbers.subarray(start, start + count);
    start += count;
  }
  return weights;
}

// A finite fp16 number from its bits: 1 of the sign, 5 of the exponent, 10 of the fraction
function fromHalf(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
