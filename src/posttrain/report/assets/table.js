// A table that can be searched, filtered and sorted: `table[data-finds]`. Rows have the values to filter by in data-…,
// cells have the value to sort by in data-sort if it is not their text. The address holds the chosen search and order.
const Tables = (() => {
  "use strict";
  const table = document.querySelector("table[data-finds]");
  if (!table) return { refresh() {} };
  const asked = new URLSearchParams(location.search);
  const form = document.querySelector("[data-finder]"), fields = [...form.elements].filter((field) => field.name);
  const count = form.querySelector("output"), heads = [...table.tHead.rows[0].cells];

  const keyOf = (row, place) => {
    const cell = row.cells[place], told = cell.dataset.sort ?? cell.textContent.trim();
    return told !== "" && Number.isFinite(Number(told)) ? Number(told) : told.toLowerCase();
  };
  // Numbers come before words, and unknown values last, in both directions.
  const compared = (one, two, down) => {
    if (one === "" || two === "") return (one === "") - (two === "");
    const order = typeof one === typeof two ? (one < two ? -1 : Number(one > two)) : (typeof one === "number" ? -1 : 1);
    return down ? -order : order;
  };

  const apply = () => {
    const body = table.tBodies[0], rows = [...body.rows];
    const sort = asked.get("sort") ?? "", down = sort.startsWith("-"), name = sort.replace(/^-/, "");
    const place = heads.findIndex((head) => head.dataset.name === name);
    heads.forEach((head, i) => {
      if (!head.dataset.name) return;
      if (i === place) head.setAttribute("aria-sort", down ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
    });
    rows.sort((a, b) => (place < 0 ? a.dataset.place - b.dataset.place : compared(keyOf(a, place), keyOf(b, place), down)));
    const focused = document.activeElement;
    body.append(...rows);
    if (body.contains(focused)) focused.focus();
    const wanted = fields.map((field) => [field.name, (asked.get(field.name) ?? "").toLowerCase()]);
    const fits = (row) => wanted.every(([key, value]) => !value || (key === "find" ? row.textContent.toLowerCase().includes(value) : row.dataset[key].toLowerCase() === value));
    let shown = 0;
    for (const row of rows) shown += !(row.hidden = !fits(row));
    count.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} shown`;
  };

  const change = (name, value) => {
    if (value) asked.set(name, value); else asked.delete(name);
    const text = asked.toString();
    history.replaceState(null, "", text ? `?${text}` : location.pathname);
    apply();
  };

  const begin = () => {
    for (const field of fields) {
      field.value = asked.get(field.name) ?? "";
      field.addEventListener("input", () => change(field.name, field.value));
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    for (const head of heads.filter((one) => one.dataset.name)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => {
        const { name } = head.dataset, sort = asked.get("sort");
        change("sort", sort === name ? `-${name}` : sort === `-${name}` ? "" : name);
      });
      head.replaceChildren(button);
    }
    form.hidden = false;
    apply();
  };

  // Update the rows; the chosen rows and the keyboard focus are kept.
  const refresh = (page) => {
    const fresh = page.querySelector("table[data-finds]"), body = table.tBodies[0];
    if (!fresh) return;
    const chosen = new Set([...body.querySelectorAll("input:checked")].map((box) => box.value));
    const row = document.activeElement.closest?.("tr[data-run]")?.dataset.run, tag = document.activeElement.tagName;
    body.replaceChildren(...fresh.tBodies[0].rows);
    for (const box of body.querySelectorAll("input")) box.checked = chosen.has(box.value);
    for (const field of fields) {
      const choices = page.querySelector(`[data-finder] select[name="${field.name}"]`);
      if (choices && choices.innerHTML !== field.innerHTML) { field.replaceChildren(...choices.childNodes); field.value = asked.get(field.name) ?? ""; }
    }
    apply();
    if (row !== undefined) [...body.rows].find((one) => one.dataset.run === row)?.querySelector(tag)?.focus();
  };

  begin();
  return { refresh };
})();
