// Shows what planner, cards and advisor say for each selection. The page carries their answers; here they are looked
// up, summed and drawn. `walk.js` holds the advisor's questions.
const GIB = 2 ** 30;
const data = JSON.parse(document.getElementById("explore-data").textContent);
const cards = new Map(data.algorithms.map((card) => [card.key, card]));
const form = document.getElementById("choices");

/** An element with properties (className, onclick ...), attributes ("aria-..., data-...") and children. */
function node(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "scope" || name === "colspan") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}
const at = (id) => document.getElementById(id);
const gibibytes = (bytes) => (bytes / GIB < 0.05 ? "<0.1" : (bytes / GIB).toFixed(1));

/** Text with its arXiv numbers, and names before an address, as links. */
function linked(text) {
  const pieces = [];
  let end = 0;
  for (const found of text.matchAll(/arXiv:(\d{4}\.\d{5})|([^;()]+), (https:\/\/[^\s;)]+)/g)) {
    pieces.push(text.slice(end, found.index), node("a", { href: found[3] ?? `https://arxiv.org/abs/${found[1]}`, rel: "noreferrer" }, (found[2] ?? found[0]).trimStart()));
    if (found[2]?.startsWith(" ")) pieces.splice(-1, 0, " ");
    end = found.index + found[0].length;
  }
  return node("span", {}, pieces, text.slice(end));
}

// --- what is selected: the form is the state, and the address tells it ----------------------------------------------

const fields = [...form.elements].filter((field) => field.name);
const selected = () => Object.fromEntries(fields.filter((field) => field.type !== "radio" || field.checked).map((field) => [field.name, field.value]));
form.reset();
const start = selected();

/** Put the form into the state of the address; returns the answers that the advisor was given. */
function fromAddress() {
  const told = new URLSearchParams(location.hash.slice(1));
  const known = (name, value) => fields.some((field) => field.name === name && (field.type === "radio" ? field.value === value : [...field.options].some((option) => option.value === value)));
  for (const name of Object.keys(start)) form.elements.namedItem(name).value = known(name, told.get(name)) ? told.get(name) : start[name];
  return told.get("walk") ?? "";
}

function toAddress(walked) {
  const told = new URLSearchParams(Object.entries(selected()).filter(([name, value]) => value !== start[name]));
  if (walked) told.set("walk", walked);
  const address = told.size ? `#${told}` : location.pathname + location.search;
  if (location.hash !== `#${told}`) history.replaceState(null, "", address);
}

// --- the planner's numbers ------------------------------------------------------------------------------------------

/** The bytes of a part: its table has one entry for each combination of the axes on which it depends. */
function lookUp(table, chosen) {
  const index = table.axes.reduce((sum, name) => sum * data.axes[name].length + data.axes[name].indexOf(chosen[name]), 0);
  return table.bytes[index];
}

/** Phase by phase what stands in the memory of each GPU, as `posttrain plan` lists it. */
function planOf(key, chosen) {
  const shape = data.shapes[cards.get(key).shapes[data.variants.findIndex((one) => Object.keys(one).every((name) => one[name] === chosen[name]))]];
  const phases = data.phases.map((name, phase) => {
    const parts = shape[phase].map(([part, table]) => ({ ...data.parts[part], id: part, bytes: lookUp(data.tables[table], chosen) }));
    const present = parts.filter((part) => part.bytes > 0);
    return { name, parts: present, bytes: present.reduce((sum, part) => sum + part.bytes, 0) };
  });
  const most = phases.reduce((high, phase) => (phase.bytes > high.bytes ? phase : high));
  const device = data.devices.find((one) => one.key === chosen.device);
  const fits = ANSWERS[device.most.findIndex((bytes) => most.bytes <= bytes)] ?? ANSWERS.at(-1);
  return { key, phases, most, device, fits };
}

/** What the planner says to "does it fit", by its stated error; each device has the most bytes that get an answer. */
const ANSWERS = [
  { text: "✓ fits", style: "yes" },
  { text: "✓ probably fits", style: "yes" },
  { text: "! hardly fits", style: "tight" },
  { text: "✗ does not fit", style: "no" },
];
const DOING = { load: "loads", generate: "generates", score: "scores", train: "trains", publish: "publishes" };
const IDLE = { load: "nothing is loaded", publish: "nothing is handed to a sampler", generate: "nothing is sampled", score: "nothing is scored before the update", train: "nothing is trained" };

function verdictOf({ most, device }) {
  const [needs, has] = [gibibytes(most.bytes), gibibytes(device.bytes)];
  return most.bytes <= device.bytes ? `${needs} of ${has} GiB while it ${DOING[most.name]}` : `${needs} GiB while it ${DOING[most.name]}, and a GPU has ${has}`;
}

/** The line that says the same, with more to it. */
function commandOf(key, chosen) {
  const told = Object.entries(cards.get(key).plan).map(([choice, values]) => values[chosen[choice]]);
  const settings = told.filter(Boolean).join(" ").replaceAll("{model}", chosen.model);
  return `posttrain plan --model ${chosen.model} --algorithm ${key} --gpus ${chosen.gpus}x${chosen.device} ${settings}`;
}

