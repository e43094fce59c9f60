// Masks: the cell under the pointer, or the one that the arrow keys reach, is read out.
for (const table of document.querySelectorAll(".mask[tabindex]")) {
  const section = table.closest("section");
  let reading = section.querySelector(".reading");
  if (!reading) {
    reading = document.createElement("p");
    reading.className = "reading";
    reading.setAttribute("role", "status");
    section.querySelector("h3").before(reading);
  }
  const cells = [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("td")]);
  let place = [0, 0];
  const show = (row, column) => {
    table.querySelector(".here")?.classList.remove("here");
    place = [row, column];
    cells[row][column].classList.add("here");
    reading.textContent = cells[row][column].title;
  };
  table.addEventListener("pointerover", (event) => {
    const row = cells.findIndex((line) => line.includes(event.target));
    if (row >= 0) show(row, cells[row].indexOf(event.target));
  });
  table.addEventListener("focus", () => show(...place));
  table.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const row = Math.min(Math.max(place[0] + move[0], 0), cells.length - 1);
    show(row, Math.min(Math.max(place[1] + move[1], 0), cells[row].length - 1));
  });
}

// Tables of runs: a button in each heading sorts.
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const order = (a, b) => a.cells[column].textContent.localeCompare(
        b.cells[column].textContent, undefined, { numeric: true });
      const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? order(a, b) : order(b, a)));
      table.tBodies[0].append(...rows);
    });
  });
}
document.body.dataset.ready = "yes";
