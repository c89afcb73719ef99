package pulsar

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readsURI prints what a bookie reads as its metadataServiceUri in the file that it is given.
const readsURI = `
public class Reads {
  public static void main(String[] args) throws Exception {
    var conf = new org.apache.bookkeeper.conf.ServerConfiguration();
    conf.loadConf(new java.io.File(args[0]).toURI().toURL());
    System.out.print(conf.getMetadataServiceUri());
  }
}`

// A bookie takes the metadataServiceUri of docs/pulsar.md whole, all servers of it.
func TestBookieKnowsAllMetadataServers(t *testing.T) {
	home := distribution(t)
	doc, err := os.ReadFile(filepath.Join(root, "docs", "pulsar.md"))
	require.NoError(t, err)
	uri := regexp.MustCompile("`(metadata-store:[^`]*)`").FindSubmatch(doc)
	require.NotNil(t, uri)
	dir := t.TempDir()
	conf, source := filepath.Join(dir, "bookkeeper.conf"), filepath.Join(dir, "Reads.java")
	require.NoError(t, os.WriteFile(conf, append([]byte("metadataServiceUri="), uri[1]...), 0o600))
	require.NoError(t, os.WriteFile(source, []byte(readsURI), 0o600))
	cmd := exec.CommandContext(t.Context(), "java", "-cp", filepath.Join(home, "lib", "*"), source, conf)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	assert.Equal(t, string(uri[1]), string(out))
}
