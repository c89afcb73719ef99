package resp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

func limits() *resp.Limits {
	return &resp.Limits{Bulk: 512 << 20, Arguments: 1 << 20, Request: 1 << 30}
}

func words(p *resp.Parser, b []byte) []string {
	out := []string{}
	raw := p.Raw(b)
	for _, a := range p.Args {
		out = append(out, string(raw[a.Start:a.End]))
	}
	return out
}

func TestInlineCommands(t *testing.T) {
	for text, want := range map[string][]string{
		"PING\r\n":                          {"PING"},
		"  set  a\tb \n":                    {"set", "a", "b"},
		`set a "x\x41\n\r\t\b\a\"y"` + "\n": {"set", "a", "xA\n\r\t\b\a\"y"},
		`set a 'it\'s \n'` + "\n":           {"set", "a", `it's \n`},
		`a"b"` + "\n":                       {"ab"},
		`""` + "\n":                         {""},
		"\r\n":                              {},
		"a\x00b c\n":                        {"a"},
	} {
		var p resp.Parser
		n, err := p.Next([]byte(text), limits())
		require.NoError(t, err, text)
		require.Len(t, text, n)
		require.Equal(t, want, words(&p, []byte(text)), text)
	}
	for _, text := range []string{"\"a\r\n", "'a\n", "\"a\"b\n", "a \"\\\"\n"} {
		var p resp.Parser
		_, err := p.Next([]byte(text), limits())
		require.EqualError(t, err, "ERR Protocol error: unbalanced quotes in request", text)
	}
}
