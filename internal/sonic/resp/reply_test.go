package resp_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

func replies() []string {
	return []string{
		"+OK\r\n", "-ERR x\r\n", ":1\r\n", "$-1\r\n", "$0\r\n\r\n", "$5\r\na\r\nb\r\r\n", "*0\r\n", "*-1\r\n", "*2\r\n$1\r\na\r\n:2\r\n",
		"*3\r\n*2\r\n:1\r\n*0\r\n%1\r\n+a\r\n~2\r\n,1.5\r\n#t\r\n_\r\n", ">2\r\n+a\r\n+b\r\n", "=7\r\ntxt:abc\r\n", "(123456789012345678901234567890\r\n",
		"|1\r\n+ttl\r\n:1\r\n*1\r\n+x\r\n", "!5\r\nERR x\r\n", "*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n",
	}
}

// TestReplyEnds finds the end of each reply in a stream of all, in pieces of any size.
func TestReplyEnds(t *testing.T) {
	text := strings.Join(replies(), "")
	for size := 1; size <= len(text); size++ {
		var s resp.Scanner
		var got []string
		var held, reply string // what was read and not scanned; the reply under way
		for begin := 0; begin < len(text); begin += size {
			held += text[begin:min(begin+size, len(text))]
			for held != "" {
				n, done, err := s.Scan([]byte(held))
				require.NoError(t, err)
				reply, held = reply+held[:n], held[n:]
				if !done {
					break
				}
				got = append(got, reply)
				reply = ""
			}
		}
		require.Equal(t, replies(), got, "pieces of %d bytes", size)
		require.Empty(t, held)
	}
}

func TestBadReplies(t *testing.T) {
	for _, text := range []string{"x\r\n", "$x\r\n", "$-2\r\n", "*9999999999999999\r\n", "\r\n", "*-2\r\n", strings.Repeat("*1\r\n", 20_000), "$" + strings.Repeat("1", 2<<10)} {
		var s resp.Scanner
		_, _, err := s.Scan([]byte(text))
		require.Error(t, err, text[:min(len(text), 50)])
	}
}

func TestElements(t *testing.T) {
	parts := resp.Elements([]byte("*3\r\n$1\r\na\r\n*1\r\n:1\r\n_\r\n"))
	require.Len(t, parts, 3)
	require.Equal(t, "a", string(resp.Text(parts[0])))
	require.Equal(t, "*1\r\n:1\r\n", string(parts[1]))
	require.Nil(t, resp.Text(parts[2]))
	parts = resp.Elements([]byte("%1\r\n+a\r\n:1\r\n"))
	require.Len(t, parts, 2)
	for _, none := range []string{"$-1\r\n", "*-1\r\n", "*0\r\n", "+x\r\n", ""} {
		require.Empty(t, resp.Elements([]byte(none)))
	}
}

func TestParseInt(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "7": 7, "-1": -1, "9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63} {
		n, ok := resp.ParseInt([]byte(text))
		require.True(t, ok, text)
		require.Equal(t, want, n)
	}
	for _, text := range []string{"", "-", "-0", "01", "+1", " 1", "1 ", "1x", "9223372036854775808", "-9223372036854775809", "99999999999999999999", "184467440737095516160"} {
		_, ok := resp.ParseInt([]byte(text))
		require.False(t, ok, text)
	}
}

// FuzzReplies scans the same bytes whole and in two pieces.
func FuzzReplies(f *testing.F) {
	for _, text := range replies() {
		f.Add([]byte(text), 2)
	}
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		scan := func(ends ...int) (ends2 []int, failed bool) {
			var s resp.Scanner
			at := 0
			for _, end := range ends {
				for at < end {
					n, done, err := s.Scan(text[at:end])
					if err != nil {
						return ends2, true
					}
					require.LessOrEqual(t, at+n, end)
					at += n
					if !done {
						break
					}
					ends2 = append(ends2, at)
				}
			}
			return ends2, false
		}
		cut = max(0, min(cut, len(text)))
		whole, failed := scan(len(text))
		pieces, failed2 := scan(cut, len(text))
		require.Equal(t, whole, pieces)
		require.Equal(t, failed, failed2)
		begin := 0
		for _, end := range whole {
			require.Equal(t, end-begin, resp.Length(text[begin:end]))
			if all := resp.Elements(text[begin:end]); all != nil {
				require.True(t, bytes.HasSuffix(text[begin:end], bytes.Join(all, nil)))
			}
			begin = end
		}
	})
}
