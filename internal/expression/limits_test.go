package expression_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/internal/expression"
)

func compile(t *testing.T, source string) (cel.Program, error) {
	t.Helper()
	env, err := expression.NewEnv(cel.Variable("event", cel.DynType))
	require.NoError(t, err)
	return expression.Compile(env, source, "any value", []cel.ProgramOption{cel.CostLimit(100_000)})
}

// processorTime is what this thread has taken.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_THREAD, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestNoEvaluationTakesMuch: whatever the expression and the message, an evaluation ends soon, and
// does not take the memory of the process.
func TestNoEvaluationTakesMuch(t *testing.T) {
	list := make([]any, 60_000)
	for i := range list {
		list[i] = int64(i)
	}
	event := map[string]any{"s": strings.Repeat("a", 200<<10), "l": list, "regex": strings.Repeat("x{1000}", 1000)}
	many := strings.TrimSuffix(strings.Repeat("event.s,", 1000), ",")
	doubled := func(first, f string) string { return "[" + first + "]" + strings.Repeat(".map(a,"+f+")", 35) }
	for _, source := range []string{
		`[` + many + `].join()`,
		`[` + many + `].join("")`,
		`"` + strings.Repeat("%s", 1000) + `".format([` + many + `])`,
		`event.s.replace("a", "` + strings.Repeat("b", 10_000) + `")`,
		`event.s.replace("", "` + strings.Repeat("b", 10_000) + `", 1000000)`,
		`event.l.map(x, event.s + "b")`,
		`event.l.map(x, bytes(event.s))`,
		`event.l.map(x, base64.encode(bytes(event.s)))`,
		`event.l.map(x, event.s.lowerAscii())`,
		`event.l.map(x, event.s.split(""))`,
		`event.l.all(x, size(event.s) > 1)`,
		`event.l.all(x, event.s < event.s + "b")`,
		doubled("event.s", "a+a"),
		`[` + doubled("[0]", "a+a") + `[0].size(), 1 in ` + doubled("[0]", "a+a") + `[0]]`,
		doubled("['']", "a+a") + `[0].join()`,
		doubled("0", "[a,a]") + " == " + doubled("0", "[a,a]"),
		doubled("0", "[a,a]") + " != " + doubled("0", "[a,a]"),
		doubled("0", "{'x':a,'y':a}") + " == " + doubled("0", "{'x':a,'y':a}"),
		doubled("0", "dyn([a,a])") + "[0] in " + doubled("0", "dyn([a,a])"),
		`json.encode(` + doubled("0", "[a,a]") + `)`,
		`"%s".format([` + doubled("0", "[a,a]") + `])`,
		`event.s.matches(event.regex)`,
	} {
		name := source[:min(len(source), 60)]
		t.Run(name, func(t *testing.T) {
			program, err := compile(t, source)
			require.NoError(t, err)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := processorTime(t)
			_, err = expression.Evaluate(program, map[string]any{"event": event})
			took := processorTime(t) - began
			runtime.ReadMemStats(&after)
			require.Error(t, err)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20))
			assert.Less(t, took, 5*time.Second)
			t.Log(took, (after.TotalAlloc-before.TotalAlloc)>>20, "MiB", expression.OneLine(err))
		})
	}
}

func TestLargeRegularExpressionsAreRefused(t *testing.T) {
	for _, source := range []string{`event.s.matches("` + strings.Repeat("x{1000}", 20) + `")`, `matches(event.s, "` + strings.Repeat("(a{30}){30}", 12) + `")`} {
		_, err := compile(t, source)
		require.ErrorContains(t, err, "with its repetitions written out")
	}
}

// TestGuardedCallsMeanTheSame: what is looked at before it is called does what CEL says.
func TestGuardedCallsMeanTheSame(t *testing.T) {
	event := map[string]any{"s": "a-b", "n": int64(1), "f": 1.0, "l": []any{int64(1), "x", []any{"y"}}, "m": map[string]any{"k": "v"}, "regex": "^a.b$"}
	for source, want := range map[string]any{
		`event.n == event.f`:                              true,
		`event.n != event.f`:                              false,
		`event.s == event.n`:                              false,
		`event.l == [1, "x", ["y"]]`:                      true,
		`event.l != [1, "x", ["z"]]`:                      true,
		`event.m == {"k": "v"}`:                           true,
		`1 in event.l`:                                    true,
		`["y"] in event.l`:                                true,
		`["z"] in event.l`:                                false,
		`"k" in event.m`:                                  true,
		`"v" in event.m`:                                  false,
		`event.s in ["a", "a-b"]`:                         true,
		`["a", "b"].join()`:                               "ab",
		`["a", "b"].join("-") == event.s`:                 true,
		`event.s.replace("-", "+")`:                       "a+b",
		`"aaa".replace("a", "b", 2)`:                      "bba",
		`"%s %d %.2f %s".format(["x", 7, 1.0, [1, "y"]])`: "x 7 1.00 [1, y]",
		`json.encode(["x"])`:                              `["x"]`,
		`event.s.matches(event.regex)`:                    true,
		`event.s.matches("^b")`:                           false,
		`matches(event.s, event.regex)`:                   true,
	} {
		t.Run(source, func(t *testing.T) {
			program, err := compile(t, source)
			require.NoError(t, err)
			out, err := expression.Evaluate(program, map[string]any{"event": event})
			require.NoError(t, err)
			assert.Equal(t, want, out.Value())
		})
	}
	for source, want := range map[string]string{
		`event.none == 1`:                "no such key",
		`1 in event.s`:                   "no such overload",
		`event.n.matches("a")`:           "no such overload",
		`event.n.replace("a", "b")`:      "no such overload",
		`event.s.matches(event.s + "(")`: "missing closing )",
	} {
		t.Run(source, func(t *testing.T) {
			program, err := compile(t, source)
			require.NoError(t, err)
			_, err = expression.Evaluate(program, map[string]any{"event": event})
			require.ErrorContains(t, err, want)
		})
	}
}

// TestTextsMayBeLong: what is done with a text is counted by what it takes, a unit for each byte
// refused ordinary messages.
func TestTextsMayBeLong(t *testing.T) {
	event := map[string]any{"s": strings.Repeat("a ", 256<<10)}
	for _, source := range []string{
		`event.s.trim().lowerAscii().upperAscii().reverse()`,
		`event.s.replace("a", "b").replace("b", "c", 10)`,
		`[event.s, "x"].join(",") + event.s`,
		`event.s != "" && event.s.startsWith("a") ? event.s.trim() : string(size(event.s))`,
	} {
		program, err := compile(t, source)
		require.NoError(t, err)
		_, err = expression.Evaluate(program, map[string]any{"event": event})
		require.NoError(t, err, source)
	}
}

func TestOneLineIsShort(t *testing.T) {
	text := expression.OneLine(errors.New(strings.Repeat("é", 1<<20) + "\nmore"))
	assert.Less(t, len(text), 500)
	assert.NotContains(t, text, "\n")
	assert.NotContains(t, text, "\ufffd")
}
