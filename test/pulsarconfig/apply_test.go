package pulsarconfig

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestApply(t *testing.T) {
	dir, conf := t.TempDir(), t.TempDir()
	write := func(path, text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write(filepath.Join(dir, "bookkeeper.conf"), "# The reason\nnew = 1\ntwice=3\nvalue=a=b\n")
	write(filepath.Join(dir, "jvm.env"), "PULSAR_MEM=-Xmx1m\n")
	write(filepath.Join(conf, "bookkeeper.conf"), "# Pulsar's own\n#twice=0\ntwice=1\nother=x\n twice = 2\nvalue=\n\nlast=1") // without a newline
	for _, name := range []string{"pulsar_env.sh", "bkenv.sh"} {
		write(filepath.Join(conf, name), "#!/bin/sh\necho $PULSAR_MEM\n")
	}
	for range 2 { // the second run changes nothing
		require.NoError(t, apply(t.Context(), dir, conf))
		got, err := os.ReadFile(filepath.Join(conf, "bookkeeper.conf"))
		require.NoError(t, err)
		assert.Equal(t, "# Pulsar's own\n#twice=0\ntwice=3\nother=x\nvalue=a=b\n\nlast=1\nnew = 1\n", string(got))
		for _, name := range []string{"pulsar_env.sh", "bkenv.sh"} {
			got, err := os.ReadFile(filepath.Join(conf, name))
			require.NoError(t, err)
			assert.Equal(t, "#!/bin/sh\n. \"${BASH_SOURCE[0]%/*}/jvm.env\"\necho $PULSAR_MEM\n", string(got))
		}
	}

	write(filepath.Join(dir, "broker.conf"), "key=1\n")
	require.ErrorContains(t, apply(t.Context(), dir, conf), "has no broker.conf")
	require.ErrorContains(t, apply(t.Context(), dir, filepath.Join(conf, "none")), "usage")
}
