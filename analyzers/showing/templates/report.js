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

// What is folded on the screen belongs on paper too.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => (d.open = true)));
