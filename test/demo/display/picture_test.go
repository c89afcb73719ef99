package display

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// someFrame has a panel of each kind: one that waits, those that run, and one that was killed.
func someFrame(arrived int64) frame {
	f := frame{age: time.Minute, notes: []string{"10:00:00  pulsar: healthy", "10:00:01  " + strings.Repeat("a long note ", 40)}}
	for i, name := range []string{"nightingale", "nightingale-2.0", "pigeonhole", "sonic-a", "sonic-b", "eventbridge"} {
		p := pane{
			name: name, known: true, service: true, state: State{Phase: Up}, curve: []float64{1, 0, 300, 600},
			figures: Figures{
				Unit: "samples", From: "prometheus", To: "its topic", Sent: new(arrived + 4), Arrived: arrived, Missing: new(int64), Twice: new(int64(i)), Lag: 1200 * time.Millisecond,
				More: []string{"772 series"},
			},
			rates:     rates{sent: 651, arrived: 650},
			addresses: []address{{"admin", fmt.Sprintf("http://127.0.0.1:%d", 9202+i)}, {"topic", "persistent://" + strings.Repeat("long/", 60)}},
		}
		for n := range 9 {
			p.samples = append(p.samples, fmt.Sprintf("record %d of %s %s", n, name, strings.Repeat("世界", 80)))
		}
		f.panes = append(f.panes, p)
	}
	f.panes[1] = pane{name: "nightingale-2.0", waits: "servers: prometheus-current"}
	f.panes[2].state = State{Phase: Killed, Kills: 1}
	f.panes[2].figures.Missing = new(int64(321))
	f.panes[4].figures = Figures{Unit: "writes", From: "zone b", To: "zone a"} // nothing is known yet
	return f
}

func somePicture(width, height int) picture {
	return update(picture{frame: someFrame(1230), interrupt: func() {}, act: func(string, bool) {}}, tea.WindowSizeMsg{Width: width, Height: height})
}

func update(pic picture, msgs ...tea.Msg) picture {
	for _, msg := range msgs {
		next, _ := pic.Update(msg)
		pic = next.(picture)
	}
	return pic
}

// text is what is on the screen, a line each.
func (pic picture) text() []string {
	return strings.Split(regexp.MustCompile(`\x1b\[[0-9;]*m`).ReplaceAllString(pic.View().Content, ""), "\n")
}

// press is the message of a key, by its name in the footer.
func press(key string) tea.KeyPressMsg {
	switch key {
	case "up":
		return tea.KeyPressMsg{Code: tea.KeyUp}
	case "down":
		return tea.KeyPressMsg{Code: tea.KeyDown}
	case "tab":
		return tea.KeyPressMsg{Code: tea.KeyTab}
	case "space":
		return tea.KeyPressMsg{Code: tea.KeySpace, Text: " "}
	case "ctrl+c":
		return tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
	default:
		return tea.KeyPressMsg{Code: rune(key[0]), Text: key}
	}
}

// TestPictureFitsTheWindow: as many lines as the window has, none wider, whatever is selected.
func TestPictureFitsTheWindow(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 24}, {200, 60}, {120, 40}, {159, 33}, {160, 25}, {80, 12}, {40, 10}, {20, 5}, {5, 3}, {1, 1}, {300, 90}} {
		for selected := range 6 {
			pic := somePicture(size[0], size[1])
			pic = update(pic, press(fmt.Sprint(selected+1)))
			lines := pic.text()
			require.Len(t, lines, size[1], "%v", size)
			for _, line := range lines {
				require.LessOrEqual(t, lipgloss.Width(line), size[0], "%v: %q", size, line)
			}
		}
	}
	assert.Empty(t, update(picture{frame: someFrame(1)}).View().Content, "before the size is known")
}

