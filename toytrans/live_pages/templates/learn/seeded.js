// Numbers that follow from a seed, as toytrans draws them.
//
// Data: an address is hashed to a number, so that pair i of a split is always the same; words have
// 64 bits, which are BigInt here. First weights: torch's generator, the Mersenne Twister, in the
// order in which torch's layers draw.

// Addresses -----------------------------------------------------------------------------------

const GOLDEN = 0x9E3779B97F4A7C15n, LOW_63_BITS = 2n ** 63n - 1n;

function word(x) {
  return BigInt.asUintN(64, x);
}

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit spreads over the whole word
function mix(x) {
  x = word(x + GOLDEN);
  x = word((x ^ (x >> 30n)) * 0xBF58476D1CE4E5B9n);
  x = word((x ^ (x >> 27n)) * 0x94D049BB133111EBn);
  return x ^ (x >> 31n);
}

// One key of some small numbers, in order
function keyOf(...numbers) {
  return numbers.reduce((key, number) => mix(key ^ BigInt(number)), 0n);
}

function rowKey(index, address) {
  return mix(mix(BigInt(index)) ^ address);
}

const MIXED_PLACES = [];

// A uniform whole number below `choices` for a place, drawn from a key
function draw(key, place, choices) {
  MIXED_PLACES[place] ??= mix(word(BigInt(place) * GOLDEN));
  return Number((mix(key ^ MIXED_PLACES[place]) & LOW_63_BITS) % BigInt(choices));
}

// The numbers 0 .. size - 1 in an order that an address decides
function permutation(size, address) {
  const keys = Array.from({ length: size }, (_, n) => BigInt.asIntN(64, rowKey(n, address)));
  return keys.map((_, n) => n).sort((a, b) => (keys[a] < keys[b] ? -1 : 1));
}

// A number in [0, 2^63) for some symbols in their order
function fingerprint(symbols, seed) {
  const words = symbols.map((symbol, t) => mix(word(BigInt(symbol) * GOLDEN + BigInt(t + 1))));
  const sum = word(words.reduce((a, b) => a + b, 0n));
  return mix(sum ^ keyOf(seed, 0x5EED)) & LOW_63_BITS;
}

// First weights -------------------------------------------------------------------------------

// Matsumoto and Nishimura 1998
class MersenneTwister {
  constructor(seed) {
    const state = this.state = new Uint32Array(624);
    state[0] = seed;
    for (let n = 1; n < 624; n++) {
      state[n] = Math.imul(1812433253, state[n - 1] ^ (state[n - 1] >>> 30)) + n;
    }
    this.used = 624;
  }

  next() {
    if (this.used === 624) this.turn();
    let y = this.state[this.used++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  turn() {
    const { state } = this;
    for (let n = 0; n < 624; n++) {
      const y = (state[n] & 0x80000000) | (state[(n + 1) % 624] & 0x7fffffff);
      state[n] = state[(n + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    this.used = 0;
  }

  // In [0, 1), of 24 bits as fp32 has them
  uniform() {
    return (this.next() & 0xffffff) / 2 ** 24;
  }

  // `count` normal numbers of mean 0, by the method of Box and Muller (1958) in sixteens; the last
  // sixteen are drawn again where `count` is no multiple of it
  normals(count, deviation) {
    const drawn = Array.from({ length: count }, () => this.uniform());
    for (let first = 0; first + 16 <= count; first += 16) makeNormal(drawn, first, deviation);
    if (count % 16) {
      for (let n = count - 16; n < count; n++) drawn[n] = this.uniform();
      makeNormal(drawn, count - 16, deviation);
    }
    return drawn;
  }

  // Uniform between -bound and bound, in fp32
  uniforms(count, bound) {
    const low = -Math.fround(bound), span = Math.fround(2 * Math.fround(bound));
    return Array.from({ length: count }, () => this.uniform() * span + low);
  }
}

function makeNormal(numbers, first, deviation) {
  for (let n = first; n < first + 8; n++) {
    const radius = deviation * Math.sqrt(-2 * Math.log(1 - numbers[n]));
    const angle = 2 * Math.PI * numbers[n + 8];
    numbers[n] = radius * Math.cos(angle);
    numbers[n + 8] = radius * Math.sin(angle);
  }
}

// The first weights of a seed, by name: embeddings normal with deviation 1 / root D, matrices
// Xavier-uniform (Glorot and Bengio 2010), queries, keys and values each as a matrix of its own,
// biases 0, gains of norms 1. parameters: [name, shape] of each tensor in torch's order
function firstWeights(parameters, seed) {
  const twister = new MersenneTwister(seed), weights = {};
  const [, [size, width]] = parameters[0];  // the embedding (V, D)
  // torch's layers draw weights of their own first, which are not used: all but norms do, and the
  // output, which is tied to the embedding afterwards
  let unused = size * width + (size * width % 16 ? 16 : 0);  // the latter as in `normals`
  for (const [name, shape] of parameters) if (!name.includes("norm")) unused += countOf(shape);
  while (unused--) twister.next();
  for (const [name, shape] of parameters) {
    const count = countOf(shape), [outer, inner] = shape;
    if (name.endsWith("embedding.weight")) weights[name] = twister.normals(count, width ** -0.5);
    else if (shape.length === 2) {
      const fanOut = name.endsWith("in_proj.weight") ? outer / 3 : outer;
      weights[name] = twister.uniforms(count, Math.sqrt(6 / (inner + fanOut)));
    } else weights[name] = Array(count).fill(name.endsWith("norm.weight") ? 1 : 0);
  }
  return weights;
}

function countOf(shape) {
  return shape.reduce((a, b) => a * b, 1);
}
