"use strict";

// Follow the system's light or dark setting until the button is pressed.
const root = document.documentElement;
const theme = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");

function savedTheme() {
  try { return localStorage.getItem("enginewright-theme"); } catch { return null; } // some browsers store nothing for files
}

function isDark() {
  return (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
}

function showTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
}

theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("enginewright-theme", root.dataset.theme); } catch { /* the choice lasts until the page is closed */ }
  showTheme();
});
system.addEventListener("change", showTheme);
if (["light", "dark"].includes(savedTheme())) root.dataset.theme = savedTheme();
theme.hidden = false;
showTheme();

// Sort a column by the figures with which its cells begin, if all of them do. Versions are sorted as text, part by part.
// Missing figures come last.
const VERSION = /^\d+(\.\d+){2}/;

function figureOf(text) {
  return parseFloat(text.replaceAll(",", "")) * (text.endsWith(" kB") ? 1e-3 : 1); // the other sizes are in MB
}

function sortBy(header) {
  const column = header.cellIndex;
  const body = header.closest("table").tBodies[0];
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  const rows = [...body.rows].map((row) => ({ row, text: row.cells[column].textContent.trim() }));
  const known = rows.filter(({ text }) => text !== "-");
  const byFigure = known.every(({ text }) => !Number.isNaN(figureOf(text)) && !VERSION.test(text));
  known.sort((a, b) => {
    const order = byFigure ? figureOf(a.text) - figureOf(b.text) : a.text.localeCompare(b.text, "en", { numeric: true });
    return ascending ? order : -order;
  });
  for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  body.append(...[...known, ...rows.filter(({ text }) => text === "-")].map(({ row }) => row));
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// Unfold everything before printing.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
});
