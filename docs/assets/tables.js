// Label the cells of each table with its headings, so that a phone can show a row as a card.
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const headings = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, column) => (cell.dataset.label = headings[column] ?? ""));
  }
  table.dataset.cards = "";
}
