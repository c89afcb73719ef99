package display

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// inForeground is false for a process that a shell has put into the background, which may not draw.
func inForeground(terminal *os.File) bool {
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// Guard gives the terminal back if this process dies before it can: by a panic of any goroutine, or
// killed. Meanwhile it keeps what is written to stderr, a panic's text among that, from the
// picture.
type Guard struct {
	pipe   *os.File // to the keeper, which reads until it is told that all is well or this process has died
	keeper *exec.Cmd
	errors *os.File // in place of stderr
	stderr int      // the real one
}

// What undoes the window: its colors, its keys (kitty's, xterm's, bracketed paste), the hidden
// cursor and its screen.
const undo = `\033[m\033[<u\033[>4m\033[?2004l\033[?25h\033[?1049l`

// A second process, which outlives this one. It is in the background and so must ignore the signals
// that would stop it.
const keep = `trap '' INT TERM HUP TTOU
read -r line && exit
stty "$1" <&3
printf '` + undo + `' >&3
cat "$2" >&4
rm -f "$2"`

// NewGuard guards a terminal until Release.
func NewGuard(terminal *os.File) (*Guard, error) {
	save := exec.Command("stty", "-g")
	save.Stdin = terminal
	saved, err := save.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot read the terminal's settings: %w", err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	g := &Guard{pipe: out}
	if g.stderr, err = unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	if g.errors, err = os.CreateTemp("", "aviary-demo-stderr-"); err != nil {
		return nil, errors.Join(err, out.Close(), unix.Close(g.stderr))
	}
	g.keeper = exec.Command("sh", "-c", keep, "sh", strings.TrimSpace(string(saved)), g.errors.Name())
	g.keeper.Stdin, g.keeper.ExtraFiles = in, []*os.File{terminal, os.Stderr}
	g.keeper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := g.keeper.Start(); err != nil {
		return nil, errors.Join(err, out.Close(), unix.Close(g.stderr), g.errors.Close(), os.Remove(g.errors.Name()))
	}
	if err := unix.Dup3(int(g.errors.Fd()), 2, 0); err != nil {
		g.Release()
		return nil, err
	}
	return g, nil
}

// Release is for when the window has given the terminal back itself. It writes what stderr was told
// meanwhile.
func (g *Guard) Release() {
	_ = unix.Dup3(g.stderr, 2, 0)
	_ = unix.Close(g.stderr)
	_, _ = g.pipe.WriteString("well\n")
	_ = g.pipe.Close()
	_ = g.keeper.Wait()
	if _, err := g.errors.Seek(0, io.SeekStart); err == nil {
		_, _ = io.Copy(os.Stderr, g.errors)
	}
	_ = g.errors.Close()
	_ = os.Remove(g.errors.Name())
}
