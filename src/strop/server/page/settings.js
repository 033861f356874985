// The settings of one ranking: three sliders and two presets.

import { h } from "./dom.js";

// The temperature's slider is logarithmic: from 0.01 to 10.
const SLIDERS = [
  { key: "alpha", label: "Alpha", hint: "how far a document moves towards its matching queries", max: 4, step: 0.05, read: Number, write: Number, digits: 2 },
  { key: "temperature", label: "Temperature", hint: "low: the most similar query only; high: all of them", min: -2, max: 1, step: 0.02, read: (at) => 10 ** at, write: (value) => Math.log10(Math.max(value, 0.01)), digits: 3 },
  { key: "words", label: "Words", hint: "how much shared words count", max: 4, step: 0.05, read: Number, write: Number, digits: 2 },
];

export function settingsPanel(side, name, settings, defaults, changed) {
  const usual = { ...defaults };
  const rows = SLIDERS.map((slider) => {
    const id = `${side}-${slider.key}`;
    const shown = h("output", { for: id });
    const input = h("input", {
      id, type: "range", min: slider.min ?? 0, max: slider.max, step: slider.step, title: slider.hint,
      oninput: () => {
        settings[slider.key] = slider.read(Number(input.value));
        show();
        changed();
      },
    });
    const show = () => {
      input.value = slider.write(settings[slider.key]);
      shown.textContent = settings[slider.key].toFixed(slider.digits);
    };
    show();
    return { show, element: h("div.slider", {}, h("label", { for: id }, slider.label), input, shown) };
  });
  const preset = (label, values) => h("button.quiet", {
    type: "button",
    onclick: () => {
      Object.assign(settings, values);
      rows.forEach((row) => row.show());
      changed();
    },
  }, label);
  return h("fieldset.settings", {},
    h("legend", {}, name),
    h("div.presets", {}, preset("Plain", { ...usual, alpha: 0, words: 0 }), preset("Sharpened", usual)),
    rows.map((row) => row.element));
}

/** The method of the server with these settings. Feedback among the best 50 is not in the page. */
export function specOf({ alpha, temperature, words }) {
  const number = (value) => Number(value.toPrecision(6));
  return `sharp:alpha=${number(alpha)}:temperature=${number(temperature)}:words=${number(words)}:feedback=0`;
}
