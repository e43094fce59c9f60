// The transformer of model.js, as it learns: forward and backward over a padded batch, and AdamW.
//
//     batch -> encode -> decode -> logits -> loss -> every part backward -> clip -> AdamW
//
// model.js runs one pair and keeps every step of it; this is the quick path, for post-norm, ReLU,
// sinusoidal positions and one embedding for both sides and the output. The masks are those of
// model.js. B rows of T places lie row after row, so that a matrix (B T, D) holds a batch. Each
// part returns { output, ... } with what its backward needs. A backward gets the gradient of the
// output and returns, or adds, that of the input; those of weights are added to.

const NORM_EPSILON = 1e-5, ROWS_AT_ONCE = 16;

// [name, shape] of every parameter, in torch's order. size: V
function parametersOf(options, size) {
  const { d_model: D, d_ff: F } = options, parameters = [["src_embedding.weight", [size, D]]];
  const linear = (name, outer, inner) =>
    parameters.push([`${name}.weight`, [outer, inner]], [`${name}.bias`, [outer]]);
  for (const side of ["encoder", "decoder"]) {
    for (let n = 0; n < options[`n_${side}_layers`]; n++) {
      const layer = `${side}_layers.${n}`;
      const attentions = side === "encoder" ? ["self"] : ["self", "cross"];
      for (const kind of attentions) {
        linear(`${layer}.${kind}_attention.in_proj`, 3 * D, D);
        linear(`${layer}.${kind}_attention.out_proj`, D, D);
      }
      linear(`${layer}.feed_forward.0`, F, D);
      linear(`${layer}.feed_forward.3`, D, F);
      for (let r = 0; r <= attentions.length; r++) {
        parameters.push([`${layer}.residuals.${r}.norm.weight`, [D]]);
        parameters.push([`${layer}.residuals.${r}.norm.bias`, [D]]);
      }
    }
  }
  return parameters;
}

class Learner {
  // options: the section `model` of the config. size: V. switches: as of model.js, what it learns
  // with. longest: places of the longest row that it is ever given. kernels: a kind of them
  constructor(options, size, switches, longest, kernels) {
    this.options = options;
    this.size = size;
    this.switches = switches;
    this.width = options.d_model;  // D
    this.heads = options.n_heads;  // H
    this.headWidth = this.width / this.heads;  // Dh, a multiple of 8
    this.parameters = parametersOf(options, size);
    this.step = 0;
    this.reserve(longest, kernels);
  }

  // Places in memory ----------------------------------------------------------------------------

  // Weights, their gradients and the two moments of AdamW lie one after the other, so that one loop
  // reaches them all; what a pass computes lies behind them and is written over by the next pass.
  reserve(longest, kind) {
    const { width: D, heads: H, options } = this, F = options.d_ff;
    let span = 0;
    for (const [, shape] of this.parameters) span += eights(countOf(shape));
    const layers = options.n_encoder_layers + options.n_decoder_layers;
    const ofAPlace = layers * (40 * D + 4 * F + 4 * H * eights(longest)) + 8 * eights(this.size);
    const largest = Math.max(3 * D, F, eights(this.size)) * Math.max(D, F);
    const count = 16 + 4 * span + 2 * largest + ROWS_AT_ONCE * longest * ofAPlace;
    this.kernels = kernelsFor(count, kind);
    this.numbers = this.kernels.numbers;
    this.top = 0;
    this.one = this.take(8);
    this.numbers[this.one] = 1;
    this.turnedAt = this.take(largest);
    this.firstWeight = this.top;
    this.named = {};
    for (const [name, shape] of this.parameters) {
      const [rows, columns] = shape.length === 2 ? shape : [1, shape[0]];
      this.named[name] = { at: this.take(rows * columns), rows, columns, step: columns, across: 1 };
    }
    this.span = this.top - this.firstWeight;
    this.toGradient = this.take(this.span) - this.firstWeight;
    this.firstMoment = this.take(this.span);
    this.secondMoment = this.take(this.span);
    this.kept = this.top;
    this.placeVectors = [];
  }

