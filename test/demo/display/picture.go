package display

import (
	"maps"
	"strconv"
	"time"

	tea "charm.land/bubbletea/v2"
)

// frame is all that the window shows at a moment.
type frame struct {
	panes []pane
	notes []string // newest last
	age   time.Duration
}

// picture is the window's state: what it was told last, and what the keys have made of it.
type picture struct {
	width, height int
	frame         frame
	selected      int
	held          map[int]pane // those that are paused, as they were then

	act       func(panel string, kill bool)
	interrupt func()
}

// Init implements tea.Model.
func (pic picture) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (pic picture) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		pic.width, pic.height = msg.Width, msg.Height
	case frame:
		pic.frame = msg
	case tea.KeyPressMsg:
		return pic.press(msg.String())
	}
	return pic, nil
}

// press obeys a key. The footer names them all.
func (pic picture) press(key string) (tea.Model, tea.Cmd) {
	switch n := len(pic.frame.panes); key {
	case "ctrl+c", "q":
		return pic, func() tea.Msg { pic.interrupt(); return nil }
	case "down", "tab":
		pic.selected = (pic.selected + 1) % n
	case "up", "shift+tab":
		pic.selected = (pic.selected + n - 1) % n
	case "p", "space":
		pic.held = maps.Clone(pic.held)
		if _, paused := pic.held[pic.selected]; paused {
			delete(pic.held, pic.selected)
			break
		}
		if pic.held == nil {
			pic.held = map[int]pane{}
		}
		pic.held[pic.selected] = pic.frame.panes[pic.selected]
	case "k", "r":
		name := pic.frame.panes[pic.selected].name
		return pic, func() tea.Msg { pic.act(name, key == "k"); return nil }
	default:
		if i, err := strconv.Atoi(key); err == nil && i >= 1 && i <= n {
			pic.selected = i - 1
		}
	}
	return pic, nil
}

// pane is what a panel shows: of one that is paused, what it showed then. What its service does is
// never hidden.
func (pic picture) pane(i int) (shown pane, paused bool) {
	now := pic.frame.panes[i]
	held, paused := pic.held[i]
	if !paused {
		return now, false
	}
	held.state, held.service = now.state, now.service
	return held, true
}

// View implements tea.Model.
func (pic picture) View() tea.View {
	v := tea.NewView(pic.render())
	v.AltScreen = true
	return v
}
