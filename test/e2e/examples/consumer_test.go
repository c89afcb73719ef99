// Package examples runs the consumers of examples/consumers as a user does, and compares their
// output with the messages that were sent.
package examples

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/systems/owned"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/nightingale"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

const (
	consumers      = "../../../examples/consumers"
	installTimeout = 10 * time.Minute
	runTimeout     = 2 * time.Minute
	stopTimeout    = await.Patience // also of what holds the output of a process that has ended
)

// theService is the variable that says which service a process of this binary is.
const theService = "AVIARY_TEST_SERVICE"

func TestMain(m *testing.M) {
	systems.Main(m, func() int {
		if os.Getenv(theService) == "nightingale" {
			return app.Main(app.Program[nightingale.Config]{Name: "nightingale", Defaults: nightingale.DefaultConfig, Build: nightingale.Build})
		}
		return app.Main(app.Program[pigeonhole.Config]{Name: "pigeonhole", Defaults: pigeonhole.DefaultConfig, Build: pigeonhole.Build})
	})
}

// A language has an example of each service.
type language struct {
	name string
	// ready installs what the example of a service needs and returns the command that runs it.
	ready func(ctx context.Context, s *stack.Stack, dir, service string) (args []string, err error)
}

func languages() []language {
	return []language{{"go", readyGo}, {"python", readyPython}, {"java", readyJava}}
}

// inEach runs a test for the example of a service in each language, side by side. One that cannot
// be had fails the test when the environment variable CI is set and is skipped elsewhere. What is
// made for them is in dir, and is made once.
func inEach(t *testing.T, dir, service string, test func(t *testing.T, example []string)) {
	t.Helper()
	for _, l := range languages() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), installTimeout)
			defer cancel()
			s, err := stack.New(stack.Config{Log: os.Stderr})
			require.NoError(t, err)
			work := filepath.Join(dir, l.name)
			require.NoError(t, os.MkdirAll(work, 0o700))
			args, err := l.ready(ctx, s, work, service)
			if err != nil {
				stack.Unavailable(t, l.name, err)
			}
			test(t, args)
		})
	}
}

func readyGo(ctx context.Context, _ *stack.Stack, dir, service string) ([]string, error) {
	program := filepath.Join(dir, service)
	if _, err := os.Stat(program); err == nil {
		return []string{program}, nil
	}
	return []string{program}, command(ctx, "", "go", "build", "-o", program, consumers+"/go/"+service)
}

func readyPython(ctx context.Context, s *stack.Stack, dir, service string) ([]string, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil, err
	}
	if err := os.CopyFS(dir, os.DirFS(consumers+"/python")); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	wanted := filepath.Join(dir, "requirements.txt")
	venv, err := s.Folder(ctx, "examples/python", wanted, []string{python, "--version"}, func(ctx context.Context, venv string) error {
		if err := command(ctx, "", python, "-m", "venv", venv); err != nil {
			return err
		}
		return s.Try(ctx, func(ctx context.Context) error {
			return command(ctx, "", filepath.Join(venv, "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", wanted)
		})
	})
	if err != nil {
		return nil, err
	}
	python = filepath.Join(venv, "bin/python")
	err = command(ctx, dir, python, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "prometheus.proto")
	return []string{python, filepath.Join(dir, service+".py")}, err
}

func readyJava(ctx context.Context, s *stack.Stack, dir, service string) ([]string, error) {
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, err
		}
	}
	// The package is made again when any file of it has changed.
	files := os.DirFS(consumers + "/java")
	var all bytes.Buffer
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.Name() == "target" { // of who has tried it
				return fs.SkipDir
			}
			return err
		}
		text, err := fs.ReadFile(files, path)
		fmt.Fprintf(&all, "%s %d\n%s", path, len(text), text)
		return err
	})
	if err != nil {
		return nil, err
	}
	wanted := filepath.Join(dir, "wanted")
	if err := os.WriteFile(wanted, all.Bytes(), 0o600); err != nil {
		return nil, err
	}
	built, err := s.Folder(ctx, "examples/java", wanted, []string{"javac", "-version"}, func(ctx context.Context, dir string) error {
		for _, part := range []string{"pom.xml", "src"} {
			if err := command(ctx, "", "cp", "-r", filepath.Join(consumers, "java", part), dir); err != nil {
				return err
			}
		}
		return s.Try(ctx, func(ctx context.Context) error { return command(ctx, dir, "mvn", "-B", "-ntp", "-q", "package") })
	})
	program := strings.ToUpper(service[:1]) + service[1:]
	classes := filepath.Join(built, "target/*") + ":" + filepath.Join(built, "target/lib/*")
	return []string{"java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, program}, err
}

// command runs a command to its end; where that is not its own it and its children are killed.
func command(ctx context.Context, dir string, args ...string) error {
	var out bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.WaitDelay = stopTimeout
	p, err := owned.Start(cmd, nil)
	if err != nil {
		return err
	}
	select {
	case <-p.Ended():
		err = p.Wait()
	case <-ctx.Done():
		p.SignalGroup(syscall.SIGKILL)
		err = errors.Join(ctx.Err(), p.Wait())
	}
	if err != nil {
		text := out.Bytes()
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, text[max(0, len(text)-2000):])
	}
	return nil
}

// output is what a process has printed so far, in whole lines.
type output struct {
	mu    sync.Mutex
	lines []string
}

func (o *output) read(from io.Reader) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		o.mu.Lock()
		o.lines = append(o.lines, lines.Text())
		o.mu.Unlock()
	}
}

func (o *output) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.lines)
}

// printed runs an example until it has printed n lines, stops it as a user does, and returns all
// that it has printed.
func printed(t *testing.T, example []string, n int, args ...string) []string {
	t.Helper()
	cmd := exec.Command(example[0], append(example[1:len(example):len(example)], args...)...)
	from, to, err := os.Pipe()
	require.NoError(t, err)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = to, &log
	cmd.WaitDelay = stopTimeout
	p, err := owned.Start(cmd, nil)
	require.NoError(t, err)
	to.Close()
	var out output
	var reading sync.WaitGroup
	reading.Go(func() { out.read(from) })
	defer from.Close()

	var early error
	deadline := time.After(runTimeout)
	for ended := false; out.count() < n && !ended; {
		select {
		case <-p.Ended():
			early, ended = p.Wait(), true
		case <-deadline:
			p.SignalGroup(syscall.SIGKILL)
			early, ended = errors.Join(errors.New("too late"), p.Wait()), true
		case <-time.After(5 * time.Millisecond):
		}
		if ended {
			reading.Wait()
			t.Fatalf("it has printed %d of %d lines: %v\n%s", out.count(), n, early, &log)
		}
	}
	p.SignalGroup(syscall.SIGTERM)
	select {
	case <-p.Ended():
		err = p.Wait()
	case <-time.After(stopTimeout):
		p.SignalGroup(syscall.SIGKILL)
		t.Fatalf("it did not stop: %v\n%s", p.Wait(), &log)
	}
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) { // so Java says that it was stopped
		require.NoError(t, err, "%s", &log)
	}
	reading.Wait()
	assert.Empty(t, log.String(), "there is nothing to warn of")
	return out.lines
}
