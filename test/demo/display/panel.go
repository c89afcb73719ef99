package display

import (
	"fmt"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
)

// fullHeight is that of a panel with all it has and four records, without its addresses.
const fullHeight = 9

// wanted is the height that a panel has use for.
func (pic picture) wanted(i, width int) int {
	p, _ := pic.pane(i)
	return fullHeight + len(p.addressLines(width))
}

// draw draws a panel in exactly so many lines.
func (pic picture) draw(i, width, height int) []string {
	p, paused := pic.pane(i)
	selected := i == pic.selected
	var lines []string
	if height < 3 {
		lines = append(lines, p.small(i, selected, paused, width))
		if height == 2 {
			lines = append(lines, "    "+p.last())
		}
	} else {
		lines = append(lines, p.title(i, selected, paused, width))
		lines = append(lines, p.large(width, height-1)...)
	}
	for i, line := range lines {
		lines[i] = cut(line, width)
	}
	for len(lines) < height {
		lines = append(lines, "")
	}
	return lines[:height]
}

// name is the panel's, with the number that selects it.
func (p pane) label(i int, selected bool) string {
	style := lipgloss.NewStyle().Bold(true)
	if selected {
		style = style.Reverse(true)
	}
	return style.Render(fmt.Sprintf(" %d %s ", i+1, p.name))
}

// doing says what the service does.
func (p pane) doing(paused bool) string {
	style := lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	text := "starting"
	if p.service {
		text = p.state.Phase.String()
		switch p.state.Phase {
		case Up:
			style = style.Foreground(lipgloss.Green)
		case Killed, Down:
			style = style.Foreground(lipgloss.Red)
		}
	}
	text = style.Render(text)
	if paused {
		text += lipgloss.NewStyle().Foreground(lipgloss.Cyan).Render(" paused")
	}
	return text
}

// title is the first line of an open panel.
func (p pane) title(i int, selected, paused bool, width int) string {
	line := "─" + p.label(i, selected) + "─ " + p.doing(paused) + " "
	if p.state.Kills > 0 {
		line += "─ was killed " + times(p.state.Kills) + " "
	}
	return line + strings.Repeat("─", max(0, width-lipgloss.Width(line)))
}

// small is a line of a panel that is not open.
func (p pane) small(i int, selected, paused bool, width int) string {
	line := " " + p.label(i, selected)
	line += strings.Repeat(" ", max(1, 20-lipgloss.Width(line))) + p.doing(paused) + "  "
	if !p.known {
		return line + p.waitsFor()
	}
	const curve = 16
	line += fmt.Sprintf("%.0f/s ", p.rates.arrived)
	if width >= 72 {
		line += p.drawCurve(curve) + " "
	}
	if f := p.figures; f.Missing != nil {
		line += warn(fmt.Sprintf("missing %d", *f.Missing), *f.Missing > 0)
		if f.Twice != nil {
			line += fmt.Sprintf(" twice %d", *f.Twice)
		}
	}
	return line
}

// last is the second of two lines.
func (p pane) last() string {
	if len(p.samples) == 0 {
		return ""
	}
	return faint(p.samples[len(p.samples)-1])
}

// waitsFor says why nothing is seen yet.
func (p pane) waitsFor() string {
	if p.state.Err != nil {
		return clean(p.state.Err.Error())
	}
	if p.known || p.waits == "" {
		return ""
	}
	return "waiting for: " + p.waits
}

// large is what an open panel has below its title. What comes first is left out last.
func (p pane) large(width, height int) []string {
	var lines []string
	if text := p.waitsFor(); text != "" {
		lines = append(lines, " "+text)
	}
	if p.known {
		lines = append(lines, " "+strings.Join(p.figures.traffic(p.rates), " · "))
		lines = append(lines, " "+p.balance(), p.curveLine(width))
		if len(p.figures.More) > 0 {
			lines = append(lines, " "+strings.Join(p.figures.More, " · "))
		}
	}
	addresses := p.addressLines(width)
	records := min(len(p.samples), max(1, height-len(lines)-len(addresses)))
	lines = append(lines, addresses[:min(len(addresses), max(0, height-len(lines)-records))]...)
	for _, record := range p.samples[len(p.samples)-records:] {
		lines = append(lines, faint("   "+record))
	}
	return lines
}

// balance says whether something was lost, in red if so.
func (p pane) balance() string {
	f := p.figures
	return warn(strings.Join(f.balance(), " · "), f.Missing != nil && *f.Missing > 0)
}

func warn(text string, really bool) string {
	if !really {
		return text
	}
	return lipgloss.NewStyle().Foreground(lipgloss.Red).Render(text)
}

// addressLines puts as many addresses into a line as fit.
func (p pane) addressLines(width int) (lines []string) {
	for _, a := range p.addresses {
		text := faint(a.what) + " " + clean(a.address)
		if last := len(lines) - 1; last >= 0 && lipgloss.Width(lines[last])+3+lipgloss.Width(text) <= width {
			lines[last] += " · " + text
			continue
		}
		lines = append(lines, " "+text)
	}
	return lines
}

// curveLine is the curve with its scale.
func (p pane) curveLine(width int) string {
	scale := ""
	if len(p.curve) > 0 {
		scale = fmt.Sprintf(" most %.0f/s in %d s", slices.Max(p.curve), len(p.curve))
	}
	return " " + lipgloss.NewStyle().Foreground(lipgloss.Cyan).Render(p.drawCurve(min(curveSeconds, width-len(scale)-1))) + faint(scale)
}

// drawCurve draws the latest rates, of a second each, in so many cells. Nothing is a point, and
// anything more than nothing is more than that. A burst, as after a restart, reaches the top and
// does not flatten the rest.
func (p pane) drawCurve(cells int) string {
	blocks := []rune("▁▂▃▄▅▆▇█")
	values := p.curve[max(0, len(p.curve)-max(0, cells)):]
	some := slices.DeleteFunc(slices.Sorted(slices.Values(values)), func(v float64) bool { return v <= 0 })
	top := 0.0
	if len(some) > 0 {
		top = min(some[len(some)-1], 2*some[len(some)/2])
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", max(0, cells-len(values))))
	for _, v := range values {
		if v <= 0 {
			b.WriteRune('·')
			continue
		}
		b.WriteRune(blocks[min(len(blocks)-1, int(v/top*float64(len(blocks))))])
	}
	return b.String()
}
