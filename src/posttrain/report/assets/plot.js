// One plot, drawn by uPlot, which replaces the picture for pages without scripts. Its legend hides lines, it can be
// zoomed (drag, or + and -; double click, or 0 for the whole range), its y axis can be logarithmic, and it can be saved.
const Plot = (() => {
  "use strict";
  const { FORMS, AXES } = Numbers, { view, unit, along, smoothed, joined, csv } = PlotData;
  const HEIGHT = 0.41;  // of the width
  const FONT = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
  const WHOLE = [...Array(15).keys()].flatMap((power) => [1, 2, 5].map((size) => size * 10 ** power));
  const MINUTES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 864000];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const roundStep = (rough) => {
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 2.5, 5, 10].map((size) => size * power).find((size) => size >= rough * (1 - 1e-9));
  };
  const roundEnds = (low, high) => {
    if (!(low < high)) {
      const pad = Math.abs(low) * 0.1 || 1;
      [low, high] = low >= 0 ? [Math.min(low, 0), high + pad] : [low - pad, high + pad];
    }
    const step = roundStep((high - low) / 4);
    return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  };

  const save = (content, type, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  class Plot {
    constructor(figure, chart) {
      this.figure = figure;
      this.chart = chart;
      this.hidden = new Set();
      this.log = Boolean(chart.log);
      this.zoom = null;
      this.near = false;
      this.place = figure.querySelector(".plot");
      this.readout = figure.querySelector(".readout");
      this.tools();
      this.legend();
      this.keys();
    }

    // --- around the plot

    tools() {
      const bar = document.createElement("p");
      bar.className = "plot-tools";
      const add = (text, label, act) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = text;
        button.title = label;
        button.setAttribute("aria-label", `${text}: ${this.chart.title}`);
        button.addEventListener("click", act);
        bar.append(button);
        return button;
      };
      this.whole = add("whole range", "Show the whole range", () => this.reset());
      this.whole.hidden = true;
      if (!this.chart.stacked) {
        const button = add("log y", "Logarithmic axis", () => {
          this.log = !this.log;
          button.setAttribute("aria-pressed", this.log);
          this.draw();
        });
        button.setAttribute("aria-pressed", this.log);
      }
      add("CSV", "Save the numbers as CSV", () => save(csv(this.chart, this.hidden), "text/csv", `${this.figure.dataset.chart}.csv`));
      add("PNG", "Save the plot as PNG", () => this.png());
      this.figure.querySelector(".foot").append(bar);
    }

    legend() {
      const items = [...this.figure.querySelectorAll(".legend-line > li")];
      if (items.length < 2) return;
      items.forEach((item, place) => {
        const button = document.createElement("button");
        button.type = "button";
        button.append(...item.childNodes);
        button.setAttribute("aria-pressed", !this.hidden.has(place));
        button.addEventListener("click", () => {
          if (!this.hidden.delete(place)) this.hidden.add(place);
          button.setAttribute("aria-pressed", !this.hidden.has(place));
          this.draw();
        });
        item.replaceChildren(button);
      });
    }

    keys() {
      this.place.tabIndex = 0;
      this.place.setAttribute("role", "img");
      this.said(this.figure);
      this.place.addEventListener("focus", () => {
        this.built();
        this.readout.setAttribute("aria-live", "polite");
        if (this.place.matches(":focus-visible") && this.xs.length) this.move(this.plot.cursor.idx ?? this.xs.length - 1);
      });
      this.place.addEventListener("blur", () => {
        this.readout.setAttribute("aria-live", "off");
        this.plot?.setCursor({ left: -10, top: -10 }, true, true);
      });
      this.place.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || !this.xs.length) return;
        const at = this.plot.cursor.idx ?? this.xs.length - 1, last = this.xs.length - 1;
        const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: last };
        if (event.key in moves) this.move(Math.max(0, Math.min(last, moves[event.key])));
        else if (event.key === "+" || event.key === "=") this.closer(0.5, this.xs[at]);
        else if (event.key === "-") this.closer(2, this.xs[at]);
        else if (event.key === "0" || event.key === "Escape") this.reset();
        else return;
        event.preventDefault();
      });
    }

    move(place) {
      const x = this.xs[place], scale = this.plot.scales.x;
      if (x < scale.min || x > scale.max) this.plot.setScale("x", { min: x - (scale.max - scale.min) / 2, max: x + (scale.max - scale.min) / 2 });
      this.plot.setCursor({ left: this.plot.valToPos(x, "x"), top: 0 }, true, true);
    }

    closer(factor, x) {
      const scale = this.plot.scales.x, first = this.xs[0], last = this.xs[this.xs.length - 1];
      const min = Math.max(first, x - (x - scale.min) * factor), max = Math.min(last, x + (scale.max - x) * factor);
      if (max > min) this.plot.setScale("x", { min, max });
    }

    reset() {
      if (this.xs.length > 1) this.plot.setScale("x", { min: this.xs[0], max: this.xs[this.xs.length - 1] });
    }

    // --- the plot itself

    built() { if (!this.plot || this.stale) this.draw(); }

    draw() {
      if (!this.near && document.activeElement !== this.place) { this.stale = true; return; }
      const focused = this.plot?.cursor.idx, zoom = this.zoom;
      this.stale = false;
      this.plot?.destroy();
      const { data, series, bands } = this.columns();
      this.plot = new uPlot(this.options(series, bands), data, (plot, ready) => { this.place.replaceChildren(plot.root); ready(); });
      if (zoom) this.plot.setScale("x", { min: zoom[0], max: zoom[1] });
      if (focused != null && document.activeElement === this.place) this.move(Math.min(focused, this.xs.length - 1));
    }

    // The columns of uPlot, their styles, and the pairs of columns between which the area is filled.
    columns() {
      const { chart } = this, weight = view.smoothing;
      const shown = chart.series.map((line, place) => ({ ...line, place, x: along(chart, line) })).filter((line) => !this.hidden.has(line.place));
      const { xs, spread } = joined(shown);
      const data = [xs], series = [{}], bands = [];
      const add = (column, looks) => {
        data.push(this.log ? column.map((value) => (value > 0 ? value : null)) : column);
        return series.push({ spanGaps: true, points: { show: false }, ...looks }) - 1;
      };
      this.xs = xs;
      this.lines = shown.map((line) => {
        const soft = weight > 0 && !line.dots && !line.derived ? spread(line, smoothed(line.y, weight)) : null;
        return { ...line, raw: spread(line, line.y), soft, ends: line.low && [spread(line, line.low), spread(line, line.high)] };
      });
      let below = null, under = 0;
      for (const line of this.lines) {
        const stroke = () => colour(`--s${line.colour}`), width = line.colour === 6 ? 1.2 : 2;
        if (chart.stacked) {
          const top = (line.soft ?? line.raw).map((value, i) => (value ?? 0) + (below?.[i] ?? 0));
          const at = add(top, { stroke, width: 0.5, fill: below ? undefined : () => `${stroke()}cc` });
          if (below) bands.push({ series: [at, under], fill: () => `${stroke()}cc` });
          [below, under] = [top, at];
          continue;
        }
        if (line.ends) {
          const [low, high] = line.ends.map((column) => add(column, { stroke, width: 0 }));
          if (!line.dots) bands.push({ series: [high, low], fill: () => `${stroke()}24` });
        }
        if (line.soft) add(line.raw, { stroke, width: 1, alpha: 0.4 });
        const points = { show: line.dots || line.raw.filter((value) => value != null).length === 1, size: 7, fill: stroke };
        add(line.soft ?? line.raw, line.dots ? { stroke, width: 1.5, alpha: 0.45, points: { ...points, show: false } } : { stroke, width, points });
      }
      return { data, series, bands };
    }

    options(series, bands) {
      const { chart } = this, axis = AXES[unit(chart)], form = FORMS[chart.form], width = this.place.clientWidth;
      const text = { font: `11.5px ${FONT}`, stroke: () => colour("--soft"), ticks: { show: false } };
      const incrs = unit(chart) === "seconds" ? MINUTES : WHOLE;
      const [low, high] = chart.range;
      return {
        width, height: this.height(width), series, bands, legend: { show: false }, padding: [10, 12, 0, 0],
        cursor: {
          y: false, points: { show: false }, drag: { x: true, y: false, dist: 6 },
          sync: { key: `posttrain ${unit(chart)}`, scales: ["x", null], filters: { pub: (type) => type === "mousemove", sub: () => true } },
        },
        scales: {
          x: { time: false, range: (_, min, max) => (min == null ? [0, 1] : min === max ? [min - 0.5, max + 0.5] : [min, max]) },
          y: this.log ? { distr: 3 } : {
            range: (_, min, max) => {
              if (min == null) return [0, 1];
              return this.zoom ? roundEnds(min, max) : roundEnds(Math.min(low ?? min, min), Math.max(high ?? max, max));
            },
          },
        },
        axes: [
          { ...text, grid: { show: false }, size: 28, space: unit(chart) === "seconds" ? 80 : 60, values: (_, splits) => splits.map(axis.form), incrs },
          {
            ...text, grid: { stroke: () => colour("--line"), width: 1 }, space: 36,
            values: (_, splits) => splits.map((value) => (value == null ? "" : form(value))),
            size: (_, values) => Math.max(44, 16 + 6.4 * Math.max(0, ...(values ?? []).map((value) => value.length))),
          },
        ],
        hooks: {
          draw: [(plot) => this.marks(plot)],
          setCursor: [(plot) => this.read(plot)],
          setScale: [(plot, key) => { if (key === "x") this.zoomed(plot); }],
        },
      };
    }

    height(width) { return Math.max(170, Math.round(width * HEIGHT)); }

    zoomed(plot) {
      const { min, max } = plot.scales.x, first = this.xs[0], last = this.xs[this.xs.length - 1];
      this.zoom = min > first || max < last ? [min, max] : null;
      this.whole.hidden = !this.zoom;
    }

    // A named limit, and intervals of a few measurements.
    marks(plot) {
      const { ctx, bbox } = plot, ratio = devicePixelRatio;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left - 8 * ratio, bbox.top - 8 * ratio, bbox.width + 16 * ratio, bbox.height + 16 * ratio);
      ctx.clip();
      const { mark } = this.chart;
      if (mark && mark.at >= plot.scales.y.min && mark.at <= plot.scales.y.max) {
        const y = plot.valToPos(mark.at, "y", true);
        ctx.strokeStyle = ctx.fillStyle = colour("--soft");
        ctx.lineWidth = ratio;
        ctx.setLineDash([4 * ratio, 4 * ratio]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
        ctx.setLineDash([]);
        ctx.font = `${11.5 * ratio}px ${FONT}`;
        ctx.textAlign = "right";
        ctx.fillText(mark.name, bbox.left + bbox.width, y - 4 * ratio);
      }
      for (const line of this.lines.filter((one) => one.dots)) {
        ctx.strokeStyle = ctx.fillStyle = colour(`--s${line.colour}`);
        ctx.lineWidth = 1.5 * ratio;
        this.xs.forEach((at, i) => {
          const value = line.raw[i];
          if (value == null || (this.log && value <= 0)) return;
          const x = plot.valToPos(at, "x", true), cap = 4 * ratio;
          const [low, high] = (line.ends ?? []).map((side) => side[i]);
          if (low != null && high != null) {
            const [bottom, top] = [low, high].map((end) => plot.valToPos(this.log ? Math.max(end, plot.scales.y.min) : end, "y", true));
            ctx.beginPath();
            ctx.moveTo(x, bottom); ctx.lineTo(x, top);
            for (const y of [bottom, top]) { ctx.moveTo(x - cap, y); ctx.lineTo(x + cap, y); }
            ctx.stroke();
          }
          ctx.beginPath();
          ctx.arc(x, plot.valToPos(value, "y", true), 3.5 * ratio, 0, 2 * Math.PI);
          ctx.fill();
        });
      }
      ctx.restore();
    }

    read(plot) {
      const place = plot.cursor.idx, axis = AXES[unit(this.chart)], form = FORMS[this.chart.form];
      if (place == null) { this.readout.textContent = ""; return; }
      const values = this.lines.filter((line) => line.raw[place] != null).map((line) => {
        const ends = line.dots && line.ends?.[0][place] != null ? ` (${form(line.ends[0][place])} to ${form(line.ends[1][place])})` : "";
        const soft = line.soft ? `, smoothed ${form(line.soft[place])}` : "";
        return `${line.name} ${form(line.raw[place])}${ends}${soft}`;
      });
      this.readout.textContent = values.length ? `${axis.told(axis.form(this.xs[place]))}: ${values.join(" · ")}` : "";
    }

    resized() {
      const width = this.place.clientWidth;
      if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: this.height(width) });
    }

    // Update the numbers of the plot; the reader's settings are kept.
    update(chart, figure) {
      this.chart = chart;
      for (const name of [".hint", ".values"]) {
        const [old, fresh] = [this.figure, figure].map((one) => one.querySelector(name));
        if (old && fresh) old.replaceChildren(...fresh.childNodes);
      }
      const [old, fresh] = [this.figure, figure].map((one) => [...one.querySelectorAll(".legend-line b")]);
      if (old.length === fresh.length) old.forEach((value, place) => { value.textContent = fresh[place].textContent; });
      else {
        this.figure.querySelector(".legend-line").replaceChildren(...figure.querySelector(".legend-line").childNodes);
        this.hidden.clear();
        this.legend();
      }
      this.said(figure);
      this.draw();
    }

    // The label of the picture that the plot replaces.
    said(figure) { this.place.setAttribute("aria-label", figure.querySelector("svg").getAttribute("aria-label")); }

    // --- saving the plot

    png() {
      this.built();
      const from = this.plot.ctx.canvas, ratio = devicePixelRatio, room = 16 * ratio, line = 20 * ratio;
      const canvas = document.createElement("canvas"), ctx = canvas.getContext("2d");
      const font = `${12 * ratio}px ${FONT}`;
      ctx.font = font;
      let [left, row] = [room, 0];
      const names = this.lines.map(({ name, colour: number }) => {
        const width = 36 * ratio + ctx.measureText(name).width;
        if (left > room && left + width > from.width) [left, row] = [room, row + 1];
        const place = { name, number, left, top: 43 * ratio + row * line };
        left += width;
        return place;
      });
      const head = 52 * ratio + row * line;
      [canvas.width, canvas.height] = [from.width + 2 * room, from.height + head + room];
      ctx.fillStyle = colour("--card");
      ctx.fillRect(0, 0, canvas.width, canvas.height);
      ctx.fillStyle = colour("--ink");
      ctx.font = `600 ${15 * ratio}px ${FONT}`;
      ctx.fillText(this.chart.title, room, 24 * ratio);
      ctx.font = font;
      for (const place of names) {
        ctx.fillStyle = colour(`--s${place.number}`);
        ctx.fillRect(place.left, place.top - 6 * ratio, 14 * ratio, 4 * ratio);
        ctx.fillStyle = colour("--soft");
        ctx.fillText(place.name, place.left + 19 * ratio, place.top);
      }
      ctx.drawImage(from, room, head);
      canvas.toBlob((blob) => save(blob, "image/png", `${this.figure.dataset.chart}.png`));
    }
  }

  return Plot;
})();
