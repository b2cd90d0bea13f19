// The operating-point slider: every text is looked up in the states that the page holds.
for (const root of document.querySelectorAll(".slider")) {
  const { num, rows, codes, states } = JSON.parse(root.querySelector("script").textContent);
  const range = root.querySelector("input[type=range]");
  const numOwn = num.reduce((sum, one) => sum + one, 0);
  const markers = root.querySelectorAll("circle.now");
  const show = () => {
    const [number, recall, accuracy, alarmRate, precision, hits, alarms, places] = states[Number(range.value)];
    const found = hits.reduce((sum, one) => sum + one, 0);
    const texts = { recall, precision, alarm_rate: alarmRate, accuracy, found, missed: numOwn - found, alarms };
    texts.passed = rows - numOwn - alarms;
    hits.forEach((hit, place) => { texts[`hits-${place}`] = hit; });
    for (const place of root.querySelectorAll("[data-show]")) place.textContent = texts[place.dataset.show];
    for (const place of root.querySelectorAll("[data-code]")) {
      place.textContent = codes[place.dataset.code].split("VALUE").join(number);
    }
    places.slice(0, markers.length).forEach(([x, y], place) => {
      markers[place].setAttribute("cx", x);
      markers[place].setAttribute("cy", y);
    });
    const said = `recall ${recall} %, ${found} of ${numOwn} found, ${alarms} false alarms, accuracy ${accuracy} %`;
    range.setAttribute("aria-valuetext", said);
  };
  const pick = (language) => {
    for (const button of root.querySelectorAll("[data-language]")) {
      button.setAttribute("aria-pressed", String(button.dataset.language === language));
    }
    for (const place of root.querySelectorAll("[data-code]")) place.hidden = place.dataset.code !== language;
  };
  const go = (state) => { range.value = String(state); show(); };
  range.addEventListener("input", show);
  for (const button of root.querySelectorAll("[data-by]")) {
    button.addEventListener("click", () => go(Number(range.value) + Number(button.dataset.by)));
  }
  for (const button of root.querySelectorAll("[data-to]")) {
    button.addEventListener("click", () => go(Number(button.dataset.to)));
  }
  for (const button of root.querySelectorAll("[data-language]")) {
    button.addEventListener("click", () => pick(button.dataset.language));
  }
  const copy = root.querySelector("[data-copy]");
  copy.addEventListener("click", async () => {
    const code = root.querySelector("[data-code]:not([hidden])");
    window.getSelection().selectAllChildren(code);  // what is selected can be copied by hand where a page may not
    try { await navigator.clipboard.writeText(code.textContent); copy.textContent = "Copied"; } catch { copy.textContent = "Selected"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  pick(Object.keys(codes)[0]);
  go(range.defaultValue);
}
