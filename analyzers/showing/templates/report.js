"use strict";
// Headings sort their table: downwards for numbers first, then upwards, then as it was.
const units = { B: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3, TiB: 1024 ** 4 };

function numberIn(text) {
  const plain = text.replace(/[,~≥]/g, "").replace(/−/g, "-").trim();
  const found = /^\+?(-?\d+(?:\.\d+)?)(?:\s+([KMGT]?i?B)\b)?/.exec(plain);
  return found ? parseFloat(found[1]) * (units[found[2]] || 1) : null;
}

function compareBy(column, numeric, direction) {
  return (x, y) => {
    const [s, t] = [x, y].map((row) => row.cells[column].textContent);
    if (!numeric) return direction * s.localeCompare(t, "en", { numeric: true });
    const [m, n] = [numberIn(s), numberIn(t)];
    if (m === null || n === null) return (m === null) - (n === null); // what is not known stays last
    return direction * (m - n);
  };
}

for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    if (!button) return;
    const numeric = heading.classList.contains("n");
    const order = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
    button.addEventListener("click", () => {
      const next = order[order.indexOf(heading.getAttribute("aria-sort")) + 1];
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      if (next) heading.setAttribute("aria-sort", next);
      const rows = next ? [...original].sort(compareBy(column, numeric, next === "ascending" ? 1 : -1)) : original;
      body.append(...rows);
    });
  });
}

// A map is one stop of the Tab key; arrows move in it, and the cell they are on is read out below.
for (const table of document.querySelectorAll("table.heat")) {
  const rows = [...table.tBodies[0].rows];
  const says = table.closest("figure").querySelector("output");
  const columns = [...table.tHead.rows[0].cells].map((c) => c.textContent);
  let here = rows[0].cells[1];
  here.tabIndex = 0;
  table.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [];
    if (down === undefined) return;
    event.preventDefault();
    const row = rows[here.parentNode.sectionRowIndex + down];
    const next = row && row.cells[here.cellIndex + right];
    if (next && next.tagName === "TD") go(next);
  });
  const go = (cell) => {
    cell.tabIndex = -1; // else it takes no focus
    cell.focus();
  };
  const read = (cell) => {
    here.tabIndex = -1;
    here = cell;
    here.tabIndex = 0;
    const detail = here.title ? `, ${here.title}` : "";
    says.textContent = `${here.parentNode.cells[0].textContent}, ${columns[here.cellIndex]}: ${here.textContent} µs${detail}`;
  };
  table.addEventListener("focusin", (event) => read(event.target));
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("td");
    if (cell) go(cell);
  });
}

// A link to a comparison unfolds it.
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const details = target && target.closest("details");
  if (details) details.open = true;
}
addEventListener("hashchange", unfold);
unfold();

// What is folded on the screen belongs on paper too; and Chromium leaves buttons out of headings that a page repeats.
const headings = [...document.querySelectorAll("thead button")].map((button) => [button.parentNode, button]);
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((d) => (d.open = true));
  headings.forEach(([heading, button]) => heading.replaceChildren(button.textContent));
});
addEventListener("afterprint", () => headings.forEach(([heading, button]) => heading.replaceChildren(button)));
