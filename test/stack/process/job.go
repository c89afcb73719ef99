package process

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
)

// A Job is how to run a program that does something and ends, such as a compiler or mvn. Run kills
// it, with its children, when ctx ends or this process dies. Ctrl-C in the terminal does not reach it.
type Job struct {
	Dir string   // default: the working directory
	Env []string // beside that of this process
	// Nice is added to the niceness. Default 0: as urgent as this process.
	Nice int
}

// inGroup runs its arguments and kills them, with all that they have started, at the signal that
// the kernel sends when the parent dies. A compiler's own children would go on without it.
const inGroup = `trap 'kill -KILL 0' TERM; "$@" & wait $!`

// Run runs a program and returns what it wrote, errors among it.
func (j Job) Run(ctx context.Context, argv ...string) (output string, err error) {
	if _, err := exec.LookPath(argv[0]); err != nil { // this error is clearer than the shell's
		return "", err
	}
	if j.Nice != 0 {
		argv = append([]string{"nice", "-n", strconv.Itoa(j.Nice)}, argv...)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", inGroup, "sh"}, argv...)...)
	cmd.Dir, cmd.Env = j.Dir, append(os.Environ(), j.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// The thread that forked must live on: the kernel takes its end for the death of the parent.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return string(out), ctx.Err()
	}
	return string(out), err
}