  // So many places, from a multiple of 8 on; they hold what was there before
  take(count) {
    const at = this.top;
    this.top += eights(count);
    if (this.top > this.numbers.length) throw new Error("the batch is too large for its memory");
    return at;
  }

  matrix(rows, columns) {
    const step = eights(columns);
    return { at: this.take(rows * step), rows, columns, step, across: 1 };
  }

  zeros(rows, columns) {
    const made = this.matrix(rows, columns);
    this.numbers.fill(0, made.at, made.at + rows * made.step);
    return made;
  }

  // Some rows or columns of a matrix, as a matrix
  block(matrix, row, rows, column, columns) {
    const { at, step, across } = matrix;
    return { at: at + row * step + column, rows, columns, step, across };
  }

  gradientOf(parameter) {
    return { ...parameter, at: parameter.at + this.toGradient };
  }

  // weights: numbers by name. The moments begin anew.
  load(weights) {
    for (const [name] of this.parameters) this.numbers.set(weights[name], this.named[name].at);
    this.numbers.fill(0, this.firstMoment, this.secondMoment + this.span);
    this.step = 0;
  }

  // Copies of all weights by name, or of their gradients
  weights(shift = 0) {
    return Object.fromEntries(this.parameters.map(([name, shape]) => {
      const first = this.named[name].at + shift;
      return [name, this.numbers.slice(first, first + countOf(shape))];
    }));
  }

  gradients() {
    return this.weights(this.toGradient);
  }

  // Parts, each beside its backward -------------------------------------------------------------

  // x (n, inner) -> x W^T + b (n, outer), for W (outer, inner)
  linear(x, weight, bias = null) {
    const output = this.matrix(x.rows, weight.rows);
    const turned = { at: this.turnedAt, rows: weight.columns, columns: weight.rows };
    Object.assign(turned, { step: output.step, across: 1 });
    this.kernels.transpose(weight, turned);
    if (bias) this.repeat(bias, output);
    this.kernels.product(x, turned, output, bias !== null);
    return { x, weight, bias, output };
  }

  // Write a row (1, columns) into every row of a matrix
  repeat(row, to) {
    const { numbers } = this;
    for (let at = to.at; at < to.at + to.rows * to.step; at += to.step) {
      numbers.copyWithin(at, row.at, row.at + row.columns);
    }
  }

  // Adds to the gradients of W and b. Returns that of x, or adds it to `into`.
  linearBack(gradient, { x, weight, bias }, into = null) {
    this.kernels.product(transposed(gradient), x, this.gradientOf(weight), true);
    if (bias) {
      const ones = { at: this.one, rows: 1, columns: gradient.rows, step: 0, across: 0 };
      this.kernels.product(ones, gradient, this.gradientOf(bias), true);
    }
    const ofX = into || this.matrix(x.rows, x.columns);
    this.kernels.product(gradient, weight, ofX, into !== null);
    return ofX;
  }

  // Post-norm: norm(x + y) gain + bias, for x and y (n, D)
  addAndNorm(x, y, name) {
    const { numbers, width: D, named } = this, n = x.rows;
    const gain = named[`${name}.norm.weight`], bias = named[`${name}.norm.bias`];
    const unit = this.matrix(n, D), output = this.matrix(n, D), roots = this.matrix(1, n);
    for (let row = 0; row < n; row++) {
      const at = unit.at + row * D, from = x.at + row * D, also = y.at + row * D;
      let mean = 0, variance = 0;
      for (let c = 0; c < D; c++) {
        const sum = numbers[from + c] + numbers[also + c];
        numbers[at + c] = sum;
        mean += sum;
      }
      mean /= D;
      for (let c = 0; c < D; c++) {
        const difference = numbers[at + c] - mean;
        variance += difference * difference;
      }
      const root = 1 / Math.sqrt(variance / D + NORM_EPSILON), to = output.at + row * D;
      numbers[roots.at + row] = root;
      for (let c = 0; c < D; c++) {
        const value = (numbers[at + c] - mean) * root;
        numbers[at + c] = value;
        numbers[to + c] = value * numbers[gain.at + c] + numbers[bias.at + c];
      }
    }
    return { unit, roots, gain, bias, output };
  }

