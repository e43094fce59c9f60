// Opens the page of a run, whose model and pairs stand in it.

subject = subjectOfRun(JSON.parse(byId("data").textContent));
open();
window.addEventListener("hashchange", () => start());