// TestPictureOfASmallTerminal: the selected panel is open, the others have a line each, and nothing
// is left out of them that matters.
func TestPictureOfASmallTerminal(t *testing.T) {
	lines := somePicture(80, 24).text()
	all := strings.Join(lines, "\n")
	assert.Contains(t, lines[0], "4 of 6 services run")
	assert.Contains(t, lines[1], "─ 1 nightingale ─ running ─")
	assert.Contains(t, all, "in 651 samples/s from prometheus · out 650/s to its topic · lag 1.2 s")
	assert.Contains(t, all, "sent 1234 · arrived 1230 · on the way 4 · missing 0 · twice 0")
	assert.Contains(t, all, "▁·▅█ most 600/s in 4 s")
	assert.Contains(t, all, "772 series")
	assert.Contains(t, all, "admin http://127.0.0.1:9202")
	assert.Contains(t, all, "record 8 of nightingale")
	assert.Contains(t, all, "waiting for: servers: prometheus-current")
	assert.Regexp(t, `3 pigeonhole +killed .* missing 321 twice 2`, all)
	assert.NotRegexp(t, `5 sonic-b .*(missing|twice)`, all, "not known is not 0")
	assert.Contains(t, lines[22], "a long note", "the newest one")
	assert.Contains(t, lines[21], "pulsar: healthy")
	assert.Equal(t, " ↑ ↓ tab 1-6 select · p pause · k kill -9 · r start again · q end, twice at once", lines[23])
}

// TestPictureOfALargeTerminal has room for every panel.
func TestPictureOfALargeTerminal(t *testing.T) {
	all := strings.Join(somePicture(200, 60).text(), "\n")
	for i, p := range someFrame(1).panes {
		assert.Contains(t, all, fmt.Sprintf("─ %d %s ─", i+1, p.name))
		if p.known {
			assert.Contains(t, all, fmt.Sprintf("http://127.0.0.1:%d", 9202+i))
			assert.Contains(t, all, "record 8 of "+p.name)
			assert.Contains(t, all, "record 5 of "+p.name)
		}
	}
	assert.Contains(t, all, "10:00:00  pulsar: healthy")
}

func TestKeysSelectAPanel(t *testing.T) {
	pic := somePicture(80, 24)
	for _, step := range []struct {
		key  string
		want int
	}{{"down", 1}, {"tab", 2}, {"up", 1}, {"up", 0}, {"up", 5}, {"down", 0}, {"4", 3}, {"9", 3}, {"0", 3}, {"x", 3}} {
		pic = update(pic, press(step.key))
		require.Equal(t, step.want, pic.selected, step.key)
	}
	assert.Contains(t, strings.Join(pic.text(), "\n"), "record 8 of sonic-a")
}

// TestAPausedPanelStandsStill: its figures and records, not what its service does, and no other
// panel.
func TestAPausedPanelStandsStill(t *testing.T) {
	for _, key := range []string{"p", "space"} {
		pic := update(somePicture(200, 60), press(key))
		next := someFrame(5550)
		next.panes[0].samples = []string{"a new record"}
		next.panes[0].state = State{Phase: Killed, Kills: 1}
		pic = update(pic, next)
		all := strings.Join(pic.text(), "\n")
		assert.Contains(t, all, "─ 1 nightingale ─ killed paused ─ was killed once ─")
		assert.Contains(t, all, "arrived 1230")
		assert.NotContains(t, all, "a new record")
		assert.Contains(t, all, "arrived 5550", "of the others")
		pic = update(pic, press(key))
		all = strings.Join(pic.text(), "\n")
		assert.Contains(t, all, "a new record")
		assert.NotContains(t, all, "arrived 1230")
		assert.NotContains(t, all, "paused")
	}
}

// TestKeysKillAndStart the service of the selected panel, and no other.
func TestKeysKillAndStart(t *testing.T) {
	var did []string
	interrupted := 0
	pic := somePicture(80, 24)
	pic.act = func(panel string, kill bool) { did = append(did, fmt.Sprint(panel, " ", kill)) }
	pic.interrupt = func() { interrupted++ }
	for _, key := range []string{"3", "k", "r", "down", "k", "ctrl+c", "q"} {
		next, command := pic.Update(press(key))
		pic = next.(picture)
		if command != nil {
			assert.Nil(t, command())
		}
	}
	assert.Equal(t, []string{"pigeonhole true", "pigeonhole false", "sonic-a true"}, did)
	assert.Equal(t, 2, interrupted)
}

func TestCleanLinesMoveNoCursor(t *testing.T) {
	assert.Equal(t, "a [31mb c d", clean("a\x1b[31mb\tc\nd\u200b"))
	assert.Equal(t, "世界…", cut("世界世界", 5))
	assert.Equal(t, "世界", cut("世界", 4))
}
