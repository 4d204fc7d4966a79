// Above: uPlot, copyright (c) 2022 Leon Sorokin, MIT License (uplot/LICENSE of the package posttrain).
// Numbers for people, formatted as in svg.py, and the units that x can have.
const Numbers = (() => {
  "use strict";
  const withoutZeros = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  const FORMS = {
    compact(value) {
      const size = Math.abs(value);
      if (size === 0) return "0";
      if (size < 0.001) return value.toExponential(1).replace(".0e", "e");
      for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
        if (size >= limit) return (value / (unit === "k" ? 1e3 : limit)).toFixed(1).replace(/\.0$/, "") + unit;
      }
      if (size >= 1000) return Math.round(value).toLocaleString("en-US");
      return withoutZeros(value.toFixed(size < 10 ? 3 : 1)) || "0";
    },
    percent(value) {
      const shown = 100 * value, size = Math.abs(shown);
      const fine = size < 9.95 || (size > 99 && size < 100);
      return `${fine ? shown.toFixed(1).replace(/\.0$/, "") : shown.toFixed(0)}%`;
    },
    seconds(value) {
      if (value < 0.95) return value ? `${(1000 * value).toFixed(0)} ms` : "0";
      if (value < 59.5) return `${value.toFixed(1)} s`;
      const whole = Math.round(value), two = (count) => String(count).padStart(2, "0");
      if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
      return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
    },
    plain: (value) => withoutZeros(value.toFixed(6)),
  };
  const AXES = {
    step: { name: "steps", form: FORMS.plain, told: (text) => `step ${text}` },
    steps: { name: "steps", form: FORMS.plain, told: (text) => `${text} steps` },
    tokens: { name: "tokens", form: FORMS.compact, told: (text) => `${text} tokens` },
    seconds: { name: "time", form: FORMS.seconds, told: (text) => text },
  };

  return { FORMS, AXES };
})();
