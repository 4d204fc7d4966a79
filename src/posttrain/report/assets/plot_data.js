// State that the plots of a page share: the numbers in #chart-data, the unit of x, the smoothing of lines.
const PlotData = (() => {
  "use strict";
  const view = { x: "step", smoothing: 0 };
  const page = { charts: {}, clocks: [] };

  const unit = (chart) => (chart.x === "step" ? view.x : chart.x);

  // The tokens or seconds of a step, interpolated between the two nearest points; null if the run did not record them.
  const timeOf = (clock, name, step) => {
    const known = clock?.[name];
    if (!known) return null;
    let low = 0, high = known.length - 1;
    if (step >= known[high][0]) return known[high][1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (known[middle][0] <= step) low = middle; else high = middle;
    }
    const [[x0, y0], [x1, y1]] = [known[low], known[high]];
    return y0 + ((y1 - y0) * (step - x0)) / (x1 - x0);
  };
  const along = (chart, line) => {
    if (chart.x !== "step" || view.x === "step") return line.x;
    return line.x.map((step) => timeOf(page.clocks[line.clock ?? 0], view.x, step));
  };

  // Exponential moving average, divided by the sum of its weights so that it does not start at 0.
  const smoothed = (values, weight) => {
    let sum = 0, weights = 0;
    return values.map((value) => {
      if (value == null) return null;
      sum = weight * sum + (1 - weight) * value;
      weights = weight * weights + (1 - weight);
      return sum / weights;
    });
  };

  // Every line over the same ascending x, with null for missing points.
  const joined = (lines) => {
    const xs = [...new Set(lines.flatMap((line) => line.x.filter((x) => x != null)))].sort((a, b) => a - b);
    const places = new Map(xs.map((x, place) => [x, place]));
    const spread = (line, values) => {
      const column = new Array(xs.length).fill(null);
      line.x.forEach((x, i) => { if (x != null) column[places.get(x)] = values[i]; });
      return column;
    };
    return { xs, spread };
  };

  // The lines of a plot as CSV. A name that a spreadsheet would read as a formula gets a quote in front, to be text.
  const csv = (chart, hidden) => {
    const lines = chart.series.filter((_, place) => !hidden.has(place));
    const { xs, spread } = joined(lines), clock = chart.x === "step" && page.clocks.length === 1 ? page.clocks[0] : {};
    const columns = [[chart.x, xs], ...Object.keys(clock).map((name) => [name, xs.map((step) => timeOf(clock, name, step))])];
    for (const line of lines) {
      columns.push([line.name, spread(line, line.y)]);
      for (const side of ["low", "high"]) if (line[side]) columns.push([`${line.name}, ${side}`, spread(line, line[side])]);
    }
    const cell = (name) => `"${(/^[=+\-@\t\r]/.test(name) ? `'${name}` : name).replaceAll('"', '""')}"`;
    const rows = xs.map((_, i) => columns.map(([, column]) => column[i] ?? "").join(","));
    return `${[columns.map(([name]) => cell(name)).join(","), ...rows].join("\n")}\n`;
  };

  return { view, page, unit, along, smoothed, joined, csv };
})();
