package command_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/stack"
)

// told is a command as COMMAND of the server describes it.
type told struct {
	arity int64
	flags []string
	keys  string
}

// describe reads an element of COMMAND's reply, and its subcommands.
func describe(t *testing.T, all map[string]told, one any) {
	t.Helper()
	fields, ok := one.([]any)
	require.True(t, ok)
	name, arity := fields[0].(string), fields[1].(int64)
	var flags []string
	for _, flag := range fields[2].([]any) {
		flags = append(flags, fmt.Sprint(flag))
	}
	slices.Sort(flags)
	var specs []string
	for _, spec := range fields[8].([]any) {
		if text := keySpec(spec); text != "" {
			specs = append(specs, text)
		}
	}
	all[name] = told{arity, flags, strings.Join(specs, ";")}
	for _, sub := range fields[9].([]any) {
		describe(t, all, sub)
	}
}

// pairs makes a map of a flat list: RESP2's form of one.
func pairs(v any) map[string]any {
	if m, ok := v.(map[any]any); ok {
		out := map[string]any{}
		for k, v := range m {
			out[fmt.Sprint(k)] = v
		}
		return out
	}
	out := map[string]any{}
	list, _ := v.([]any)
	for i := 0; i+1 < len(list); i += 2 {
		out[fmt.Sprint(list[i])] = list[i+1]
	}
	return out
}

func keySpec(spec any) string {
	all := pairs(spec)
	for _, flag := range all["flags"].([]any) {
		if flag == "not_key" {
			return ""
		}
	}
	begin, find := pairs(all["begin_search"]), pairs(all["find_keys"])
	b, f := pairs(begin["spec"]), pairs(find["spec"])
	text := "?"
	switch begin["type"] {
	case "index":
		text = fmt.Sprintf("i%d", b["index"])
	case "keyword":
		text = fmt.Sprintf("k%s@%d", b["keyword"], b["startfrom"])
	}
	switch find["type"] {
	case "range":
		return text + fmt.Sprintf("r%d/%d/%d", f["lastkey"], f["keystep"], f["limit"])
	case "keynum":
		return text + fmt.Sprintf("n%d/%d/%d", f["keynumidx"], f["firstkey"], f["keystep"])
	}
	return text + "?"
}

// TestTableIsComplete holds the table against the server's own: a command that is missing would be
// refused as unknown.
func TestTableIsComplete(t *testing.T) {
	client := stack.PrivateRedis(t).Client(t)
	reply, err := client.Do(t.Context(), "COMMAND").Slice()
	require.NoError(t, err)
	want := map[string]told{}
	for _, one := range reply {
		describe(t, want, one)
	}
	require.Greater(t, len(want), 300)
	table, err := command.NewTable()
	require.NoError(t, err)
	got := map[string]told{}
	for _, c := range table.All() {
		got[c.Name] = told{int64(c.Arity), c.Flags, c.KeySpecs}
	}
	for name, w := range want {
		assert.Equal(t, w, got[name], name)
	}
	for name := range got {
		assert.Contains(t, want, name)
	}
}

// TestNoWriteIsRelayed holds classes against the server's flags.
func TestNoWriteIsRelayed(t *testing.T) {
	table, err := command.NewTable()
	require.NoError(t, err)
	for _, c := range table.All() {
		if slices.Contains(c.Flags, "write") {
			assert.Contains(t, []command.Class{command.Write, command.Blocking, command.Local, command.Refused}, c.Class, c.Name)
			assert.True(t, c.Changes || c.Class == command.Refused, c.Name)
		}
	}
}

func TestLookup(t *testing.T) {
	table, err := command.NewTable()
	require.NoError(t, err)
	assert.Equal(t, "get", table.Lookup([]byte("GeT"), []byte("x")).Name)
	assert.Equal(t, "client|list", table.Lookup([]byte("CLIENT"), []byte("List")).Name)
	assert.Equal(t, "client", table.Lookup([]byte("client"), nil).Name)
	for _, words := range [][2]string{{"client", "nosuch"}, {"client|list", ""}, {"nosuch", ""}, {"", ""}, {strings.Repeat("x", 100), ""}} {
		assert.Nil(t, table.Lookup([]byte(words[0]), []byte(words[1])), words)
	}
}

func TestKeys(t *testing.T) {
	table, err := command.NewTable()
	require.NoError(t, err)
	for text, want := range map[string]string{
		"get a":                                  "a",
		"mset a 1 b 2":                           "a b",
		"del a b c":                              "a b c",
		"bitop and d a b":                        "d a b",
		"zunionstore d 2 a b weights 1 2":        "d a b",
		"lmpop 2 a b left":                       "a b",
		"lmpop 9 a b left":                       "",
		"lmpop x a b left":                       "",
		"xread count 2 streams a b 0 0":          "a b",
		"xreadgroup group g c streams a b > >":   "a b",
		"eval x 2 a b c":                         "a b",
		"eval x 0 a":                             "",
		"sort a by w* store b":                   "a b",
		"georadius a 1 1 1 km count 3 store b":   "a b",
		"blpop a b 0":                            "a b",
		"blmpop 0 2 a b left":                    "a b",
		"object encoding a":                      "a",
		"xgroup create a g $":                    "a",
		"smove a b m":                            "a b",
		"copy a b db 3":                          "a b",
		"memory usage a":                         "a",
		"publish a b":                            "",
		"watch a b":                              "a b",
		"subscribe a":                            "",
		"sintercard 2 a b limit 1":               "a b",
		"fcall f 1 a b":                          "a",
		"georadiusbymember a m 1 km storedist d": "a d",
		"rename a b":                             "a b",
		"pfmerge d a b":                          "d a b",
		"lcs a b":                                "a b",
	} {
		raw := resp.AppendCommand(nil, strings.Fields(text)...)
		var p resp.Parser
		_, err := p.Next(raw, &resp.Limits{Bulk: 100, Arguments: 100, Request: 1000})
		require.NoError(t, err)
		arg := func(i int) []byte { return raw[p.Args[i].Start:p.Args[i].End] }
		c := table.Lookup(arg(0), arg(1))
		require.NotNil(t, c, text)
		var keys []string
		c.Keys(raw, p.Args, func(i int) bool {
			keys = append(keys, string(arg(i)))
			return true
		})
		assert.Equal(t, want, strings.Join(keys, " "), text)
	}
}
