package clients

import (
	"bytes"
	"context"
	"embed"
	"fmt"
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

//go:embed python node java
var sources embed.FS

const (
	installTimeout = 10 * time.Minute
	runTimeout     = 10 * time.Minute
)

// Checks returns the names of what every program checks.
func Checks() []string {
	return []string{
		"connect", "select", "strings", "binary", "expiry", "hashes", "lists", "sets", "sorted_sets", "streams",
		"pipeline", "transaction", "watch", "blocking", "pubsub", "scan", "script", "errors",
	}
}

// A program is a stock client and what exercises it.
type program struct {
	name      string
	protocols []int
	// prepare installs the client and returns the command that runs the program; source holds its
	// files and is for this run alone.
	prepare func(ctx context.Context, s *stack.Stack, source string) (command, error)
}

type command struct {
	args []string
	env  []string
}

func programs() []program {
	return []program{
		{"go-redis", []int{2, 3}, prepareGo},
		{"redis-py", []int{2, 3}, preparePython},
		{"lettuce", []int{2, 3}, prepareJava},
		{"ioredis", []int{2, 3}, prepareNode},
	}
}

// Run has every client exercise the endpoint at url, redis://[user:password@]host:port, each check
// as a test of its own. The endpoint needs the databases 0 and 1; keys begin with the test's name.
//
// A client that cannot be had fails the test when the environment variable CI is set and is skipped
// elsewhere.
func Run(t *testing.T, url string) {
	t.Helper()
	for _, p := range programs() {
		for _, protocol := range p.protocols {
			t.Run(fmt.Sprintf("%s/RESP%d", p.name, protocol), func(t *testing.T) {
				t.Parallel()
				out := p.run(t, url, protocol)
				for _, name := range Checks() {
					t.Run(name, func(t *testing.T) {
						why, ran := out.checks[name]
						switch {
						case !ran:
							t.Fatalf("did not run: %s", out.log)
						case why != "":
							t.Fatal(why)
						}
					})
				}
			})
		}
	}
}

// outcome is what a program printed.
type outcome struct {
	checks map[string]string // name of a check -> why it failed, "" if it did not
	log    string            // last lines of the rest
}

func (p program) run(t *testing.T, url string, protocol int) outcome {
	t.Helper()
	cmd := p.ready(t)
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	prefix := fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), time.Now().UnixNano())
	args := slices.Concat(cmd.args, []string{url, fmt.Sprint(protocol), prefix})
	run := exec.CommandContext(ctx, args[0], args[1:]...)
	run.Env = append(os.Environ(), cmd.env...)
	// go run has a child.
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
	var stdout, stderr bytes.Buffer
	run.Stdout, run.Stderr = &stdout, &stderr
	err := run.Run()
	out := outcome{checks: parse(stdout.String()), log: tail(stderr.String(), 20)}
	failed := slices.ContainsFunc(Checks(), func(name string) bool { return out.checks[name] != "" })
	if (err != nil) != failed {
		t.Fatalf("exit status: %v; output: %s; log: %s", err, stdout.String(), out.log)
	}
	return out
}

// ready installs the client.
func (p program) ready(t *testing.T) command {
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
	cmd, err := p.prepare(ctx, s, source)
	if err != nil {
		stack.Unavailable(t, p.name, err)
	}
	return cmd
}

func parse(out string) map[string]string {
	checks := map[string]string{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "ok "); ok {
			checks[name] = ""
		}
		if rest, ok := strings.CutPrefix(line, "FAILED "); ok {
			name, why, _ := strings.Cut(rest, ": ")
			checks[name] = "it failed: " + why
		}
	}
	return checks
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func prepareGo(context.Context, *stack.Stack, string) (command, error) {
	return command{args: []string{"go", "run", "github.com/aviaryhq/aviary/test/clients/goredis"}}, nil
}

func preparePython(ctx context.Context, s *stack.Stack, source string) (command, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return command{}, err
	}
	wanted := filepath.Join(source, "python", "requirements.txt")
	packages, err := s.Folder(ctx, "clients/python", wanted, []string{python, "--version"}, func(ctx context.Context, dir string) error {
		return fetch(ctx, s, "", python, "-m", "pip", "install", "--quiet", "--target", dir, "--require-hashes", "--requirement", wanted)
	})
	return command{args: []string{python, filepath.Join(source, "python", "check.py")}, env: []string{"PYTHONPATH=" + packages}}, err
}

func prepareNode(ctx context.Context, s *stack.Stack, source string) (command, error) {
	node, err := exec.LookPath("node")
	if err != nil {
		return command{}, err
	}
	source = filepath.Join(source, "node")
	packages, err := s.Folder(ctx, "clients/node", filepath.Join(source, "package-lock.json"), []string{node, "--version"}, func(ctx context.Context, dir string) error {
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
		return command{}, err
	}
	// Node looks for packages beside the file that imports them.
	err = os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(source, "node_modules"))
	return command{args: []string{node, filepath.Join(source, "check.mjs")}}, err
}

// The version of Lettuce, and the digest of its jars and those it needs, see [stack.Stack.Jars].
const (
	lettuce    = "7.7.0.RELEASE"
	lettuceSum = "b421635f9b879ff682bd51974cd71f5ecb7a4c686fce6d10945445c85d51ad850bb303e5336a9d8cf45152b9e2e5c297c2acd06c8e93cd39de3ba5d83e6ca240"
)

func prepareJava(ctx context.Context, s *stack.Stack, source string) (command, error) {
	for _, tool := range []string{"java", "javac"} {
		if _, err := exec.LookPath(tool); err != nil {
			return command{}, err
		}
	}
	jars, err := s.Jars(ctx, "lettuce-"+lettuce, "io.lettuce:lettuce-core:"+lettuce, lettuceSum)
	if err != nil {
		return command{}, err
	}
	jars = filepath.Join(jars, "*")
	program := filepath.Join(source, "java", "Check.java")
	classes, err := s.Folder(ctx, "clients/java", program, []string{"javac", "-version"}, func(ctx context.Context, dir string) error {
		return run(ctx, "", "javac", "-nowarn", "-cp", jars, "-d", dir, program)
	})
	return command{args: []string{"java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes + ":" + jars, "Check"}}, err
}

// fetch runs a command that fetches packages from a registry.
func fetch(ctx context.Context, s *stack.Stack, dir string, args ...string) error {
	return s.Try(ctx, func(ctx context.Context) error { return run(ctx, dir, args...) })
}

func run(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, tail(string(out), 5))
	}
	return nil
}