// --- bars and their table -------------------------------------------------------------------------------------------

function bars(plans) {
  const scale = Math.max(...plans.flatMap((plan) => [plan.device.bytes, plan.most.bytes]));
  const holder = at("bars");
  while (holder.children.length > plans.length) holder.lastChild.remove();
  plans.forEach((plan, slot) => {
    if (!holder.children[slot]) holder.append(emptyPlan(slot));
    fillPlan(holder.children[slot], plan, slot, scale);
  });
}

function emptyPlan(slot) {
  const phases = data.phases.map(() =>
    node("div", { className: "phase" }, node("div", { className: "label" }),
      node("div", { className: "track", role: "img" }, node("div", { className: "stack" }), node("i", { className: "limit" }))));
  return node("div", { className: "plan", "data-slot": String(slot) }, node("h3"), node("ul", { className: "roles" }), phases, node("div", { className: "scale", "aria-hidden": "true" }));
}

function fillPlan(block, plan, slot, scale) {
  const verdict = node("span", { className: `fits ${plan.fits.style}` }, `${plan.fits.text}: ${verdictOf(plan)}`);
  block.querySelector("h3").replaceChildren(node("span", {}, tag(slot), cards.get(plan.key).name), verdict);
  block.querySelector(".roles").replaceChildren(...roles(plan));
  const percent = (bytes) => `${(100 * bytes) / scale}%`;
  block.querySelectorAll(".phase").forEach((row, index) => {
    const phase = plan.phases[index];
    row.querySelector(".label").replaceChildren(phase.name, node("small", {}, phase.bytes ? ` ${gibibytes(phase.bytes)} GiB` : ""));
    const track = row.querySelector(".track");
    const told = phase.parts.map((part) => `${part.role} ${part.what} ${gibibytes(part.bytes)}`).join(", ");
    track.setAttribute("aria-label", phase.bytes ? `${phase.name}: ${gibibytes(phase.bytes)} of ${gibibytes(plan.device.bytes)} GiB: ${told}` : `${phase.name}: ${IDLE[phase.name]}`);
    fillStack(track.firstChild, phase, percent);
    track.querySelector(".limit").style.left = percent(plan.device.bytes);
    track.querySelector(".none")?.remove();
    if (!phase.bytes) track.append(node("span", { className: "none" }, IDLE[phase.name]));
  });
  block.querySelector(".scale").replaceChildren(...ticks(plan.device.bytes, scale, percent));
}

/** Who is in memory: what has an optimizer is trained, other weights are frozen. */
function roles(plan) {
  const parts = plan.phases.flatMap((phase) => phase.parts);
  const names = [...new Set([...parts].sort((one, other) => one.id - other.id).map((part) => part.role))];
  return names.map((role) => {
    const own = parts.filter((part) => part.role === role);
    const state = own.some((part) => part.what.startsWith("optimizer")) ? "trained" : role === "sampler" ? "decodes" : "frozen";
    return node("li", {}, node("i", { className: `key ${data.roles[role]} tone0` }), `${role}, ${state}`);
  });
}

/** Segments are kept from one selection to the next, so that they grow and shrink instead of jumping. */
function fillStack(stack, phase, percent) {
  const kept = new Map([...stack.children].map((segment) => [segment.dataset.part, segment]));
  const segments = phase.parts.map((part) => {
    const segment = kept.get(String(part.id)) ?? node("div", { "data-part": String(part.id) }, node("span"));
    segment.className = `part ${part.style}`;
    segment.title = `${part.role} ${part.what}: ${gibibytes(part.bytes)} GiB`;
    segment.style.width = percent(part.bytes);
    return segment;
  });
  stack.replaceChildren(...segments);
  phase.parts.forEach((part, index) => label(segments[index].firstChild, part, (parseFloat(segments[index].style.width) / 100) * stack.clientWidth));
}

/** As much of "weights 15.2" as there is room for. */
function label(span, part, pixels) {
  const value = gibibytes(part.bytes);
  span.textContent = [`${part.role} ${part.what} ${value}`, `${part.what} ${value}`, value].find((text) => text.length * 6.6 + 16 < pixels) ?? "";
}

function ticks(capacity, scale, percent) {
  const rough = scale / GIB / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((size) => size * power >= rough) * power;
  const places = Array.from({ length: Math.floor(scale / GIB / step) + 1 }, (_, index) => index * step);
  const far = places.filter((place) => Math.abs(place * GIB - capacity) > 0.09 * scale);
  const marks = far.map((place) => mark(String(place), percent(place * GIB), ""));
  return [...marks, mark(`${gibibytes(capacity)} GiB`, percent(capacity), capacity > 0.9 * scale ? "cap end" : "cap")];
}

function mark(text, left, className) {
  const made = node("span", { className }, text);
  made.style.left = left;
  return made;
}

