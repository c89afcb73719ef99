package pulsar

import (
	"os"
	"path/filepath"
	"strings"
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

// A folder conf that lacks a file stays as it is.
func TestApplyChangesAllOrNothing(t *testing.T) {
	const before = "maxMessageSize=1\n"
	conf := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(conf, "broker.conf"), []byte(before), 0o600))
	require.ErrorContains(t, apply(t.Context(), files("business"), conf), "has no bookkeeper.conf")
	after, err := os.ReadFile(filepath.Join(conf, "broker.conf"))
	require.NoError(t, err)
	assert.Equal(t, before, string(after))
}

// A run with new files keeps the settings of the machine, and links stay links.
func TestApplyKeepsTheMachinesSettings(t *testing.T) {
	machine := map[string]string{
		"broker.conf":     "clusterName=zone-a\nmetadataStoreUrl=zk:zk1:2181\nadvertisedAddress=broker1\n",
		"bookkeeper.conf": "metadataServiceUri=metadata-store:zk:zk1:2181\nadvertisedAddress=bookie1\njournalDirectories=/mnt/ssd\nledgerDirectories=/mnt/a,/mnt/b\n",
		"pulsar_env.sh":   "#!/bin/sh\n",
		"bkenv.sh":        "#!/bin/sh\n",
	}
	for _, kind := range kinds {
		conf, elsewhere := t.TempDir(), t.TempDir()
		for name, text := range machine {
			require.NoError(t, os.WriteFile(filepath.Join(elsewhere, name), []byte(text), 0o600))
			require.NoError(t, os.Symlink(filepath.Join(elsewhere, name), filepath.Join(conf, name)))
		}
		require.NoError(t, apply(t.Context(), files(kind), conf))
		for name, text := range machine {
			got, err := os.ReadFile(filepath.Join(elsewhere, name))
			require.NoError(t, err)
			assert.True(t, strings.HasPrefix(string(got), text), "%s: %s: %s", kind, name, got)
			assert.Greater(t, len(got), len(text), "%s: %s has none of the settings, or is no link any more", kind, name)
		}
	}
}