  // In place: the gradient of the output becomes that of x, which is that of y too.
  addAndNormBack(gradient, { unit, roots, gain, bias }) {
    const { numbers, width: D } = this;
    const ofGain = this.gradientOf(gain).at, ofBias = this.gradientOf(bias).at;
    for (let row = 0; row < gradient.rows; row++) {
      const at = gradient.at + row * D, normal = unit.at + row * D;
      let mean = 0, slope = 0;
      for (let c = 0; c < D; c++) {
        const value = numbers[at + c], scaled = value * numbers[gain.at + c];
        numbers[ofGain + c] += value * numbers[normal + c];
        numbers[ofBias + c] += value;
        numbers[at + c] = scaled;
        mean += scaled;
        slope += scaled * numbers[normal + c];
      }
      mean /= D;
      slope /= D;
      const root = numbers[roots.at + row];
      for (let c = 0; c < D; c++) {
        numbers[at + c] = root * (numbers[at + c] - mean - numbers[normal + c] * slope);
      }
    }
    return gradient;
  }

  // Ids (B L) of places 0 .. L - 1 -> (B L, D): the embedding times root D, and the place
  embed(ids, L) {
    const { numbers, width: D } = this, x = this.matrix(ids.length, D), root = Math.sqrt(D);
    const table = this.named["src_embedding.weight"].at;
    for (let n = 0; n < ids.length; n++) {
      const from = table + ids[n] * D, to = x.at + n * D, place = this.placeVector(n % L);
      for (let c = 0; c < D; c++) numbers[to + c] = numbers[from + c] * root + place[c];
    }
    return x;
  }

  // What a place adds to its embedding (D): nothing where the model learns without places
  placeVector(place) {
    const { vectorOf } = POSITIONS.sinusoidal, { width, switches } = this;
    this.placeVectors[place] ??= switches.places ? vectorOf(place, width) : Array(width).fill(0);
    return this.placeVectors[place];
  }

  embedBack(gradient, ids) {
    const { numbers, width: D } = this, root = Math.sqrt(D);
    const table = this.gradientOf(this.named["src_embedding.weight"]).at;
    for (let n = 0; n < ids.length; n++) {
      const to = table + ids[n] * D, from = gradient.at + n * D;
      for (let c = 0; c < D; c++) numbers[to + c] += numbers[from + c] * root;
    }
  }

  // x (n, D) -> relu(x W1^T + b1) W2^T + b2 (n, D)
  feedForward(x, layer) {
    const inner = this.linearOf(x, `${layer}.feed_forward.0`);  // (n, F)
    this.kernels.relu(inner.output);
    const outer = this.linearOf(inner.output, `${layer}.feed_forward.3`);
    return { inner, outer, output: outer.output };
  }

  linearOf(x, name) {
    return this.linear(x, this.named[`${name}.weight`], this.named[`${name}.bias`]);
  }

  // In place: the gradient of the input is added to that of the output, as the residual wants it.
  feedForwardBack(gradient, { inner, outer }) {
    const ofInner = this.linearBack(gradient, outer);
    this.kernels.reluBack(ofInner, inner.output);
    return this.linearBack(ofInner, inner, gradient);
  }

  // Attention -----------------------------------------------------------------------------------

  // Of x (B Tq, D) to itself. seen (B Tq): how many keys, from the first on, each query sees
  selfAttention(x, B, seen, layer) {
    const { width: D } = this, name = `${layer}.self_attention`, L = x.rows / B;
    const projected = this.linearOf(x, `${name}.in_proj`);  // (B L, 3 D)
    const [q, k, v] = [0, 1, 2].map((part) =>
      this.block(projected.output, 0, x.rows, part * D, D));
    const attended = this.attend(q, k, v, { B, Tq: L, Tk: L }, seen);
    const out = this.linearOf(attended.output, `${name}.out_proj`);
    return { projected, attended, out, output: out.output };
  }

