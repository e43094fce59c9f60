// Experiments: each asks for guesses, throws a switch, and says beside the guesses what came out.
//
//     a guess -> a click on an underlined act -> the page changes and counts -> the answer, a note
//
// The sentences promise nothing: the numbers of this very page answer.

// What stays until the tab is closed, over a reload too. In a cell of a notebook nothing can stay.
function keep(name, value) {
  try {
    sessionStorage.setItem(`${name} of ${document.title}`, JSON.stringify(value));
  } catch {
    // then it lives as long as the page
  }
}

function kept(name, usual) {
  try {
    return JSON.parse(sessionStorage.getItem(`${name} of ${document.title}`)) ?? usual;
  } catch {
    return usual;
  }
}

function shareOf({ alone, done }) {
  return done ? percent(alone / done) : "no such pairs";
}

function firstWrongPlace() {
  const { labels, alone } = now;
  if (!labels) return "not known";
  const place = labels.findIndex((id, t) => alone[t]?.id !== id);
  return place < 0 ? "none" : String(place);
}

const guesses = kept("guesses", {}), answers = kept("answers", {});  // by experiment and name
const reminded = new Set();  // experiments that have asked for a guess
// What was done last: its experiment, the act, and the model that it was done to. isByItself: the
// page did it, not the reader
let asked = null;

function askedKey({ name }, experiment = state.experiment) {
  return `${experiment + 1}. ${name}`;
}

function showExperiment() {
  const { experiment } = state, { says, asks } = EXPERIMENTS[experiment];
  setText(byId("try-number"), `${experiment + 1} of ${EXPERIMENTS.length}`);
  const acts = says.filter((word) => typeof word !== "string");
  byId("try-text").replaceChildren(...says.map((word) => (typeof word === "string" ? word
    : element("button", {
      type: "button", class: "do", onclick: () => attempt(acts.indexOf(word), word[1]),
    }, word[0]))));
  byId("guesses").replaceChildren(...asks.map((ask) => {
    const key = askedKey(ask);
    const remember = (event) => {
      guesses[key] = event.target.value;
      keep("guesses", guesses);
    };
    return element("label", {}, element("span", {}, "your guess,"), ask.name,
      element("input", {
        type: "text", value: guesses[key] ?? "", autocomplete: "off", oninput: remember,
        placeholder: "?",
      }),
      element("output", { class: "answer" }, answers[key] ? `it is ${answers[key]}` : ""));
  }));
  const isAnswered = asks.every((ask) => answers[askedKey(ask)]);
  setText(byId("try-note"), isAnswered ? EXPERIMENTS[experiment].why : "");
  byId("try-back").disabled = experiment === 0;
  byId("try-next").disabled = experiment === EXPERIMENTS.length - 1;
}

// An act of the experiment; who has not guessed is asked to, once
function attempt(act, doIt) {
  if (isPending()) return;
  const { experiment } = state, { asks } = EXPERIMENTS[experiment];
  const open = asks.findIndex((ask) => ask.after === act && !guesses[askedKey(ask)]);
  if (open >= 0 && !reminded.has(experiment)) {
    reminded.add(experiment);
    byId("guesses").querySelectorAll("input")[open].focus();
    setText(byId("try-note"), "Guess first, or click again to see.");
    return;
  }
  const problem = doIt() ?? "";
  setText(byId("try-note"), problem);
  if (problem) return;
  asked = { experiment, act, of: subject };
  answerGuesses();
}

// Whether an act waits to be answered, which is said; then nothing else is done.
function isPending() {
  const isWaiting = asked !== null && !asked.isByItself && !subject.isLearning;
  if (isWaiting) setText(byId("try-note"), "It still counts; then your guess is answered.");
  return isWaiting;
}

// Once the pairs are counted after an act, its guesses are answered, and the run is noted
function answerGuesses() {
  const counts = subject.counts.get(countsKey());
  if (!counts || asked?.of !== subject || subject.isLearning) return;
  const { experiment, act, isByItself } = asked;
  asked = null;
  const isOfInterest = (ask) => !isByItself || guesses[askedKey(ask, experiment)];
  if (!EXPERIMENTS[experiment].asks.some(isOfInterest)) return;  // nobody has guessed yet
  const answered = EXPERIMENTS[experiment].asks.filter((ask) => ask.after === act);
  for (const ask of answered) answers[askedKey(ask, experiment)] = ask.answer(counts);
  keep("answers", answers);
  if (experiment === state.experiment) showExperiment();
  note(answered.map((ask) => {
    const key = askedKey(ask, experiment), guess = guesses[key];
    return `${key}: ${guess ? `guessed ${guess}, ` : ""}it is ${answers[key]}`;
  }).join("; "));
}

// Unless an act waits to be answered
function showNextExperiment(by) {
  if (isPending()) return;
  const experiment = state.experiment + by;
  change({ ...beforeExperiment(), experiment });
  showExperiment();
}

// Notes -------------------------------------------------------------------------------------------

// Runs side by side, by the names of their columns
const NOTED = ["model", "runs", "pads", "right alone", "answer given", "longer ones", "guesses"];
let notes = kept("notes", []);

function note(guessed = "") {
  const counts = subject.counts.get(countsKey());
  if (!counts) return;
  const { alone, given, done, longer } = counts;
  const shares = [alone / done, given / done].map((share) => share.toFixed(3));
  const ofLonger = longer.done ? (longer.alone / longer.done).toFixed(3) : "";
  notes.push([modelName(), runsText(), String(state.pads), ...shares, ofLonger, guessed]);
  keep("notes", notes);
  showNotes();
}

function showNotes() {
  setText(byId("notes-link"), `Notes ${notes.length}`);
  byId("notes-table").replaceChildren(...(notes.length ? [element("table", { class: "notes" },
    element("thead", {}, element("tr", {},
      ["no.", ...NOTED].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, notes.map((row, n) => element("tr", {},
      element("th", { scope: "row" }, String(n + 1)),
      row.map((text) => element("td", {}, text))))))] : ["Nothing yet. An act of an experiment "
      + "is noted by itself, and so is whatever is on the screen when you click Note this."]));
  for (const id of ["save-notes", "clear-notes"]) byId(id).disabled = notes.length === 0;
}

// As a spreadsheet reads it: RFC 4180
function notesAsCsv() {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const name = byId("name").value.trim(), rows = notes.map((row) => [name, ...row]);
  return [["name", ...NOTED], ...rows].map((row) => `${row.map(quoted).join(",")}\r\n`).join("");
}

function saveFile(name, content) {
  const link = element("a", { href: URL.createObjectURL(new Blob([content])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function clearNotes() {
  for (const each of [guesses, answers]) for (const key of Object.keys(each)) delete each[key];
  notes = [];
  keep("guesses", guesses);
  keep("answers", answers);
  keep("notes", notes);
  showExperiment();
  showNotes();
}
