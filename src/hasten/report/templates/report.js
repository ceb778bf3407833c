(() => {
  "use strict";
  const root = document.documentElement;
  window.addEventListener("error", (event) => { root.dataset.error = String(event.message); });

  const colour = (token) => getComputedStyle(root).getPropertyValue("--" + token.slice(1)).trim();
  const dress = (node) => {
    if (typeof node === "string") return /^\$[a-z-]+$/.test(node) ? colour(node) : node;
    if (Array.isArray(node)) return node.map(dress);
    if (node && typeof node === "object") return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, dress(value)]));
    return node;
  };

  const figures = JSON.parse(document.getElementById("figures").textContent);
  const draw = () => {
    let drawn = 0;
    for (const [name, figure] of Object.entries(figures)) {
      const place = document.getElementById("plot-" + name);
      if (!place || place.closest("details:not([open])")) continue; // a folded plot has no width yet
      try {
        const { data, layout } = dress(figure);
        if (place.clientWidth < 520) {
          layout.font.size = 11;
          if (layout.xaxis.tickvals) {
            const [low, high] = layout.xaxis.range;
            const gap = 34 / Math.max(place.clientWidth - 190, 80) * (high - low);
            const kept = [];
            [1, ...layout.xaxis.tickvals].forEach((tick, place) => {
              if (place === 0 && !layout.xaxis.tickvals.includes(1)) return;
              if (kept.every((other) => Math.abs(Math.log10(tick / other)) > gap)) kept.push(tick);
            });
            layout.xaxis.tickvals = kept;
            layout.xaxis.ticktext = kept.map((tick) => tick + "×");
          }
        }
        Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
        drawn += 1;
      } catch (error) {
        root.dataset.error = String(error);
        place.textContent = "This plot could not be drawn: " + error + ". Its numbers are in evidence.json.";
      }
    }
    root.dataset.plots = String(drawn);
  };
  draw();
  for (const folded of document.querySelectorAll("details")) folded.addEventListener("toggle", () => { if (folded.open && folded.querySelector(".plot")) draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  window.addEventListener("beforeprint", () => {
    root.classList.add("printing");
    for (const folded of document.querySelectorAll("details")) folded.open = true;
    draw();
  });
  window.addEventListener("afterprint", () => { root.classList.remove("printing"); draw(); });

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected: press Ctrl+C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  const picture = (name, format) => {
    const { data, layout } = dress(figures[name]);
    const shown = { ...layout, paper_bgcolor: colour("$card"), margin: { ...layout.margin, l: 60, t: 40 }, title: { text: "" } };
    return Plotly.toImage({ data, layout: shown }, { format, width: 900, height: Math.max(layout.height, 300) });
  };
  for (const button of document.querySelectorAll("button.save")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const { plot, format } = button.dataset;
      const link = document.createElement("a");
      link.href = await picture(plot, format);
      link.download = plot + "." + format;
      link.click();
    });
  }
  if (location.hash === "#images") { // `--plots` reads them from the document
    const wanted = Object.keys(figures).flatMap((name) => ["svg", "png"].map((format) => picture(name, format).then((url) => [name, format, url])));
    Promise.all(wanted).then((images) => {
      const told = document.createElement("script");
      told.type = "application/json";
      told.id = "images";
      told.textContent = JSON.stringify(images).replaceAll("<", "\\u003c");
      document.body.append(told);
    });
  }
})();