  // In place, as feedForwardBack
  selfAttentionBack(gradient, { projected, attended, out }) {
    const { width: D } = this, rows = gradient.rows;
    const ofProjected = this.matrix(rows, 3 * D);
    const [dq, dk, dv] = [0, 1, 2].map((part) => this.block(ofProjected, 0, rows, part * D, D));
    this.attendBack(this.linearBack(gradient, out), attended, dq, dk, dv);
    return this.linearBack(ofProjected, projected, gradient);
  }

  // Of x (B T, D) to memory (B S, D)
  crossAttention(x, memory, B, seen, layer) {
    const { width: D, named } = this, name = `${layer}.cross_attention`;
    const weight = named[`${name}.in_proj.weight`], bias = named[`${name}.in_proj.bias`];
    const queries = this.linear(x, this.block(weight, 0, D, 0, D), this.block(bias, 0, 1, 0, D));
    const keysAndValues = this.linear(
      memory, this.block(weight, D, 2 * D, 0, D), this.block(bias, 0, 1, D, 2 * D));  // (B S, 2 D)
    const [k, v] = [0, 1].map((part) =>
      this.block(keysAndValues.output, 0, memory.rows, part * D, D));
    const sizes = { B, Tq: x.rows / B, Tk: memory.rows / B };
    const attended = this.attend(queries.output, k, v, sizes, seen);
    const out = this.linearOf(attended.output, `${name}.out_proj`);
    return { queries, keysAndValues, attended, out, output: out.output };
  }

  // In place for x, as feedForwardBack; the gradient of memory is added to `ofMemory`.
  crossAttentionBack(gradient, { queries, keysAndValues, attended, out }, ofMemory) {
    const { width: D } = this, rows = ofMemory.rows;
    const dq = this.matrix(gradient.rows, D), ofBoth = this.matrix(rows, 2 * D);
    const [dk, dv] = [0, 1].map((part) => this.block(ofBoth, 0, rows, part * D, D));
    this.attendBack(this.linearBack(gradient, out), attended, dq, dk, dv);
    this.linearBack(ofBoth, keysAndValues, ofMemory);
    return this.linearBack(dq, queries, gradient);
  }

  // softmax(q k^T / root Dh, masked) v of each head: q (B Tq, D), k and v (B Tk, D) -> (B Tq, D)
  attend(q, k, v, sizes, seen) {
    const { B, Tq, Tk } = sizes, { kernels, headWidth: Dh, heads: H } = this;
    const scale = this.switches.scale ? Dh ** -0.5 : 1;
    const weights = this.matrix(B * H * Tq, Tk), output = this.matrix(B * Tq, this.width);
    const keys = this.matrix(Dh, Tk);  // transposed
    for (let b = 0; b < B; b++) {
      for (let h = 0; h < H; h++) {
        const w = this.block(weights, (b * H + h) * Tq, Tq, 0, Tk);
        kernels.transpose(this.block(k, b * Tk, Tk, h * Dh, Dh), keys);
        kernels.product(this.block(q, b * Tq, Tq, h * Dh, Dh), keys, w);
        for (let i = 0; i < Tq; i++) this.softmax(w.at + i * w.step, seen[b * Tq + i], w.step, scale);
        const values = this.block(v, b * Tk, Tk, h * Dh, Dh);
        kernels.product(w, values, this.block(output, b * Tq, Tq, h * Dh, Dh));
      }
    }
    return { q, k, v, sizes, scale, weights, output };
  }

  // In place: scores of one query -> its weights, 0 for keys that it does not see
  softmax(at, seen, step, scale) {
    const { numbers } = this;
    let highest = -Infinity, sum = 0;
    for (let j = at; j < at + seen; j++) if (numbers[j] > highest) highest = numbers[j];
    for (let j = at; j < at + seen; j++) {
      const power = Math.exp((numbers[j] - highest) * scale);
      numbers[j] = power;
      sum += power;
    }
    for (let j = at; j < at + seen; j++) numbers[j] /= sum;
    numbers.fill(0, at + seen, at + step);
  }

