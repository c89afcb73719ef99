package stack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// A command is a server program to run.
type command struct {
	path string
	args []string
	dir  string
	env  []string
	log  string
	// keep are files the child inherits: it holds the locks of its ports with them.
	keep []*os.File
}

func (c command) build() (*exec.Cmd, *os.File, error) {
	if err := os.MkdirAll(filepath.Dir(c.log), 0o755); err != nil {
		return nil, nil, err
	}
	out, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = c.dir, out, out, c.keep
	cmd.Env = append(os.Environ(), c.env...)
	return cmd, out, nil
}

// spawnDetached starts a process that outlives this one and its terminal. No goroutine stays behind to wait for it.
func spawnDetached(c command) (process, error) {
	cmd, out, err := c.build()
	if err != nil {
		return process{}, err
	}
	defer out.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return process{}, fmt.Errorf("cannot start %s: %w", c.path, err)
	}
	p, err := identify(cmd.Process.Pid)
	if err != nil {
		return process{}, err
	}
	return p, cmd.Process.Release()
}

// spawnOwned starts a process that the kernel kills when this one dies. done is closed when it has ended.
//
// The parent-death signal is tied to the thread that forked, not to the process: a thread that the Go runtime retires
// would take the server with it. So one goroutine keeps its thread locked from before the fork until the child ended.
func spawnOwned(c command) (p process, done <-chan struct{}, err error) {
	cmd, out, err := c.build()
	if err != nil {
		return process{}, nil, err
	}
	defer out.Close()
	// A group of its own: Ctrl-C in the terminal reaches the test, not the server behind its back.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		if err == nil {
			p, err = identify(cmd.Process.Pid)
		}
		started <- err
		if cmd.Process != nil {
			_ = cmd.Wait() // how a killed server exits is not news
		}
	}()
	if err := <-started; err != nil {
		return process{}, nil, fmt.Errorf("cannot start %s: %w", c.path, err)
	}
	return p, ended, nil
}
