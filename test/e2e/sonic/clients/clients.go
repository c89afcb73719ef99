package clients

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/languages"
)

//go:embed python node java
var sources embed.FS

const runTimeout = 10 * time.Minute

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
	program   languages.Program
}

func programs() []program {
	const cache = "clients"
	jars := languages.Jars{Name: "lettuce-" + lettuce, Coordinates: "io.lettuce:lettuce-core:" + lettuce, Sum: lettuceSum}
	return []program{
		{"go-redis", []int{2, 3}, languages.Go("test/e2e/sonic/clients/goredis")},
		{"redis-py", []int{2, 3}, languages.Python(cache, "check.py")},
		{"lettuce", []int{2, 3}, languages.Java(cache, "Check", jars)},
		{"ioredis", []int{2, 3}, languages.Node(cache, "check.mjs")},
	}
}

// Run has every client exercise the endpoint at url, redis://[user:password@]host:port, each check
// as a test of its own, but for those of except. The endpoint needs the databases 0 and 1, except for
// the check "select"; keys begin with the test's name.
//
// A client that cannot be had fails the test when the environment variable CI is set and is skipped
// elsewhere.
func Run(t *testing.T, url string, except ...string) {
	t.Helper()
	for _, p := range programs() {
		for _, protocol := range p.protocols {
			t.Run(fmt.Sprintf("%s/RESP%d", p.name, protocol), func(t *testing.T) {
				t.Parallel()
				out := p.run(t, url, protocol)
				for _, name := range Checks() {
					if slices.Contains(except, name) {
						continue
					}
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
	cmd := languages.Prepare(t, p.name, sources, p.program)
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	prefix := fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), time.Now().UnixNano())
	run := cmd.Cmd(ctx, url, fmt.Sprint(protocol), prefix)
	var stdout, stderr bytes.Buffer
	run.Stdout, run.Stderr = &stdout, &stderr
	err := run.Run()
	out := outcome{checks: parse(stdout.String()), log: languages.Tail(stderr.String(), 20)}
	failed := slices.ContainsFunc(Checks(), func(name string) bool { return out.checks[name] != "" })
	if (err != nil) != failed {
		t.Fatalf("exit status: %v; output: %s; log: %s", err, stdout.String(), out.log)
	}
	return out
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

// The version of Lettuce, and the digest of its jars and those it needs, see [stack.Stack.Jars].
const (
	lettuce    = "7.7.0.RELEASE"
	lettuceSum = "b421635f9b879ff682bd51974cd71f5ecb7a4c686fce6d10945445c85d51ad850bb303e5336a9d8cf45152b9e2e5c297c2acd06c8e93cd39de3ba5d83e6ca240"
)