  // From the gradient of the output (B Tq, D), write those of q, k and v.
  attendBack(gradient, { q, k, v, sizes, scale, weights }, dq, dk, dv) {
    const { B, Tq, Tk } = sizes, { kernels, headWidth: Dh, heads: H } = this;
    const values = this.matrix(Dh, Tk), ofScores = this.matrix(Tq, Tk);
    for (let b = 0; b < B; b++) {
      for (let h = 0; h < H; h++) {
        const ofHead = (matrix, L) => this.block(matrix, b * L, L, h * Dh, Dh);
        const w = this.block(weights, (b * H + h) * Tq, Tq, 0, Tk), d = ofHead(gradient, Tq);
        kernels.product(transposed(w), d, ofHead(dv, Tk));
        kernels.transpose(ofHead(v, Tk), values);
        kernels.product(d, values, ofScores);  // of the weights, so far
        this.softmaxBack(ofScores, w, scale);
        kernels.product(ofScores, ofHead(k, Tk), ofHead(dq, Tq));
        kernels.product(transposed(ofScores), ofHead(q, Tq), ofHead(dk, Tk));
      }
    }
  }

  // In place: the gradient of weights (Tq, Tk) becomes that of q k^T.
  softmaxBack(gradient, weights, scale) {
    const { numbers } = this, { rows, columns, step } = weights;
    for (let i = 0; i < rows; i++) {
      const d = gradient.at + i * step, w = weights.at + i * step;
      let mean = 0;
      for (let j = 0; j < columns; j++) mean += numbers[w + j] * numbers[d + j];
      for (let j = 0; j < columns; j++) {
        numbers[d + j] = scale * numbers[w + j] * (numbers[d + j] - mean);
      }
    }
  }

  // The whole -----------------------------------------------------------------------------------

  // src (B S), tgtIn (B T) -> logits (B T, V), and what the backward needs
  forward({ rows: B, S, T, src, tgtIn }) {
    this.top = this.kept;
    const seen = this.seenKeys(B, S, T, src, tgtIn);
    let x = this.embed(src, S);
    const encoder = this.layerNames("encoder").map((layer) => {
      const attention = this.selfAttention(x, B, seen.encoder, layer);
      const first = this.addAndNorm(x, attention.output, `${layer}.residuals.0`);
      const feedForward = this.feedForward(first.output, layer);
      const second = this.addAndNorm(first.output, feedForward.output, `${layer}.residuals.1`);
      x = second.output;
      return { attention, first, feedForward, second };
    });
    const memory = x;  // (B S, D)
    x = this.embed(tgtIn, T);
    const decoder = this.layerNames("decoder").map((layer) => {
      const attention = this.selfAttention(x, B, seen.decoder, layer);
      const first = this.addAndNorm(x, attention.output, `${layer}.residuals.0`);
      const cross = this.crossAttention(first.output, memory, B, seen.cross, layer);
      const second = this.addAndNorm(first.output, cross.output, `${layer}.residuals.1`);
      const feedForward = this.feedForward(second.output, layer);
      const third = this.addAndNorm(second.output, feedForward.output, `${layer}.residuals.2`);
      x = third.output;
      return { attention, first, cross, second, feedForward, third };
    });
    const output = this.linear(x, this.named["src_embedding.weight"]);
    return { src, tgtIn, memory, encoder, decoder, output, logits: output.output };
  }

  layerNames(side) {
    return Array.from({ length: this.options[`n_${side}_layers`] }, (_, n) => `${side}_layers.${n}`);
  }

