// Draw the figures of a page. plotly.js, 5 MB, is loaded only where there are some.
{
  const figures = document.querySelectorAll("div.figure");
  const draw = (figure) => {
    const { data, layout, frames, config } = JSON.parse(figure.querySelector("script").textContent);
    figure.replaceChildren();
    Plotly.newPlot(figure, { data, layout, frames, config: { ...config, responsive: true } });
  };
  if (figures.length) {
    const plotly = document.createElement("script");
    plotly.src = new URL("plotly.min.js", document.currentScript.src);
    plotly.onload = () => figures.forEach(draw);
    document.head.append(plotly);
  }
}
