// How many pairs the model gets right, counted a few at a time, so that a page stays quick.
//
// Right alone: the model reads what it has written itself, and the whole answer and its end must
// come out (free-running). Answer given: each symbol is predicted from the true ones before it, all
// places in one pass (teacher-forced). Both are what `toytrans eval` counts.

// Whether each of the two is right. pair: { source, answer }, lists of symbols
function judged(model, pair, pads, switches) {
  const src = model.sourceIds(pair.source, pads);
  const answer = pair.answer.map((symbol) => FIRST_SYMBOL + model.about.symbols.indexOf(symbol));
  const labels = [...answer, EOS];
  const encoded = model.encode(src, switches);
  const most = Math.min(labels.length, model.mostTokens(src));
  const alone = model.greedy(encoded, switches, most).map((step) => step.id);
  const tgtIn = [BOS, ...answer, ...Array(pads).fill(PAD)];
  const { logits } = model.decode(tgtIn, encoded, switches);
  const given = labels.map((_, t) => likeliest(rowOf(logits, t, model.vocabularySize)));
  return { alone: alone.join() === labels.join(), given: given.join() === labels.join() };
}

// Counts over pairs, told to `show` after each slice of 12 ms, so that the page answers in between.
// Resolves with the counts, or with null once `isWanted` says no.
async function countRight(model, pairs, pads, switches, show, isWanted) {
  const counts = { ...emptyGroup(), all: pairs.length, seen: emptyGroup(), unseen: emptyGroup() };
  while (counts.done < pairs.length) {
    const stop = performance.now() + 12;
    do {
      const pair = pairs[counts.done++], right = judged(model, pair, pads, switches);
      const group = pair.seen ? counts.seen : counts.unseen;
      for (const part of [counts, group]) {
        part.alone += right.alone;
        part.given += right.given;
      }
      group.done++;
    } while (counts.done < pairs.length && performance.now() < stop);
    if (!isWanted()) return null;
    show(counts);
    await new Promise((resume) => setTimeout(resume));
    if (!isWanted()) return null;
  }
  return counts;
}

function emptyGroup() {
  return { done: 0, alone: 0, given: 0 };
}

// How far two lists of numbers are apart in their first ones
function largestDifference(a, b, count) {
  let most = 0;
  for (let n = 0; n < count; n++) most = Math.max(most, Math.abs(a[n] - b[n]));
  return most;
}

// The 95% score interval of a share (Wilson 1927)
function wilsonInterval(right, total) {
  const z = 1.959963984540054, share = right / total;
  const middle = share + z * z / (2 * total);
  const half = z * Math.sqrt(share * (1 - share) / total + z * z / (4 * total * total));
  const scale = 1 + z * z / total;
  return [Math.max(0, (middle - half) / scale), Math.min(1, (middle + half) / scale)];
}
