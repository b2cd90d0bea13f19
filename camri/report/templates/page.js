"use strict";
// Charts use the page's CSS variables for their colours, so light, dark and print need no second drawing.
(async () => {
  const specifications = JSON.parse(document.getElementById("charts").textContent);
  const drawn = [];
  for (const [name, specification] of Object.entries(specifications)) {
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
      drawn.push(await window.vegaEmbed(place, specification, options));
    } catch (error) {
      place.textContent = `This chart could not be drawn: ${error.message}`;
      console.error(error);
    }
  }
  const resize = () => window.dispatchEvent(new Event("resize"));
  window.addEventListener("beforeprint", resize);
  document.documentElement.dataset.charts = String(drawn.length);
})();
