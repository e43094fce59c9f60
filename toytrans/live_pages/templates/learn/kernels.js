// The arithmetic that takes most of the time of learning: products of matrices, in two ways.
//
// All numbers of a learner lie in one array. A matrix in it is { at, rows, columns, step, across }:
// the number of row r and column c stands at place at + r step + c across, and across is 1 unless
// the matrix is a transposed one. Steps, and the columns of what is multiplied from the right, are
// multiples of 8: what fills a row up may hold anything, and nobody reads it.
//
// WebAssemblyKernels has fp32 numbers and kernels.wat; PlainKernels does the same in JavaScript,
// where WebAssembly is refused; and with Float64Array it proves both.

function eights(count) {
  return Math.ceil(count / 8) * 8;
}

function transposed(matrix) {
  const { at, rows, columns, step, across } = matrix;
  return { at, rows: columns, columns: rows, step: across, across: step };
}

class PlainKernels {
  constructor(count, Kind = Float32Array) {
    this.numbers = new Kind(count);
    this.name = "plain JavaScript";
  }

  // c (rows, columns) = a (rows, inner) b (inner, columns), or added to what c holds. Two rows and
  // four columns at a time: eight sums at once keep a processor busy.
  product(a, b, c, adds = false) {
    const { numbers } = this, inner = a.columns, { across } = a;
    for (let i = 0; i < c.rows; i += 2) {
      const hasSecond = i + 1 < c.rows;
      const firstRow = a.at + i * a.step, secondRow = firstRow + (hasSecond ? a.step : 0);
      for (let j = 0; j < c.columns; j += 4) {
        let s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
        for (let k = 0, s = firstRow, t = secondRow, at = b.at + j; k < inner; k++) {
          const first = numbers[s], second = numbers[t];
          const b0 = numbers[at], b1 = numbers[at + 1], b2 = numbers[at + 2], b3 = numbers[at + 3];
          s0 += first * b0; s1 += first * b1; s2 += first * b2; s3 += first * b3;
          t0 += second * b0; t1 += second * b1; t2 += second * b2; t3 += second * b3;
          s += across;
          t += across;
          at += b.step;
        }
        const to = c.at + i * c.step + j;
        this.put(to, s0, s1, s2, s3, adds);
        if (hasSecond) this.put(to + c.step, t0, t1, t2, t3, adds);
      }
    }
  }

  put(at, x0, x1, x2, x3, adds) {
    const { numbers } = this;
    numbers[at] = adds ? numbers[at] + x0 : x0;
    numbers[at + 1] = adds ? numbers[at + 1] + x1 : x1;
    numbers[at + 2] = adds ? numbers[at + 2] + x2 : x2;
    numbers[at + 3] = adds ? numbers[at + 3] + x3 : x3;
  }

  // to (columns, rows) = from (rows, columns), transposed
  transpose(from, to) {
    const { numbers } = this;
    for (let r = 0; r < from.rows; r++) {
      for (let c = 0; c < from.columns; c++) {
        numbers[to.at + c * to.step + r] = numbers[from.at + r * from.step + c];
      }
    }
  }

  // x = max(x, 0), for all numbers of a matrix
  relu(x) {
    const { numbers } = this, end = x.at + x.rows * x.step;
    for (let at = x.at; at < end; at++) numbers[at] = Math.max(numbers[at], 0);
  }

  // gradient = 0 where relu gave x = 0
  reluBack(gradient, x) {
    const { numbers } = this, count = x.rows * x.step;
    for (let n = 0; n < count; n++) if (!(numbers[x.at + n] > 0)) numbers[gradient.at + n] = 0;
  }
}

const BYTES = 4, PAGE = 65536;

class WebAssemblyKernels {
  // code: the bytes of kernels.wasm. Throws where the browser does not take it.
  constructor(count, code) {
    const memory = new WebAssembly.Memory({ initial: Math.ceil(count * BYTES / PAGE) });
    const module = new WebAssembly.Module(code);
    this.wasm = new WebAssembly.Instance(module, { page: { memory } }).exports;
    this.numbers = new Float32Array(memory.buffer);
    this.name = "WebAssembly";
  }

  product(a, b, c, adds = false) {
    this.wasm.product(
      c.rows, a.columns, c.columns,
      a.at * BYTES, a.step * BYTES, a.across * BYTES, b.at * BYTES, b.step * BYTES,
      c.at * BYTES, c.step * BYTES, adds ? 1 : 0,
    );
  }

  transpose(from, to) {
    this.wasm.transpose(
      from.rows, from.columns, from.at * BYTES, from.step * BYTES, to.at * BYTES, to.step * BYTES,
    );
  }

  relu(x) {
    this.wasm.relu(x.rows * x.step, x.at * BYTES);
  }

  reluBack(gradient, x) {
    this.wasm.reluBack(x.rows * x.step, gradient.at * BYTES, x.at * BYTES);
  }
}

// kind: "fp64" for the proof, "plain", or else WebAssembly where the browser takes it
function kernelsFor(count, kind = "best") {
  if (kind === "fp64") return new PlainKernels(count, Float64Array);
  if (kind !== "plain") {
    try {
      return new WebAssemblyKernels(count, bytesOf(KERNELS));
    } catch (error) {
      if (kind === "WebAssembly") throw error;
    }
  }
  return new PlainKernels(count);
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
