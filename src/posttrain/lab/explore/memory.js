// --- the planner's numbers ------------------------------------------------------------------------------------------

/** The bytes of a part: its table has one entry for each combination of the axes on which it depends. */
function lookUp(table, chosen) {
  const index = table.axes.reduce((sum, name) => sum * data.axes[name].length + data.axes[name].indexOf(chosen[name]), 0);
  return table.bytes[index];
}

/** The memory of each GPU by phase, as `posttrain plan` lists it. */
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

/** The planner's answer to "does it fit". Each device lists the most bytes for each answer. */
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

/** The `posttrain plan` command for the selection. */
function commandOf(key, chosen) {
  const { fixed, plan } = cards.get(key);
  const told = Object.entries(plan).map(([choice, values]) => values[chosen[choice]]);
  const settings = [fixed, ...told].filter(Boolean).join(" ").replaceAll("SIZE", chosen.model);
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

/** The models in memory: those with optimizer states are trained, the others are frozen. */
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

/** The longest form of "weights 15.2" that fits. */
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
