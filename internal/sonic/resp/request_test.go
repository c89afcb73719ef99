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

// TestRequestsInPieces reads the same requests whole and byte by byte.
func TestRequestsInPieces(t *testing.T) {
	text := []byte("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nx\r\ny\n\r\nping\r\n*0\r\n\r\n*-1\r\n*1\r\n$0\r\n\r\n*2\r\n$4\r\nECHO\r\n$2\r\n\x00\xff\r\n")
	want := [][]string{{"SET", "a", "x\r\ny\n"}, {"ping"}, {}, {}, {}, {""}, {"ECHO", "\x00\xff"}}
	var p resp.Parser
	var got [][]string
	begin := 0
	for end := range len(text) + 1 {
		for begin < end {
			n, err := p.Next(text[begin:end], limits())
			require.NoError(t, err)
			if n == 0 {
				break
			}
			got = append(got, words(&p, text[begin:end]))
			begin += n
		}
	}
	require.Equal(t, want, got)
	require.Equal(t, len(text), begin)
}

func TestMissing(t *testing.T) {
	var p resp.Parser
	text := []byte("*1\r\n$1000\r\nabc")
	n, err := p.Next(text, limits())
	require.NoError(t, err)
	require.Zero(t, n)
	require.True(t, p.Partial())
	require.Equal(t, 1000-3+2, p.Missing(len(text)))
}

func TestRequestLimits(t *testing.T) {
	small := &resp.Limits{Bulk: 10, Arguments: 3, Request: 40}
	for text, want := range map[string]string{
		"*4\r\n":        "ERR Protocol error: invalid multibulk length",
		"*1\r\n$11\r\n": "ERR Protocol error: invalid bulk length",
		"*3\r\n$10\r\n0123456789\r\n$10\r\n0123456789\r\n$10\r\n": resp.ErrTooLong.Error(),
	} {
		var p resp.Parser
		_, err := p.Next([]byte(text), small)
		require.EqualError(t, err, want, text)
		require.False(t, p.Partial(), "a parser may be used for another client after an error")
	}
	small.Unauthenticated = true
	for text, want := range map[string]string{
		"*4\r\n":        "ERR Protocol error: unauthenticated multibulk length",
		"*1\r\n$11\r\n": "ERR Protocol error: unauthenticated bulk length",
	} {
		var p resp.Parser
		_, err := p.Next([]byte(text), small)
		require.EqualError(t, err, want, text)
	}
}

// FuzzRequests gives the same bytes whole and in two pieces: both must come to the same requests,
// and what is forwarded must be read by anyone as what was read here.
func FuzzRequests(f *testing.F) {
	for _, text := range []string{
		"*1\r\n$4\r\nPING\r\n", "ping\r\n", "*2\r\n$3\r\nGET\r\n$1\r\na\r\nset a \"b\\x00\"\r\n", "*0\r\n", "*-1\r\n", "*1\r\n$-1\r\n", "*x", "\"a", "*1\r\n$3\r\nabcdef", "*1\rx$1\rxaxx",
	} {
		f.Add([]byte(text), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		read := func(ends ...int) (all [][]string, begin int, failure error) {
			var p resp.Parser
			for _, end := range ends {
				for begin < end {
					n, err := p.Next(text[begin:end], limits())
					if err != nil {
						return all, begin, err
					}
					if n == 0 {
						break
					}
					require.LessOrEqual(t, begin+n, end)
					one := words(&p, text[begin:end])
					all = append(all, one)
					raw := append([]byte(nil), p.Raw(text[begin:end])...)
					var again resp.Parser
					m, err := again.Next(raw, limits())
					require.NoError(t, err)
					require.Equal(t, len(raw), m)
					require.Equal(t, one, words(&again, raw))
					begin += n
				}
			}
			return all, begin, nil
		}
		cut = max(0, min(cut, len(text)))
		all, begin, err := read(len(text))
		pieces, begin2, err2 := read(cut, len(text))
		require.Equal(t, all, pieces)
		require.Equal(t, begin, begin2)
		require.Equal(t, err, err2)
	})
}
