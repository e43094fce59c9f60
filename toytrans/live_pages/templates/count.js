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
  const tgtIn = [BOS, ...answer, ...Array(pads).fill(PAD)];
  const { logits } = model.decode(tgtIn, encoded, switches);
  const given = labels.every((id, t) => likeliest(rowOf(logits, t, model.vocabularySize)) === id);
  const most = Math.min(labels.length, model.mostTokens(src));
  if (switches.causal && labels.length <= most) {
    // No place reads a later one, so as long as everything was right alone, the model has read
    // the answer itself, and says the same. Nothing need be decoded.
    return { alone: given, given };
  }
  const alone = model.greedy(encoded, switches, most).map((step) => step.id);
  return { alone: alone.join() === labels.join(), given };
}

// Counts over pairs, told to `show` after each slice of 12 ms, so that the page answers in between.
// pairs: { source, answer, seen }. longer: pairs that make a group of their own, counted at the end.
// Resolves with the counts, or with null once `isWanted` says no.
async function countRight(model, { pairs, longer }, pads, switches, show, isWanted) {
  const counts = {
    ...emptyGroup(pairs.length), longer: emptyGroup(longer.length),
    seen: emptyGroup(), unseen: emptyGroup(), wrong: [],
  };
  const groupsOf = (pair) => [counts, pair.seen ? counts.seen : counts.unseen];
  const work = [
    ...pairs.map((pair) => [pair, groupsOf(pair)]),
    ...longer.map((pair) => [pair, [counts.longer]]),
  ];
  for (let next = 0; next < work.length;) {
    const stop = performance.now() + 12;
    do {
      const [pair, groups] = work[next++], right = judged(model, pair, pads, switches);
      for (const group of groups) {
        group.done++;
        group.alone += right.alone;
        group.given += right.given;
      }
      if (!right.alone && groups.includes(counts)) counts.wrong.push(pair);
    } while (next < work.length && performance.now() < stop);
    if (!isWanted()) return null;
    show(counts);
    await new Promise((resume) => setTimeout(resume));
    if (!isWanted()) return null;
  }
  return counts;
}

function emptyGroup(all) {
  return { all, done: 0, alone: 0, given: 0 };
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
