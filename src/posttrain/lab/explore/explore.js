// Shows the results of planner, algorithm cards and advisor for each selection. The page embeds them; this script looks
// them up, sums and draws them: memory.js has the bars and their table, facts.js the algorithms, walk.js the advisor.
// All files form one script on the page.
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

// --- the selection: the form holds the state, the URL reflects it ---------------------------------------------------

const fields = [...form.elements].filter((field) => field.name);
const selected = () => Object.fromEntries(fields.filter((field) => field.type !== "radio" || field.checked).map((field) => [field.name, field.value]));
form.reset();
const start = selected();

/** Set the form to the state in the URL, and return the answers given to the advisor. */
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

// --- redraw after every change --------------------------------------------------------------------------------------

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

/** Disable choices that change nothing for the shown algorithms: without sampling there are no groups, for example. */
function disable(keys) {
  for (const group of form.querySelectorAll("[data-online]")) {
    const choices = group.matches("select") ? [group] : [...group.querySelectorAll("input")];
    const off = !keys.some((key) => cards.get(key).plan[choices[0].name]);
    group.classList.toggle("off", off);
    for (const field of choices) field.disabled = off;
  }
}

function show() {
  const chosen = selected();
  const keys = [chosen.a, chosen.b].filter(Boolean);
  disable(keys);
  const plans = keys.map((key) => planOf(key, chosen));
  bars(plans);
  numbers(plans);
  summary(plans);
  at("commands").replaceChildren(...keys.map((key) => node("pre", { className: "command" }, commandOf(key, chosen))));
  at("facts-lead").textContent = keys.length > 1 ? "Rows in which the two differ are marked ≠." : "Choose a second algorithm to see the differences.";
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

// Links within the page move the focus; the URL is reserved for the selection.
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
