// Two cut-offs of a triage: what is cleared, alarmed and left to a person is counted from the states the page holds.
for (const root of document.querySelectorAll(".handles")) {
  const { num, rows, code, states } = JSON.parse(root.querySelector("script").textContent);
  const low = root.querySelector("[data-handle=low]"), high = root.querySelector("[data-handle=high]");
  const percent = (part, whole) => (whole ? (100 * part / whole).toFixed(1) : "–");
  const show = () => {
    const [lowAt, above, found] = states[Number(low.value)], [highAt, alarms, right] = states[Number(high.value)];
    const texts = {
      cleared: percent(rows - above, rows), missed: percent(num - found, num), "missed-count": num - found,
      alarms: percent(alarms, rows), right: percent(right, alarms), person: percent(above - alarms, rows),
    };
    for (const place of root.querySelectorAll("[data-show]")) place.textContent = texts[place.dataset.show];
    root.querySelector("[data-code]").textContent = code.split("VALUE").join(lowAt).split("HIGH").join(highAt);
    low.setAttribute("aria-valuetext", `clear ${texts.cleared} % of rows, ${texts.missed} % of the class missed`);
    high.setAttribute("aria-valuetext", `alarm for ${texts.alarms} % of rows, ${texts.right} % right`);
  };
  // Alarms never begin below what is cleared: the handle that moves pushes the other one.
  low.addEventListener("input", () => { if (Number(high.value) > Number(low.value)) high.value = low.value; show(); });
  high.addEventListener("input", () => { if (Number(high.value) > Number(low.value)) low.value = high.value; show(); });
  root.querySelector("[data-reset]").addEventListener("click", () => {
    low.value = low.defaultValue;
    high.value = high.defaultValue;
    show();
  });
  show();
}
