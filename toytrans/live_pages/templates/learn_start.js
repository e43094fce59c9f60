// Opens the page in which a model learns. It begins by itself, unless the reader wants stillness or
// is about to guess.

function openLearning() {
  const unread = [];
  wanted = readLearned(location.hash, unread);
  subject = subjectOfLearning(wanted);  // untrained, and not on the shelf yet
  buildLearning();
  fillChoices();
  showLearning();
  open(unread);
  if (document.hidden) document.addEventListener("visibilitychange", beginByItself, { once: true });
  else beginByItself();
  window.addEventListener("hashchange", followAddress);
}

function beginByItself() {
  const isGuessing = byId("guesses").contains(document.activeElement);
  if (shelf.length || PREFERS_STILLNESS.matches || isGuessing) return;
  beginHere();
}

// Learn what the address names, and keep the state that it names
function beginHere() {
  const hash = location.hash;
  learn(wanted);
  state = readAddress(hash);
  change({}, false);
  asked = { experiment: 0, act: 0, of: subject, isByItself: true };
}

// An address that is opened while the page is there: its model is shown if it stands on the shelf,
// and else it learns
function followAddress() {
  const unread = [], { hash } = location, chosen = readLearned(hash, unread);
  const isIt = (each) => JSON.stringify(each.chosen) === JSON.stringify(chosen);
  if (!isIt(subject) && !running) {
    const known = shelf.find(isIt);
    wanted = chosen;
    fillChoices();
    if (known) showSubject(known);
    else learn(chosen);
    history.replaceState(null, "", location.pathname + location.search + hash);
  }
  start(unread);
}

openLearning();
