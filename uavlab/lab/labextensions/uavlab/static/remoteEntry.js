// An extension of JupyterLab: plotly figures follow the width of the page.
//
// JupyterLab lays out only cells that are in view, and tells the others of one of several fast changes of the page.
// A browser reports the size of an element when it is laid out, so a figure is drawn anew when it comes into view.

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
}

const plugin = {id: 'uavlab:figures', autoStart: true, activate};
(window._JUPYTERLAB ??= {}).uavlab = {init() {}, get: async () => () => ({__esModule: true, default: plugin})};
