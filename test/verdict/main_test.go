package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const events = `{"Action":"start","Package":"github.com/aviaryhq/aviary/pkg/a"}
{"Action":"run","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestGood"}
{"Action":"pass","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestGood","Elapsed":3}
{"Action":"run","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestBad"}
{"Action":"run","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestBad/sub"}
{"Action":"output","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestBad/sub","Output":"    logger.go:146: a line of the log\n"}
{"Action":"output","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestBad/sub","Output":"    a_test.go:7: got 1, want 2\n"}
{"Action":"fail","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestBad/sub","Elapsed":1}
{"Action":"fail","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestBad","Elapsed":1}
{"Action":"run","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestSometimes"}
{"Action":"output","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestSometimes","Output":"    \tError:      \tReceived unexpected error\n"}
{"Action":"fail","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestSometimes","Elapsed":1}
{"Action":"fail","Package":"github.com/aviaryhq/aviary/pkg/a","Elapsed":5}
{"Action":"start","Package":"github.com/aviaryhq/aviary/pkg/b"}
{"Action":"run","Package":"github.com/aviaryhq/aviary/pkg/b","Test":"TestLeaks"}
{"Action":"pass","Package":"github.com/aviaryhq/aviary/pkg/b","Test":"TestLeaks","Elapsed":0}
{"Action":"output","Package":"github.com/aviaryhq/aviary/pkg/b","Output":"found unexpected goroutines\n"}
{"Action":"fail","Package":"github.com/aviaryhq/aviary/pkg/b","Elapsed":1}
{"ImportPath":"github.com/aviaryhq/aviary/pkg/c [github.com/aviaryhq/aviary/pkg/c.test]","Action":"build-output","Output":"pkg/c/c_test.go:3:1: syntax error\n"}
{"Action":"start","Package":"github.com/aviaryhq/aviary/pkg/c"}
{"Action":"fail","Package":"github.com/aviaryhq/aviary/pkg/c","Elapsed":0}
{"Action":"start","Package":"github.com/aviaryhq/aviary/pkg/a"}
{"Action":"run","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestSometimes"}
{"Action":"pass","Package":"github.com/aviaryhq/aviary/pkg/a","Test":"TestSometimes","Elapsed":1}
{"Action":"pass","Package":"github.com/aviaryhq/aviary/pkg/a","Elapsed":1}
{"Action":"start","Package":"github.com/aviaryhq/aviary/pkg/b"}
{"Action":"pass","Package":"github.com/aviaryhq/aviary/pkg/b","Elapsed":1}
{"Action":"start","Package":"github.com/aviaryhq/aviary/pkg/d"}
{"Action":"run","Package":"github.com/aviaryhq/aviary/pkg/d","Test":"TestEndless"}
`

func verdictOf(t *testing.T, stages, events string) (string, bool) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stages"), []byte(stages), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "unit.json"), []byte(events), 0o600))
	var out strings.Builder
	failed, err := report(dir, &out)
	require.NoError(t, err)
	return out.String(), failed
}

// A test that passes at the second try is flaky and no failure. A package that fails without a failed
// test stays failed, though it passes when it is run again.
func TestVerdict(t *testing.T) {
	out, failed := verdictOf(t, "lint 31 passed\nservers 65 FAILED\n", events)
	require.True(t, failed)
	require.Equal(t, `
== verdict
lint          31 s  passed
servers       65 s  FAILED
FAILED     pkg/a TestBad: a_test.go:7: got 1, want 2
FAILED     pkg/b (package): found unexpected goroutines
FAILED     pkg/c (package): pkg/c/c_test.go:3:1: syntax error
FAILED     pkg/d TestEndless: no output
FAILED     pkg/d (package): no output
FLAKY      pkg/a TestSometimes: Error: Received unexpected error
slow           3 s  pkg/a TestGood
slow           1 s  pkg/a TestBad
slow           1 s  pkg/a TestSometimes
slow           0 s  pkg/b TestLeaks
slow           0 s  pkg/d TestEndless
3 passed, 5 failed
`, out)
}

// The tests behind one in which the process died have not run, and are not run by a second try.
func TestVerdictOfAProcessThatDied(t *testing.T) {
	out, failed := verdictOf(t, "servers 2 passed\n", `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestSometimes"}
{"Action":"fail","Package":"p","Test":"TestSometimes","Elapsed":0}
{"Action":"run","Package":"p","Test":"TestDies"}
{"Action":"output","Package":"p","Output":"signal: killed\n"}
{"Action":"fail","Package":"p","Elapsed":0}
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestSometimes"}
{"Action":"pass","Package":"p","Test":"TestSometimes","Elapsed":0}
{"Action":"pass","Package":"p","Elapsed":0}
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestDies"}
{"Action":"pass","Package":"p","Test":"TestDies","Elapsed":0}
{"Action":"pass","Package":"p","Elapsed":0}
`)
	require.True(t, failed)
	require.Contains(t, out, "FAILED     p (package): signal: killed\n")
}

func TestVerdictOfARunThatPassed(t *testing.T) {
	out, failed := verdictOf(t, "lint 31 passed\n", strings.Join(strings.SplitAfter(events, "\n")[:3], "")+
		`{"Action":"pass","Package":"github.com/aviaryhq/aviary/pkg/a","Elapsed":5}`)
	require.False(t, failed)
	require.True(t, strings.HasSuffix(out, "\n1 passed, 0 failed\n"), out)
}

// A stage without tests, such as lint, fails the run, too.
func TestVerdictOfAFailedStage(t *testing.T) {
	_, failed := verdictOf(t, "lint 31 FAILED\n", "")
	require.True(t, failed)
}

func TestVerdictIsShort(t *testing.T) {
	var many strings.Builder
	for _, name := range strings.Fields(strings.Repeat("x ", 60)) {
		name += strings.Repeat("x", many.Len()%61)
		many.WriteString(`{"Action":"run","Package":"p","Test":"Test` + name + `"}` + "\n")
	}
	out, _ := verdictOf(t, strings.Repeat("stage 1 passed\n", 9), many.String())
	require.LessOrEqual(t, strings.Count(out, "\n"), 40)
}
