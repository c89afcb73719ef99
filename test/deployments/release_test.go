package deployments

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// release makes a release for one platform and returns its folder. The others take the same way
// and minutes more.
func release(t *testing.T, version string) (string, error) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "dist")
	cmd := exec.CommandContext(t.Context(), "make", "release", "VERSION="+version)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "DIST="+folder, "PLATFORMS=linux/amd64")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = errors.New(string(out))
	}
	return folder, err
}

func TestReleaseIsReproducible(t *testing.T) {
	t.Parallel()
	const archive = "aviary-0.1.0-linux-amd64"
	first, err := release(t, "0.1.0")
	require.NoError(t, err)
	second, err := release(t, "0.1.0")
	require.NoError(t, err)

	for _, name := range []string{archive + ".tar.gz", "SHA256SUMS"} {
		a, err := os.ReadFile(filepath.Join(first, name))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(second, name))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(a, b), "%s differs between two builds", name)
	}
	sums := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = first
	out, err := sums.CombinedOutput()
	require.NoError(t, err, string(out))

	files := unpack(t, filepath.Join(first, archive+".tar.gz"))
	for _, name := range []string{"README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "configs/sonic.yaml"} {
		assert.NotEmpty(t, files[archive+"/"+name], name)
	}
	for _, service := range []string{"nightingale", "pigeonhole", "sonic", "eventbridge"} {
		binary := filepath.Join(t.TempDir(), service)
		require.NoError(t, os.WriteFile(binary, files[archive+"/bin/"+service], 0o700))
		out, err := exec.CommandContext(t.Context(), binary, "-version").CombinedOutput()
		require.NoError(t, err, string(out))
		assert.Contains(t, string(out), service+" version 0.1.0, commit ")
		assert.Equal(t, requiredPulsarClient(t), pulsarClientOf(t, files[archive+"/sbom/"+service+".json"]), service)
	}
}

func TestReleaseNeedsAVersion(t *testing.T) {
	t.Parallel()
	_, err := release(t, "next")
	require.ErrorContains(t, err, "VERSION is a version such as 0.1.0, got 'next'")
}

// unpack returns the regular files of an archive by their names.
func unpack(t *testing.T, path string) map[string][]byte {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	require.NoError(t, err)
	files := map[string][]byte{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		if header.Typeflag == tar.TypeReg {
			files[header.Name], err = io.ReadAll(archive)
			require.NoError(t, err)
		}
	}
}

const pulsarClient = "github.com/apache/pulsar-client-go"

// requiredPulsarClient returns the version of pulsar-client-go in go.mod.
func requiredPulsarClient(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", pulsarClient)
	cmd.Dir = root
	version, err := cmd.Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(version))
}

// pulsarClientOf returns the version of pulsar-client-go in an SBOM.
func pulsarClientOf(t *testing.T, sbom []byte) string {
	t.Helper()
	var bom struct {
		Components []struct {
			PURL    string `json:"purl"`
			Version string `json:"version"`
		} `json:"components"`
	}
	require.NoError(t, json.Unmarshal(sbom, &bom))
	for _, component := range bom.Components {
		if strings.HasPrefix(component.PURL, "pkg:golang/"+pulsarClient+"@") {
			return component.Version
		}
	}
	return ""
}