  // How many keys each query of each row sees, by the masks of model.js: (B S), (B T) and (B T)
  seenKeys(B, S, T, src, tgtIn) {
    const seen = { encoder: [], decoder: [], cross: [] };
    for (let b = 0; b < B; b++) {
      const ids = [src.subarray(b * S, (b + 1) * S), tgtIn.subarray(b * T, (b + 1) * T)];
      const masks = masksOf(...ids, this.options.pad_mask, this.switches);
      for (const part of Object.keys(seen)) seen[part].push(...masks[part].seenKeys());
    }
    return seen;
  }

  // From the gradient of logits, add to all gradients of weights.
  backward(ofLogits, { src, tgtIn, memory, encoder, decoder, output }) {
    const ofMemory = this.zeros(memory.rows, this.width);
    let gradient = this.linearBack(ofLogits, output);
    for (const layer of [...decoder].reverse()) {
      gradient = this.addAndNormBack(gradient, layer.third);
      gradient = this.feedForwardBack(gradient, layer.feedForward);
      gradient = this.addAndNormBack(gradient, layer.second);
      gradient = this.crossAttentionBack(gradient, layer.cross, ofMemory);
      gradient = this.addAndNormBack(gradient, layer.first);
      gradient = this.selfAttentionBack(gradient, layer.attention);
    }
    this.embedBack(gradient, tgtIn);
    gradient = ofMemory;
    for (const layer of [...encoder].reverse()) {
      gradient = this.addAndNormBack(gradient, layer.second);
      gradient = this.feedForwardBack(gradient, layer.feedForward);
      gradient = this.addAndNormBack(gradient, layer.first);
      gradient = this.selfAttentionBack(gradient, layer.attention);
    }
    this.embedBack(gradient, src);
  }

  // Cross entropy of labels (n) in nats, summed over those that are no pads. In place: logits
  // (n, V) become the gradient of that sum divided by `tokens`.
  loss(logits, labels, tokens) {
    const { numbers, size } = this;
    let total = 0;
    for (let n = 0; n < labels.length; n++) {
      const at = logits.at + n * logits.step, label = labels[n];
      if (label === PAD) {
        numbers.fill(0, at, at + logits.step);
        continue;
      }
      const ofLabel = numbers[at + label];
      let highest = -Infinity, sum = 0;
      for (let c = at; c < at + size; c++) if (numbers[c] > highest) highest = numbers[c];
      for (let c = at; c < at + size; c++) {
        const power = Math.exp(numbers[c] - highest);
        numbers[c] = power;
        sum += power;
      }
      total += Math.log(sum) + highest - ofLabel;
      for (let c = at; c < at + size; c++) numbers[c] /= sum * tokens;
      numbers[at + label] -= 1 / tokens;
      numbers.fill(0, at + size, at + logits.step);
    }
    return total;
  }

  // Steps ---------------------------------------------------------------------------------------

  // The gradients of the mean loss of a batch, which is computed a few rows at a time: that is the
  // same sum, and takes less memory. Returns the mean loss in nats a token.
  gradientsOf(batch) {
    const from = this.firstWeight + this.toGradient;
    this.numbers.fill(0, from, from + this.span);
    let tokens = 0, total = 0;
    for (const label of batch.tgtOut) tokens += label !== PAD;
    for (let row = 0; row < batch.rows; row += ROWS_AT_ONCE) {
      const part = rowsOfBatch(batch, row, row + ROWS_AT_ONCE), pass = this.forward(part);
      total += this.loss(pass.logits, part.tgtOut, tokens);
      this.backward(pass.logits, pass);
    }
    return total / tokens;
  }

  // One step on a batch. train: that section of the config. Returns the loss before it.
  learn(batch, train) {
    const loss = this.gradientsOf(batch), norm = this.gradientNorm();
    this.step++;
    this.moveWeights(learningRate(this.step, train), clipShare(norm, train.clip_norm));
    return loss;
  }

  gradientNorm() {
    const { numbers } = this, from = this.firstWeight + this.toGradient;
    let squares = 0;
    for (let n = from; n < from + this.span; n++) squares += numbers[n] * numbers[n];
    return Math.sqrt(squares);
  }

