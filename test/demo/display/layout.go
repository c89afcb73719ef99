package display

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"charm.land/lipgloss/v2"
)

const (
	twoColumns = 160 // that many cells are wide enough for them
	gap        = 2   // between them
)

// keys names them; the number is that of panels.
const keys = " ↑ ↓ tab 1-%d select · p pause · k kill -9 · r start again · q end, twice at once"

// render draws the screen: exactly as many lines as there are, none wider than it is.
func (pic picture) render() string {
	if pic.width <= 0 || pic.height <= 0 || len(pic.frame.panes) == 0 {
		return ""
	}
	notes := max(1, pic.height/8)
	room := max(1, pic.height-2-notes)
	body := pic.body(room)
	notes = max(0, pic.height-2-len(body)) // what the panels leave is theirs
	lines := append([]string{pic.header()}, body...)
	latest := pic.frame.notes[max(0, len(pic.frame.notes)-notes):]
	for range notes - len(latest) {
		lines = append(lines, "")
	}
	for _, note := range latest {
		lines = append(lines, faint(note))
	}
	lines = append(lines[:max(0, pic.height-1)], lipgloss.NewStyle().Reverse(true).Render(fit(fmt.Sprintf(keys, len(pic.frame.panes)), pic.width)))
	for i, line := range lines {
		lines[i] = cut(line, pic.width)
	}
	return strings.Join(lines, "\n")
}

func (pic picture) header() string {
	running := 0
	for _, p := range pic.frame.panes {
		if p.service && p.state.Phase == Up {
			running++
		}
	}
	text := fmt.Sprintf(" %d of %d services run · %s", running, len(pic.frame.panes), pic.frame.age.Round(time.Second))
	return lipgloss.NewStyle().Bold(true).Render(" Aviary") + text
}

// body draws the panels in at most so many lines. That of the selected one is open, and so are the
// others as far as there is room.
func (pic picture) body(room int) []string {
	columns, width := 1, pic.width
	if pic.width >= twoColumns {
		columns, width = 2, (pic.width-gap)/2
	}
	n := len(pic.frame.panes)
	rows := (n + columns - 1) / columns
	heights := make([]int, rows)
	for i := range n {
		heights[i%rows] = max(heights[i%rows], pic.wanted(i, width))
	}
	share(heights, pic.selected%rows, room)
	var lines []string
	for row, height := range heights {
		if height == 0 {
			continue
		}
		cells := pic.draw(row, width, height)
		for column := 1; column < columns && row+column*rows < n; column++ {
			for i, line := range pic.draw(row+column*rows, width, height) {
				cells[i] = fit(cells[i], width) + strings.Repeat(" ", gap) + line
			}
		}
		lines = append(lines, cells...)
	}
	return lines
}

// share makes rows of the wanted heights fit: the others give way to the selected one, and it gives
// way when they have a line each.
func share(heights []int, selected, room int) {
	sum := 0
	for _, h := range heights {
		sum += h
	}
	if sum <= room {
		for i := 0; sum < room && sum > 0; i = (i + 1) % len(heights) { // more records
			if heights[i] >= 2*fullHeight {
				break
			}
			heights[i]++
			sum++
		}
		return
	}
	others := len(heights) - 1
	if room < others+3 { // no room for them
		for i := range heights {
			heights[i] = 0
		}
		heights[selected] = room
		return
	}
	own := min(heights[selected], room-others)
	for i := range heights {
		if i == selected {
			continue
		}
		heights[i] = min(heights[i], (room-own)/others)
	}
	heights[selected] = room
	for i := range heights {
		if i != selected {
			heights[selected] -= heights[i]
		}
	}
}

// fit cuts or fills up a line.
func fit(line string, width int) string {
	line = cut(line, width)
	return line + strings.Repeat(" ", max(0, width-lipgloss.Width(line)))
}

// cut shortens a line to so many cells.
func cut(line string, width int) string {
	if width <= 0 {
		return ""
	}
	if lipgloss.Width(line) <= width {
		return line
	}
	if width == 1 {
		return "…"
	}
	return lipgloss.NewStyle().MaxWidth(width-1).Render(line) + "…"
}

// clean leaves out what would move the cursor or change colors.
func clean(line string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r):
			return ' '
		case unicode.Is(unicode.Cf, r):
			return -1
		default:
			return r
		}
	}, line)
}

func faint(text string) string { return lipgloss.NewStyle().Faint(true).Render(text) }
