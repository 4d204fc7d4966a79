// All plots of a page, drawn when they come near the window, and the bar that sets the unit of x and the smoothing for
// all of them.
const Plots = (() => {
  "use strict";
  const { AXES } = Numbers, { view, page } = PlotData;
  const plots = new Map();

  const all = (act) => { for (const plot of plots.values()) act(plot); };
  const plotOf = (element) => plots.get(element.closest("[data-chart]")?.dataset.chart);
  const nearby = new IntersectionObserver((found) => {
    for (const { target, isIntersecting } of found) {
      const plot = plotOf(target);
      if (!plot || plot.figure !== target) continue;
      plot.near = isIntersecting;
      if (isIntersecting) plot.built();
    }
  }, { rootMargin: "300px" });
  const sizes = new ResizeObserver((found) => { for (const { target } of found) plotOf(target)?.resized(); });

  const bar = () => {
    const old = document.querySelector(".plots-bar"), first = document.querySelector("main > section [data-chart]");
    const units = ["step", ...["tokens", "seconds"].filter((name) => page.clocks.some((clock) => clock[name]))];
    if (!first || old?.dataset.units === units.join()) return;
    const form = document.createElement("div");
    form.className = "plots-bar";
    form.dataset.units = units.join();
    form.setAttribute("role", "group");
    form.setAttribute("aria-label", "All plots");
    if (units.length > 1) {
      const choices = document.createElement("fieldset"), title = document.createElement("legend");
      title.textContent = "x axis";
      choices.append(title);
      for (const name of units) {
        const label = document.createElement("label"), input = document.createElement("input");
        Object.assign(input, { type: "radio", name: "plot-x", value: name, checked: name === view.x });
        input.addEventListener("change", () => { view.x = name; all((plot) => { plot.zoom = null; plot.whole.hidden = true; plot.draw(); }); });
        label.append(input, AXES[name].name);
        choices.append(label);
      }
      form.append(choices);
    }
    const label = document.createElement("label"), input = document.createElement("input"), said = document.createElement("output");
    Object.assign(input, { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smoothing, id: "plot-smoothing" });
    const tell = () => { said.textContent = view.smoothing ? view.smoothing.toFixed(2) : "off"; };
    input.addEventListener("input", () => { view.smoothing = Number(input.value); tell(); all((plot) => plot.draw()); });
    tell();
    label.append("smoothing", input, said);
    form.append(label);
    if (old) old.replaceWith(form); else first.closest("section").before(form);
  };

  const mount = () => {
    for (const [key, plot] of plots) if (!plot.figure.isConnected) { plot.plot?.destroy(); plots.delete(key); }
    for (const figure of document.querySelectorAll("[data-chart]")) {
      const key = figure.dataset.chart, chart = page.charts[key];
      if (!chart || plots.get(key)?.figure === figure) continue;
      plots.set(key, new Plot(figure, chart));
      nearby.observe(figure);
      sizes.observe(plots.get(key).place);
    }
    bar();
  };

  const load = (told) => Object.assign(page, told);
  load(JSON.parse(document.getElementById("chart-data").textContent));
  mount();
  const redraw = () => all((plot) => plot.plot?.redraw(false));
  document.addEventListener("posttrain-theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  return { mount, load, plots };
})();
