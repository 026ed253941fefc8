"""What a person would find wrong with a figure on a page: empty, unlabelled, narrow, cut off, overlapping or faint."""

# A function of an element; it returns the faults of all figures in it. Figures are plotly's, or SVG pictures with a
# role. Boxes are those that the browser draws; texts of animated figures move, so they may lie over each other.
FAULTS = """root => {
  const faults = [], box = e => e.getBoundingClientRect();
  const drawn = e => { const b = box(e); return b.width > 0 && b.height > 0; };
  const name = e => e.textContent.trim().slice(0, 40);
  // Boxes of letters are some px higher than the letters.
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5;
  const numbers = color => (color.match(/[\\d.]+/g) || []).map(Number);
  const light = color => { const part = numbers(color).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2]; };
  const behind = e => { for (; e; e = e.parentElement) { const color = getComputedStyle(e).backgroundColor;
    if (numbers(color)[3] !== 0 && color !== 'transparent') return color; } return 'rgb(255, 255, 255)'; };
  const plots = [...root.querySelectorAll('.js-plotly-plot')];
  const pictures = [...root.querySelectorAll('svg[role=img]')];
  if (!plots.length && !pictures.length) faults.push('no figure');
  for (const plot of [...plots, ...pictures]) {
    const svg = plot.matches('svg') ? plot : plot.querySelector('.main-svg');
    if (!svg) { faults.push('empty'); continue; }
    const frame = box(svg), room = box(plot.closest('.jp-OutputArea-output, .output, body'));
    if (frame.bottom > room.bottom + 2) faults.push('over what follows');
    if (frame.right > room.right + 2) faults.push('wide');
    if (frame.width < 0.9 * Math.min(room.width, innerWidth)) faults.push('narrow');
    const texts = [...plot.querySelectorAll('text')].filter(e => drawn(e) && name(e));
    for (const text of texts) {
      const own = box(text);
      if (own.left < frame.left - 1 || own.right > frame.right + 1 || own.top < frame.top - 1
          || own.bottom > frame.bottom + 1) faults.push('cut off: ' + name(text));
      if (text.closest('.overplot, .updatemenu-button')) continue;  // on a colour of their own
      const [a, b] = [light(getComputedStyle(text).fill), light(behind(plot))].sort((a, b) => a - b);
      if ((b + 0.05) / (a + 0.05) < 4.2) faults.push('faint: ' + name(text));
    }
    if (plot === svg) continue;
    const areas = [...plot.querySelectorAll('.cartesianlayer .overplot > g')];
    const used = areas.filter(e => e.querySelector('.trace, .hm, .contour'));
    if (!used.length || used.some(e => box(e).width + box(e).height < 2)) faults.push('empty');
    const titles = [...plot.querySelectorAll('.gtitle, .annotation-text')];
    if (!titles.some(e => drawn(e) && name(e))) faults.push('no title');
    const axes = [...plot.querySelectorAll('[class*=title]')].filter(e => /^[xy]\\d*title$/.test(e.classList[0]));
    if (!axes.some(e => drawn(e) && name(e))) faults.push('no title of an axis');
    const moving = plot.querySelector('.slider-group');
    const buttons = [...plot.querySelectorAll('.updatemenu-button')].map(box);
    for (const area of plot.querySelectorAll('.nsewdrag'))
      if (buttons.some(b => over(b, box(area)))) faults.push('a button over the plot');
    for (const bar of moving ? [] : plot.querySelectorAll('.errorbar, .bars .point path'))
      for (const text of plot.querySelectorAll('.textpoint text'))
        if (drawn(text) && over(box(bar), box(text))) faults.push('over a bar: ' + name(text));
    for (const [n, one] of texts.entries()) for (const other of texts.slice(n + 1)) {
      const turned = [one, other].some(e => /rotate\\((?!-?90|0)/.test(e.getAttribute('transform') || ''));
      const both = [one, other].every(e => e.closest('.overplot, .slider-group'));
      if (turned || (moving && both)) continue;
      if (over(box(one), box(other))) faults.push('overlap: ' + name(one) + ' / ' + name(other));
    }
    for (const button of moving ? [] : plot.querySelectorAll('.updatemenu-button'))
      for (const text of texts) if (!button.contains(text) && over(box(button), box(text)))
        faults.push('under a button: ' + name(text));
  }
  return [...new Set(faults)];
}"""
