"use strict";
// Reads off chart points and token values. The page is complete without this script.
(() => {
  const WIDTH = 560, LEFT = 52, RIGHT = 12;
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const svgNamespace = "http://www.w3.org/2000/svg";

  for (const svg of document.querySelectorAll("svg[data-chart]")) {
    const chart = data[svg.dataset.chart];
    if (!chart) continue;
    const readout = svg.parentElement.querySelector(".readout");
    const cursor = document.createElementNS(svgNamespace, "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", "12");
    cursor.setAttribute("y2", "202");
    const low = chart.x[0], high = chart.x[chart.x.length - 1];
    const position = (x) => (high > low ? LEFT + ((x - low) / (high - low)) * (WIDTH - LEFT - RIGHT) : (LEFT + WIDTH - RIGHT) / 2);
    let place = chart.x.length - 1;

    const show = (index) => {
      place = Math.max(0, Math.min(chart.x.length - 1, index));
      const x = position(chart.x[place]);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      svg.append(cursor);
      const values = chart.series.filter((series) => series.text[place]).map((series) => `${series.name} ${series.text[place]}`);
      readout.textContent = `${chart.at ? chart.at[place] : `step ${chart.x[place]}`}: ${values.join(" · ")}`;
    };
    const hide = () => { cursor.remove(); readout.textContent = ""; };
    const nearest = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * WIDTH;
      let best = 0;
      chart.x.forEach((value, index) => { if (Math.abs(position(value) - x) < Math.abs(position(chart.x[best]) - x)) best = index; });
      return best;
    };
    svg.addEventListener("pointermove", (event) => show(nearest(event)));
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(place); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: chart.x.length - 1, PageUp: place - 10, PageDown: place + 10 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key]);
    });
  }

  const tip = document.createElement("div");
  tip.id = "token";
  document.addEventListener("pointerover", (event) => {
    const token = event.target.closest?.("[data-t]");
    if (!token) { tip.remove(); return; }
    const [id, advantage, logprob] = token.dataset.t.split("|");
    const chance = logprob ? ` · log-probability ${logprob} (${(100 * Math.exp(Number(logprob))).toPrecision(3)}%)` : "";
    tip.textContent = `advantage ${advantage}${chance} · token ${id}`;
    document.body.append(tip);
    const box = token.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 12))}px`;
    tip.style.top = `${Math.max(8, box.top - tip.offsetHeight - 6)}px`;
  });
  addEventListener("scroll", () => tip.remove(), { passive: true });

  const button = document.getElementById("theme");
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();
})();
