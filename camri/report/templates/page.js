"use strict";
// Charts use the page's CSS variables for their colours, so light, dark and print need no second drawing.
// Buttons that single one method out; the same again shows all.
function pickers(view, signal) {
  const group = document.createElement("div");
  group.className = "pickers";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Single out a method");
  group.append("Single out:");
  for (const name of view.scale("color").domain()) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      const isPicked = button.getAttribute("aria-pressed") === "false";
      for (const other of group.children) other.setAttribute("aria-pressed", String(isPicked && other === button));
      view.signal(signal, isPicked ? name : "").runAsync();
    });
    group.append(button);
  }
  return group;
}
const drawn = [];
// Draw a chart: once, and when it can be seen, for it takes the width of its place.
async function draw(name, specification) {
  const place = document.getElementById(`chart-${name}`);
  // On a phone labels take a third at most and legends one column: the rest is for the drawing.
  const { axis, legend } = specification.config;
  axis.labelLimit = Math.min(axis.labelLimit, Math.max(60, 0.36 * place.clientWidth));
  if (place.clientWidth < 440) legend.columns = 1;
  try {
    const options = {
      renderer: "svg",
      actions: false, // a drawing saved without the page would lose its colours; camri report --figure saves them
      tooltip: { theme: "custom" },
    };
    const label = place.getAttribute("aria-label");
    const { view } = await window.vegaEmbed(place, specification, options);
    // Vega calls every drawing "Vega visualization" and has its hundreds of marks read out one by one.
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", label);
    place.removeAttribute("aria-roledescription");
    const picked = (specification.params || []).find((one) => one.name.startsWith("picked"));
    if (picked) place.after(pickers(view, picked.name));
    drawn.push(view);
  } catch (error) {
    place.textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  }
}
(async () => {
  const waiting = new Map(Object.entries(JSON.parse(document.getElementById("charts").textContent)));
  const drawVisible = async () => {
    for (const [name, specification] of [...waiting]) {
      if (document.getElementById(`chart-${name}`).closest("details:not([open])")) continue;
      waiting.delete(name);
      await draw(name, specification);
    }
    document.documentElement.dataset.charts = String(drawn.length);
  };
  for (const folded of document.querySelectorAll("details")) folded.addEventListener("toggle", drawVisible);
  window.addEventListener("beforeprint", () => window.dispatchEvent(new Event("resize")));
  await drawVisible();
})();