  // AdamW (Loshchilov and Hutter 2019) without decay, betas 0.9 and 0.98 as in Vaswani et al. 2017
  moveWeights(rate, share) {
    const { numbers, firstWeight, toGradient, firstMoment, secondMoment, span, step } = this;
    const size = rate / (1 - 0.9 ** step), rootOfBias = Math.sqrt(1 - 0.98 ** step);
    for (let n = 0; n < span; n++) {
      const gradient = numbers[firstWeight + toGradient + n] * share;
      const first = numbers[firstMoment + n] + 0.1 * (gradient - numbers[firstMoment + n]);
      const second = 0.98 * numbers[secondMoment + n] + 0.02 * gradient * gradient;
      numbers[firstMoment + n] = first;
      numbers[secondMoment + n] = second;
      numbers[firstWeight + n] -= size * first / (Math.sqrt(second) / rootOfBias + 1e-8);
    }
  }
}

// What gradients are multiplied by, so that their norm is at most `limit`
function clipShare(norm, limit) {
  return Math.min(1, limit / (norm + 1e-6));
}

// The rate of step 1, 2, ...: a linear warm-up, then a linear fall to 2% of the peak
function learningRate(step, { lr, warmup_steps: warmup, max_steps: steps }) {
  if (step <= warmup) return lr * step / warmup;
  const done = Math.min(1, (step - warmup) / Math.max(1, steps - warmup));
  return lr * (0.02 + 0.98 * (1 - done));
}

// Counting --------------------------------------------------------------------------------------

// Which of some pairs come out right to their end: a list of { alone, given }, as judged in
// count.js. All sources have one length. pads: how many follow each source and each answer.
//
// Answer given: each symbol is predicted from the true ones before it, all in one pass. Alone: the
// model is applied to what it has written itself. A pair whose answer goes wrong has lost, so what
// is written so far is the true beginning wherever it still counts. Under the causal mask place t
// of the one pass has read that beginning and nothing else: it is the step of writing, and the two
// are the same. Without it the model is applied to each beginning anew.
function judgedPairs(learner, pairs, pads = 0) {
  const srcWidth = pairs[0].source.length + 1 + pads, tgtWidth = pairs[0].target.length + 1;
  const whole = batchOf(pairs, srcWidth, tgtWidth + pads);
  const given = rightPlaces(learner, whole).map((places) => places.every(Boolean));
  if (learner.switches.causal) return given.map((right) => ({ alone: right, given: right }));
  const alone = pairs.map(() => true);
  for (let t = 0; t < tgtWidth; t++) {
    const left = pairs.map((_, n) => n).filter((n) => alone[n]);
    if (!left.length) break;
    const batch = beginnings(batchOf(left.map((n) => pairs[n]), srcWidth), t + 1);
    rightPlaces(learner, batch).forEach((places, row) => { alone[left[row]] = places.at(-1); });
  }
  return given.map((right, n) => ({ alone: alone[n], given: right }));
}

// A batch of which only the first places of targets are there
function beginnings(batch, places) {
  const { rows, T } = batch;
  const cut = (ids) => Int32Array.from({ length: rows * places }, (_, n) =>
    ids[Math.floor(n / places) * T + n % places]);
  return { ...batch, T: places, tgtIn: cut(batch.tgtIn), tgtOut: cut(batch.tgtOut) };
}

// For each row whether the likeliest token of each place is its label, pads left out
function rightPlaces(learner, batch) {
  const { numbers, size } = learner, right = [];
  for (let first = 0; first < batch.rows; first += ROWS_AT_ONCE) {
    const part = rowsOfBatch(batch, first, first + ROWS_AT_ONCE), { logits } = learner.forward(part);
    for (let row = 0; row < part.rows; row++) {
      const places = [];
      for (let t = 0; t < part.T; t++) {
        const n = row * part.T + t, at = logits.at + n * logits.step, label = part.tgtOut[n];
        if (label !== PAD) places.push(likeliest(numbers.subarray(at, at + size)) === label);
      }
      right.push(places);
    }
  }
  return right;
}
