// --- facts about the algorithms -------------------------------------------------------------------------------------

function about(keys) {
  const shown = keys.map((key) => cards.get(key));
  const rows = [
    factRow("idea", shown, (card) => card.summary, { free: true }),
    factRow("paper", shown, (card) => linked(card.paper), { free: true }),
    groupRow("Data and rewards", shown),
    factRow("learns", shown, (card) => card.learns),
    factRow("data", shown, (card) => card.data),
    factRow("reward from", shown, (card) => card.reward),
    factRow("completions per prompt", shown, (card) => card.group),
    groupRow("Models and passes", shown),
    factRow("models", shown, (card) => list(card.models), { same: (card) => card.models.join() }),
    factRow("also computed", shown, (card) => list(card.needs), { same: (card) => card.needs.join() }),
    ...choiceRows(shown),
    groupRow("When", shown),
    factRow("use it when", shown, (card) => card.use_when, { free: true }),
    factRow("avoid it when", shown, (card) => card.avoid_when, { free: true }),
    factRow("known failures", shown, (card) => list(card.failures), { free: true }),
    groupRow("Formula", shown),
    factRow("loss", shown, (card) => node("pre", { className: "formula" }, card.formula), { free: true }),
    factRow("settings", shown, (card) => settings(card.settings), { free: true }),
  ];
  const heads = [node("td", {}), ...shown.map((card, slot) => node("th", { scope: "col" }, tag(slot), card.title))];
  const columns = node("colgroup", {}, node("col", { className: "what" }), shown.map(() => node("col")));
  at("about").replaceChildren(node("table", { className: "compare" }, node("caption", { className: "sr" }, "Facts about the algorithms"), columns,
    node("thead", {}, node("tr", {}, heads)), node("tbody", {}, rows)));
}

/** The rows of an algorithm's choices. Algorithms of different families have different choices. */
function choiceRows(shown) {
  const rows = (named, title, free) => [groupRow(title, shown), ...Object.keys(named.choices).map((name) =>
    factRow(name.replace("_", " "), shown, (card) => choice(card.choices[name]), { free, same: (card) => card.choices[name][0] }))];
  const alike = shown.every((card) => Object.keys(card.choices).join() === Object.keys(shown[0].choices).join());
  return alike ? rows(shown[0], "Its choices", false) : shown.flatMap((card) => rows(card, `The choices of ${card.name}`, true));
}

const choice = (told) => (told ? node("div", { className: "choice" }, node("code", {}, told[0]), told[1] && node("small", {}, told[1])) : "–");

/** A fact of each algorithm; `free` text always differs, and is not marked. */
function factRow(name, shown, tell, { free = false, same = tell } = {}) {
  const differs = !free && shown.length > 1 && same(shown[0]) !== same(shown[1]);
  const cells = shown.map((card, slot) => {
    const cell = node("td", {}, tell(card));
    if (shown.length > 1) cell.dataset.tag = "AB"[slot];
    return cell;
  });
  const spoken = differs ? node("span", { className: "sr" }, " (differs)") : "";
  return node("tr", { className: differs ? "differs" : "", "data-fact": name }, node("th", { scope: "row" }, name, spoken), cells);
}

const groupRow = (name, shown) => node("tr", { className: "group" }, node("th", { scope: "colgroup", colspan: String(shown.length + 1) }, name));
const settings = (told) => (told.length ? node("ul", { className: "settings" }, told.map((one) => node("li", {}, node("code", {}, one)))) : "none of its own");
const list = (items, none = "nothing more") => (items.length ? node("ul", {}, items.map((item) => node("li", {}, item))) : none);
