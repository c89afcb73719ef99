package display

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
)

const (
	framesPerSecond = 4
	curveSeconds    = 60 // that a curve shows
	keptSamples     = 20 // of each panel
	keptNotes       = 50
)

// Window draws a panel for each service, refreshed in place on a terminal.
type Window struct {
	program *tea.Program
	ended   chan struct{} // closed when the program has, with err set
	err     error
	stop    chan struct{} // closed when no more frames are wanted
	frames  sync.WaitGroup
	began   time.Time

	mu     sync.Mutex
	panels []*panel
	notes  []string
}

// panel is what the window knows of a service.
type panel struct {
	pane
	figure  func() Figures
	meter   meter
	control Controlled
	room    int // samples that are still taken in this second
}

// pane is what a panel shows at a moment.
type pane struct {
	name      string
	waits     string // for what, before it runs
	addresses []address
	samples   []string // the latest ones, newest last
	known     bool     // figures
	figures   Figures
	rates     rates
	curve     []float64 // arrived in each of the last seconds
	service   bool      // there is one to kill
	state     State
}

func newPanel(name string) *panel {
	return &panel{pane: pane{name: name}, meter: meter{span: 3}, room: burst}
}

type address struct{ what, address string }

// OpenWindow takes the terminal. interrupt is called for Ctrl-C, which is a key like others there,
// and when the window has ended by itself.
func OpenWindow(in io.Reader, out io.Writer, names []string, interrupt func()) *Window {
	w := &Window{ended: make(chan struct{}), stop: make(chan struct{}), began: time.Now()}
	for _, name := range names {
		w.panels = append(w.panels, newPanel(name))
	}
	pic := picture{frame: w.frame(), act: w.act, interrupt: interrupt}
	// Signals are the demo's own: the window outlives the first one.
	w.program = tea.NewProgram(pic, tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler(), tea.WithFPS(2*framesPerSecond))
	go func() {
		_, w.err = w.program.Run()
		close(w.ended)
		select {
		case <-w.stop:
		default:
			interrupt()
		}
	}()
	w.frames.Go(w.draw)
	return w
}

// draw gives the program a frame now and again.
func (w *Window) draw() {
	tick := time.NewTicker(time.Second / framesPerSecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-w.stop:
			return
		case <-w.ended:
			return
		case <-tick.C:
		}
		if n%framesPerSecond == 0 {
			w.count()
		}
		w.program.Send(w.frame())
	}
}

// count asks for all figures. w.mu is not held meanwhile: who gives them takes a lock of its own,
// which others hold when they show a sample.
func (w *Window) count() {
	w.mu.Lock()
	panels := slices.Clone(w.panels)
	w.mu.Unlock()
	for _, p := range panels {
		w.mu.Lock()
		ask := p.figure
		p.room = burst
		w.mu.Unlock()
		if ask == nil {
			continue
		}
		f := ask()
		w.mu.Lock()
		first := !p.known
		p.figures, p.known, p.rates = f, true, p.meter.read(f)
		if !first { // a rate needs two
			p.curve = append(p.curve, p.rates.arrived)
			p.curve = p.curve[max(0, len(p.curve)-curveSeconds):]
		}
		w.mu.Unlock()
	}
}

// frame is what is to be seen now.
func (w *Window) frame() frame {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := frame{age: time.Since(w.began), notes: slices.Clone(w.notes)}
	for _, p := range w.panels {
		shown := p.pane
		shown.addresses, shown.samples, shown.curve = slices.Clone(p.addresses), slices.Clone(p.samples), slices.Clone(p.curve)
		if p.control != nil {
			shown.service, shown.state = true, p.control.State()
		}
		f.panes = append(f.panes, shown)
	}
	return f
}

// act kills a panel's service, or starts it again.
func (w *Window) act(name string, kill bool) {
	w.mu.Lock()
	p := w.panel(name)
	control := p.control
	w.mu.Unlock()
	switch {
	case control == nil:
		w.Note("%s does not run yet", name)
	case kill:
		if err := control.Kill(); err != nil {
			w.Note("%s cannot be killed: %s", name, err)
			return
		}
		w.Note("%s was killed (SIGKILL): r starts it again", name)
	default:
		if err := control.Again(); err != nil {
			w.Note("%s cannot be started: %s", name, err)
			return
		}
		w.Note("%s is started again", name)
	}
}

// panel returns one by its name. w.mu is held.
func (w *Window) panel(name string) *panel {
	for _, p := range w.panels {
		if p.name == name {
			return p
		}
	}
	p := newPanel(name)
	w.panels = append(w.panels, p)
	return p
}

// Note adds a line to the notes.
func (w *Window) Note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, time.Now().Format("15:04:05")+"  "+clean(fmt.Sprintf(format, args...)))
	w.notes = w.notes[max(0, len(w.notes)-keptNotes):]
}

// Waiting shows in the panel what its service waits for.
func (w *Window) Waiting(panel, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.panel(panel).waits = what
}

// Address adds a line to the panel.
func (w *Window) Address(panel, what, where string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.panel(panel)
	p.addresses = append(p.addresses, address{what, where})
}

// Sample adds a line to the panel.
func (w *Window) Sample(panel string, line func() string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.panel(panel)
	if p.room == 0 {
		return
	}
	p.room--
	p.samples = append(p.samples, clean(line()))
	p.samples = p.samples[max(0, len(p.samples)-keptSamples):]
}

// Status adds the figures of the panel.
func (w *Window) Status(panel string, figures func() Figures) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.panel(panel).figure = figures
}

// Control adds what the keys kill and start.
func (w *Window) Control(panel string, by Controlled) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.panel(panel).control = by
}

// Refresh waits: the window draws itself from the beginning on.
func (w *Window) Refresh(ctx context.Context) error {
	select {
	case <-w.ended:
		return fmt.Errorf("nobody watches: %w", w.failure())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failure is why the program has ended by itself.
func (w *Window) failure() error {
	if w.err == nil {
		return errors.New("the terminal is gone")
	}
	return w.err
}

// End leaves the last figures where they are.
func (w *Window) End() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.panels {
		p.figure = nil
	}
}

// Table is the smoke's, which has no window.
func (w *Window) Table(string, []Check) {}

// Close gives the terminal back and writes what was seen.
func (w *Window) Close(out io.Writer) error {
	close(w.stop)
	var err error
	select {
	case <-w.ended:
		err = w.failure()
	default:
		w.program.Quit()
		<-w.ended
		err = w.err
	}
	w.frames.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.panels {
		if !p.known {
			continue
		}
		groups := []string{strings.Join(p.figures.balance(), ", ")}
		if p.control != nil {
			if kills := p.control.State().Kills; kills > 0 {
				groups = append(groups, "killed "+times(kills))
			}
		}
		fmt.Fprintf(out, "%-15s  %s %s\n", p.name, p.figures.Unit, strings.Join(groups, "; "))
	}
	return err
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// Interactive says whether a window can be drawn: on a terminal that this process has for itself.
func Interactive(in, out *os.File) bool {
	term := os.Getenv("TERM")
	return term != "" && term != "dumb" && isTerminal(out) && isTerminal(in) && inForeground(in)
}
