// An extension of JupyterLab: plotly figures follow the width of the page, and lists of widgets have their keys.
//
// JupyterLab lays out only cells that are in view, and tells the others of one of several fast changes of the page.
// A browser reports the size of an element when it is laid out, so a figure is drawn anew when it comes into view.
//
// JupyterLab takes the keys of a list for its own: arrows go to another cell, letters cut, copy or delete cells.

function* within(widget) {
  yield widget;
  for (const child of widget.children()) yield* within(child);
}

function activate(app) {
  const sizes = new ResizeObserver(entries => {
    const late = new Set(entries.map(entry => entry.target).filter(
      figure => figure._fullLayout && Math.abs(figure._fullLayout.width - figure.clientWidth) > 1));
    if (!late.size) return;
    for (const main of app.shell.widgets('main'))
      for (const widget of within(main)) if (late.has(widget.node)) widget.update();
  });
  new MutationObserver(changes => {
    for (const {addedNodes} of changes) for (const node of addedNodes) if (node instanceof Element)
      for (const figure of [node, ...node.querySelectorAll('.jp-RenderedPlotly')])
        if (figure.matches('.jp-RenderedPlotly')) sizes.observe(figure);
  }).observe(document.body, {childList: true, subtree: true});
  document.addEventListener('focusin', ({target}) => {
    if (target.matches('.jupyter-widgets select')) target.setAttribute('data-lm-suppress-shortcuts', 'true');
  });
}

const plugin = {id: 'uavlab:figures', autoStart: true, activate};
(window._JUPYTERLAB ??= {}).uavlab = {init() {}, get: async () => () => ({__esModule: true, default: plugin})};
