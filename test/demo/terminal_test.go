package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal with a program on it.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	before *unix.Termios
	cmd    *exec.Cmd
	ended  chan error

	mu  sync.Mutex
	out bytes.Buffer
}

// onTerminal starts one of the fake demos on a terminal of its own.
func onTerminal(t *testing.T, fake string, environ ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	require.NoError(t, err)

	term := &terminal{t: t, master: master, slave: slave, before: before, ended: make(chan error, 1)}
	term.cmd = exec.Command(os.Args[0])
	term.cmd.Env = append(append(os.Environ(), "TERM=xterm-256color", fakeVariable+"="+fake), environ...)
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, term.cmd.Start())
	go func() {
		part := make([]byte, 4096)
		for {
			n, err := master.Read(part)
			term.mu.Lock()
			term.out.Write(part[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() { term.ended <- term.cmd.Wait() }()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		_ = slave.Close()
		_ = master.Close()
	})
	return term
}

func (term *terminal) text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.out.String()
}

func (term *terminal) await(what string) {
	term.t.Helper()
	require.Eventually(term.t, func() bool { return strings.Contains(term.text(), what) }, patience, 10*time.Millisecond, "%s is not in:\n%q", what, term)
}

func (term *terminal) String() string { return term.text() }

func (term *terminal) press(keys string) {
	term.t.Helper()
	_, err := term.master.WriteString(keys)
	require.NoError(term.t, err)
}

// exit waits for the end and returns the status.
func (term *terminal) exit() int {
	term.t.Helper()
	select {
	case <-term.ended:
		return term.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		require.Fail(term.t, "it does not end", "%q", term.text())
		return -1
	}
}

// restored checks that lines can be typed again, and returns what stands on the normal screen.
func (term *terminal) restored() string {
	term.t.Helper()
	const leave, show = "\x1b[?1049l", "\x1b[?25h"
	term.await(leave)
	require.Eventually(term.t, func() bool {
		now, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
		return err == nil && *now == *term.before
	}, patience, 10*time.Millisecond, "the terminal's settings")
	assert.Contains(term.t, term.text(), show, "the cursor is seen again")
	_, after, _ := strings.Cut(term.text(), leave)
	return after
}

// TestCtrlCEndsTheWindow: it is a key, and means what SIGINT does.
func TestCtrlCEndsTheWindow(t *testing.T) {
	for name, end := range map[string]func(*terminal){
		"ctrl-c": func(term *terminal) { term.press("\x03") },
		"q":      func(term *terminal) { term.press("q") },
		"SIGTERM": func(term *terminal) {
			require.NoError(t, term.cmd.Process.Signal(syscall.SIGTERM))
		},
		"SIGHUP": func(term *terminal) {
			require.NoError(t, term.cmd.Process.Signal(syscall.SIGHUP))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			term := onTerminal(t, "demo")
			term.await("\x1b[?1049h")
			term.await("a record")
			now, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
			require.NoError(t, err)
			assert.Zero(t, now.Lflag&unix.ISIG, "raw")
			end(term)
			assert.Zero(t, term.exit())
			term.await("said meanwhile") // on stderr, and last
			after := term.restored()
			assert.Regexp(t, `pigeonhole +messages sent \d+00, arrived \d+00, on the way 0, missing 0, twice 0`, after)
			assert.Contains(t, after, "said meanwhile", "not in the picture")
		})
	}
}

// TestASecondCtrlCHurries what stops slowly, and the window stays until then.
func TestASecondCtrlCHurries(t *testing.T) {
	t.Parallel()
	term := onTerminal(t, "demo", "FAKE_SLOW=yes")
	term.await("a record")
	term.press("\x03")
	term.await("once more to stop at once")
	term.press("\x03")
	assert.Zero(t, term.exit())
	term.restored()
}

// TestTheTerminalComesBack after a failure, a panic of any goroutine, and when the demo is killed.
func TestTheTerminalComesBack(t *testing.T) {
	t.Run("failure", func(t *testing.T) {
		t.Parallel()
		term := onTerminal(t, "failing demo")
		assert.Equal(t, 1, term.exit())
		term.await("demo: a failure")
	})
	t.Run("panic", func(t *testing.T) {
		t.Parallel()
		term := onTerminal(t, "panicking demo")
		assert.Equal(t, 2, term.exit())
		term.await("a panic in a goroutine")
		assert.Contains(t, term.restored(), "a panic in a goroutine")
	})
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		term := onTerminal(t, "demo")
		term.await("a record")
		require.NoError(t, term.cmd.Process.Kill())
		assert.Equal(t, -1, term.exit())
		term.restored()
	})
}

// TestNoWindowWithoutATerminal: lines in a pipe, and on a terminal that cannot move its cursor or
// could not be given back.
func TestNoWindowWithoutATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env, cmd.Stdout = append(os.Environ(), fakeVariable+"=failing demo"), &out
	require.Error(t, cmd.Run())
	assert.Empty(t, out.String())

	for _, variable := range []string{"TERM=dumb", "PATH=/nowhere"} { // the latter: without stty nothing would give the terminal back
		term := onTerminal(t, "demo", variable)
		term.await("== a note")
		require.NoError(t, term.cmd.Process.Signal(syscall.SIGTERM))
		assert.Zero(t, term.exit())
		assert.NotContains(t, term.text(), "\x1b[?1049h")
	}
}
