package bearer

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/pkg/secret"
)

func write(t *testing.T, dir, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// later makes the files be read again.
func (t *Tokens) later() { t.again.Expire() }

func TestTokensCanBeRotated(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "tokens", "old")
	all, err := NewTokens(zap.NewNop(), []Source{{File: file, FileKey: "file"}})
	require.NoError(t, err)
	knows := func(token string) bool {
		_, known := all.Tenant(token)
		return known
	}
	assert.True(t, knows("old"))
	write(t, dir, "tokens", "new")
	assert.False(t, knows("new"), "the file is not read at each request")
	all.later()
	assert.True(t, knows("new"))
	assert.False(t, knows("old"))
	assert.False(t, knows(""))
	require.NoError(t, os.Remove(file))
	all.later()
	assert.True(t, knows("new"), "what was there before stays")
}

// TestAllFaultsOfTokensAreReported: a token that is bound twice does not hide a file that cannot be
// read.
func TestAllFaultsOfTokensAreReported(t *testing.T) {
	_, err := NewTokens(zap.NewNop(), []Source{
		{Tenant: "a", Tokens: List([]secret.String{"one"}, "senders[0].tokens")},
		{Tenant: "b", Tokens: List([]secret.String{"one"}, "senders[1].tokens"), File: filepath.Join(t.TempDir(), "none"), FileKey: "senders[1].file"},
	})
	require.ErrorContains(t, err, "senders[1].tokens[0]: is also a token of senders[0].tokens[0]")
	require.ErrorContains(t, err, "senders[1].file: cannot read")
}

// TestTokenFilesThatCannotBeReadAgain: their tokens stay, others change, and the log
// says so without showing one.
func TestTokenFilesThatCannotBeReadAgain(t *testing.T) {
	dir := t.TempDir()
	a, b := write(t, dir, "a", "old-a"), write(t, dir, "b", "old-b")
	core, logs := observer.New(zap.WarnLevel)
	all, err := NewTokens(zap.New(core), []Source{
		{Tenant: "a", File: a, FileKey: "senders[0].file"}, {Tenant: "b", File: b, FileKey: "senders[1].file"},
	})
	require.NoError(t, err)
	tenant := func(token string) string {
		name, known := all.Tenant(token)
		require.True(t, known, token)
		return name
	}
	require.NoError(t, os.Remove(a))
	write(t, dir, "b", "new-b")
	all.later()
	assert.Equal(t, "b", tenant("new-b"))
	assert.Equal(t, "a", tenant("old-a"))
	require.Equal(t, 1, logs.Len())
	write(t, dir, "a", "new-b")
	all.later()
	assert.Equal(t, "b", tenant("new-b"), "no token changes its tenant by being in two files")
	require.Equal(t, 2, logs.Len())
	for _, entry := range logs.All() {
		assert.NotContains(t, entry.ContextMap()["error"], "-b")
		assert.Contains(t, entry.ContextMap()["error"], "senders[")
	}
}

func TestBearer(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer a": "a", "bearer  a ": "a", "BEARER a.b.c": "a.b.c", "Basic a": "", "Bearer": "", "": "", "Bearera": "",
	} {
		r := &http.Request{Header: http.Header{"Authorization": {header}}}
		assert.Equal(t, want, Token(r), header)
	}
}
