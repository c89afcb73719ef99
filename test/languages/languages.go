// Package languages prepares programs in Python, Java and Node for tests that run clients of other
// languages. The packages that a program needs are pinned by digests, fetched from the registries
// and kept in the user's cache folder.
package languages

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/stack"
)

const installTimeout = 10 * time.Minute

// Command starts a program.
type Command struct {
	Args []string
	Env  []string // besides those of this process
}

// Program installs what a program needs, and returns the command that starts it. The program is in a
// folder below sources, which is for this run alone.
type Program func(ctx context.Context, s *stack.Stack, sources string) (Command, error)

// Prepare prepares a program of a copy of sources. It fails the test, or skips it without the
// environment variable CI, if that is not possible. name is for the message.
func Prepare(t *testing.T, name string, sources fs.FS, program Program) Command {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), installTimeout)
	defer cancel()
	source := t.TempDir()
	if err := os.CopyFS(source, sources); err != nil {
		t.Fatal(err)
	}
	s, err := stack.New(stack.Config{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	c, err := program(ctx, s, source)
	if err != nil {
		stack.Unavailable(t, name, err)
	}
	return c
}

// Cmd returns a process of the program, which ends with ctx.
func (c Command) Cmd(ctx context.Context, args ...string) *exec.Cmd {
	args = slices.Concat(c.Args, args)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	// go run has a child.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// Go is the program of a package of this module.
func Go(name string) Program {
	return func(context.Context, *stack.Stack, string) (Command, error) {
		return Command{Args: []string{"go", "run", "github.com/aviaryhq/aviary/" + name}}, nil
	}
}

// Python is the program file of the folder python, with the packages of its requirements.txt. cache is
// where their folder is in the cache.
func Python(cache, file string) Program {
	return func(ctx context.Context, s *stack.Stack, sources string) (Command, error) {
		return preparePython(ctx, s, cache+"/python", filepath.Join(sources, "python"), file)
	}
}

func preparePython(ctx context.Context, s *stack.Stack, cache, source, file string) (Command, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return Command{}, err
	}
	wanted := filepath.Join(source, "requirements.txt")
	packages, err := s.Folder(ctx, cache, wanted, []string{python, "--version"}, func(ctx context.Context, dir string) error {
		return fetch(ctx, s, "", python, "-m", "pip", "install", "--quiet", "--target", dir, "--require-hashes", "--requirement", wanted)
	})
	return Command{Args: []string{python, filepath.Join(source, file)}, Env: []string{"PYTHONPATH=" + packages}}, err
}

// Node is the program file of the folder node, with the packages of its package-lock.json. cache is
// where their folder is in the cache.
func Node(cache, file string) Program {
	return func(ctx context.Context, s *stack.Stack, sources string) (Command, error) {
		return prepareNode(ctx, s, cache+"/node", filepath.Join(sources, "node"), file)
	}
}

func prepareNode(ctx context.Context, s *stack.Stack, cache, source, file string) (Command, error) {
	node, err := exec.LookPath("node")
	if err != nil {
		return Command{}, err
	}
	packages, err := s.Folder(ctx, cache, filepath.Join(source, "package-lock.json"), []string{node, "--version"}, func(ctx context.Context, dir string) error {
		for _, name := range []string{"package.json", "package-lock.json"} {
			data, err := os.ReadFile(filepath.Join(source, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
			}
			if err != nil {
				return err
			}
		}
		return fetch(ctx, s, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
	if err != nil {
		return Command{}, err
	}
	// Node looks for packages beside the file that imports them.
	err = os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(source, "node_modules"))
	return Command{Args: []string{node, filepath.Join(source, file)}}, err
}

// Jars are artifacts of the Maven repository with all that they need, see [stack.Stack.Jars].
type Jars struct {
	Name, Coordinates, Sum string
}

// Java is the class of the folder java, which is a file of its own, with the jars. cache is where the
// folder of the compiled classes is in the cache.
func Java(cache, class string, jars Jars) Program {
	return func(ctx context.Context, s *stack.Stack, sources string) (Command, error) {
		return prepareJava(ctx, s, cache+"/java", filepath.Join(sources, "java"), class, jars)
	}
}

func prepareJava(ctx context.Context, s *stack.Stack, cache, source, class string, jars Jars) (Command, error) {
	for _, tool := range []string{"java", "javac"} {
		if _, err := exec.LookPath(tool); err != nil {
			return Command{}, err
		}
	}
	path, err := s.Jars(ctx, jars.Name, jars.Coordinates, jars.Sum)
	if err != nil {
		return Command{}, err
	}
	path = filepath.Join(path, "*")
	program := filepath.Join(source, class+".java")
	classes, err := s.Folder(ctx, cache, program, []string{"javac", "-version"}, func(ctx context.Context, dir string) error {
		return run(ctx, "", "javac", "-nowarn", "-cp", path, "-d", dir, program)
	})
	return Command{Args: []string{"java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes + ":" + path, class}}, err
}

// Tail returns the last n lines of a text.
func Tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// fetch runs a command that fetches packages from a registry.
func fetch(ctx context.Context, s *stack.Stack, dir string, args ...string) error {
	return s.Try(ctx, func(ctx context.Context) error { return run(ctx, dir, args...) })
}

func run(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, Tail(string(out), 5))
	}
	return nil
}