function numbers(plans) {
  const present = plans.flatMap((plan) => plan.phases.flatMap((phase) => phase.parts.map((part) => part.id)));
  const ids = [...new Set(present)].sort((one, other) => one - other);
  const tables = plans.map((plan, slot) => {
    const rows = ids.map((id) => numbersRow(id, plan, plans[1 - slot]));
    const heads = [node("th", { scope: "col" }, "GiB on each GPU"), ...data.phases.map((name) => node("th", { scope: "col" }, name))];
    const totals = plan.phases.map((phase) => node("td", {}, phase.bytes ? gibibytes(phase.bytes) : "–"));
    return node("table", { className: "numbers", "data-slot": String(slot) }, node("caption", {}, tag(slot), cards.get(plan.key).name),
      node("thead", {}, node("tr", {}, heads)), node("tbody", {}, rows), node("tfoot", {}, node("tr", {}, node("th", { scope: "row" }, "together"), totals)));
  });
  at("tables").replaceChildren(...tables);
}

function numbersRow(id, plan, other) {
  const part = data.parts[id];
  const bytesIn = (of, phase) => of.phases[phase].parts.find((one) => one.id === id)?.bytes ?? 0;
  const cells = data.phases.map((_, phase) => {
    const bytes = bytesIn(plan, phase);
    const differs = other && bytesIn(other, phase) !== bytes;
    return node("td", { className: `${bytes ? "" : "zero"} ${differs ? "differs" : ""}` }, bytes ? gibibytes(bytes) : "–");
  });
  const row = node("tr", {}, node("th", { scope: "row" }, node("i", { className: `key ${part.style}` }), `${part.role} ${part.what}`), cells);
  row.onpointerenter = () => light(id);
  row.onpointerleave = () => light(null);
  return row;
}

function light(id) {
  at("bars").classList.toggle("dim", id !== null);
  for (const segment of at("bars").querySelectorAll(".part")) segment.classList.toggle("lit", segment.dataset.part === String(id));
}

const tag = (slot) => (selected().b ? node("i", { className: `tag ${"ab"[slot]}` }, "AB"[slot]) : "");

// --- what the algorithms are ----------------------------------------------------------------------------------------

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

/** The row of nine choices, or of four. Algorithms of different families are made of different choices. */
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

// --- all of it, after every change ----------------------------------------------------------------------------------

function summary(plans) {
  const needs = plans.map((plan) => node("span", {}, node("b", {}, cards.get(plan.key).name), ` needs ${verdictOf(plan)}: `,
    node("span", { className: `fits ${plan.fits.style}` }, plan.fits.text.slice(2)), ". "));
  const states = plans.map((plan) => plan.fits.style);
  at("summary").className = ["no", "tight"].find((state) => states.includes(state)) ?? "";
  const settings = [...form.querySelectorAll("[data-said]")].filter((group) => !group.matches(".off")).map(said);
  at("summary").replaceChildren(...needs, node("small", {}, settings.join(" · ")));
}

function said(group) {
  const text = group.matches("select") ? group.selectedOptions[0].text : group.querySelector("input:checked").nextElementSibling.textContent;
  return group.dataset.said.replace("{}", text);
}

/** What has no meaning where nothing is sampled cannot be chosen there. */
function disable(online) {
  for (const group of form.querySelectorAll("[data-online]")) {
    group.classList.toggle("off", !online);
    for (const field of group.matches("select") ? [group] : group.querySelectorAll("input")) field.disabled = !online;
  }
}

function show() {
  const chosen = selected();
  const keys = [chosen.a, chosen.b].filter(Boolean);
  disable(keys.some((key) => cards.get(key).online));
  const plans = keys.map((key) => planOf(key, chosen));
  bars(plans);
  numbers(plans);
  summary(plans);
  at("commands").replaceChildren(...keys.map((key) => node("pre", { className: "command" }, commandOf(key, chosen))));
  at("facts-lead").textContent = keys.length > 1 ? "Where the two differ, a row is marked ≠." : "Choose a second algorithm to see where two differ.";
  about(keys);
  toAddress(walk.address());
}

/** Select something from elsewhere on the page. */
function choose(values) {
  for (const [name, value] of Object.entries(values)) form.elements.namedItem(name).value = value;
  show();
}

form.addEventListener("input", show);
form.addEventListener("reset", () => setTimeout(show));
form.addEventListener("submit", (event) => event.preventDefault());
addEventListener("resize", () => bars([selected().a, selected().b].filter(Boolean).map((key) => planOf(key, selected()))));
addEventListener("hashchange", begin);

function begin() {
  walk.restore(fromAddress());
  show();
}

// Links within the page move the focus; the address is kept for what is selected.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("[data-jump]");
  if (!link) return;
  event.preventDefault();
  at(link.dataset.jump).scrollIntoView();
  at(link.dataset.jump).focus({ preventScroll: true });
});

const theme = at("theme");
const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const nameTheme = () => { theme.textContent = dark() ? "Light" : "Dark"; };
theme.hidden = false;
theme.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; nameTheme(); });
nameTheme();
