package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/aviaryhq/aviary/test/systems/owned"
)

// A Command is a server program to run.
type Command struct {
	Path string
	Args []string
	Dir  string
	Env  []string
	Log  string
	// Keep are files the child inherits: it holds the locks of its ports with them.
	Keep []*os.File
}

func (c Command) build() (*exec.Cmd, *os.File, error) {
	if err := os.MkdirAll(filepath.Dir(c.Log), 0o755); err != nil {
		return nil, nil, err
	}
	out, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = c.Dir, out, out, c.Keep
	cmd.Env = append(os.Environ(), c.Env...)
	return cmd, out, nil
}

// StartDetached starts a process that outlives this one and its terminal. No goroutine stays behind
// to wait for it.
func StartDetached(c Command) (ID, error) {
	cmd, out, err := c.build()
	if err != nil {
		return ID{}, err
	}
	defer out.Close()
	// A process group is enough: Ctrl-C and the end of the terminal do not reach it. A session of its
	// own would be scheduled as a group (sched_autogroup), and one kernel gave such groups no processor
	// time for a minute while four busy processes ran in another session.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return ID{}, fmt.Errorf("cannot start %s: %w", c.Path, err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		return ID{}, err
	}
	return p, cmd.Process.Release()
}

// StartOwned starts a process that the kernel kills when this one dies. done is closed when it has
// ended. Its exit status is discarded.
func StartOwned(c Command) (p ID, done <-chan struct{}, err error) {
	cmd, out, err := c.build()
	if err != nil {
		return ID{}, nil, err
	}
	defer out.Close()
	var identified error
	started, err := owned.Start(cmd, func() { p, identified = Identify(cmd.Process.Pid) })
	if err = errors.Join(err, identified); err != nil {
		return ID{}, nil, err
	}
	return p, started.Ended(), nil
}
