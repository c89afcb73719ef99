// Package owned starts processes that end with this one: the kernel kills them when it dies.
package owned

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// A Process runs in a group of its own: Ctrl-C in the terminal reaches this process only, which
// stops it in order. It is safe for concurrent use.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended, with err set
	err   error
}

// Start starts a command. begun, unless it is nil, is called before anything waits for the end of
// the process: its process id is its own until then, even if it ends at once.
func Start(cmd *exec.Cmd, begun func()) (*Process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p, started := &Process{cmd: cmd, ended: make(chan struct{})}, make(chan error, 1)
	go func() {
		// The kernel takes the end of the thread that forked for the death of the parent, and Go ends
		// threads: this goroutine keeps the thread until the process has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		if err == nil && begun != nil {
			begun()
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end of the process and returns how it ended, as [exec.Cmd.Wait] does.
func (p *Process) Wait() error { <-p.ended; return p.err }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// SignalGroup sends a signal to the process and its children. It is no failure that they ended.
func (p *Process) SignalGroup(s syscall.Signal) { _ = syscall.Kill(-p.PID(), s) }

// Kill ends the process as a crash would, and returns when it has ended.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	if err == nil {
		<-p.ended
	}
	return err
}

// ErrKilled is in the error of [Process.Stop] when the process did not end in time.
var ErrKilled = errors.New("it did not stop in time and was killed")

// Stop asks the process to end, and kills it when ctx ends before. It returns how it ended.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("cannot stop %s: %w", filepath.Base(p.cmd.Path), err)
	}
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return errors.Join(ErrKilled, p.Kill())
	}
}
